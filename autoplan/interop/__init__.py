"""Layers → pipeline stages → submeshes: the inter-operator dynamic programme."""

from autoplan.interop.costs import Partition, StageChoice, StageCosts
from autoplan.interop.partition import partition

__all__ = ["Partition", "StageChoice", "StageCosts", "partition"]
