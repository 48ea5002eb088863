"""From a model's spec to its operator graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.model.architectures.resnet import resnet
from autoplan.model.architectures.transformer import transformer
from autoplan.model.graph import ModelGraph

if TYPE_CHECKING:
    from autoplan.model.spec import Spec


def build(spec: Spec) -> ModelGraph:
    """Return the operator graph of a spec."""
    return resnet(spec) if spec.architecture == "resnet" else transformer(spec)
