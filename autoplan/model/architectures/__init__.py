"""From a model's spec to its operator graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.errors import InputError
from autoplan.model.architectures.transformer import transformer
from autoplan.model.graph import ModelGraph

if TYPE_CHECKING:
    from autoplan.model.spec import Spec


def build(spec: Spec) -> ModelGraph:
    """Return the operator graph of a spec."""
    if spec.architecture == "resnet":
        raise InputError("the graph of this architecture isn't supported yet", where=spec.name)
    return transformer(spec)
