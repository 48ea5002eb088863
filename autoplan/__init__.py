"""Which parallel plan is the fastest that fits? The public API; every name is imported when it is first used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from autoplan.version import __version__

if TYPE_CHECKING:
    from autoplan.cluster.load import load as load_cluster
    from autoplan.cost.model import CostModel
    from autoplan.errors import InputError, NoPlanError
    from autoplan.model.importers.jax import from_jax
    from autoplan.model.importers.onnx import from_onnx
    from autoplan.model.importers.torch import from_torch
    from autoplan.model.load import load as load_model
    from autoplan.plan.schema import Plan
    from autoplan.search import estimate, plan

__all__ = [
    "CostModel", "InputError", "NoPlanError", "Plan", "__version__", "estimate", "from_jax", "from_onnx", "from_torch",
    "load_cluster", "load_model", "plan",
]

_HOME = {
    "CostModel": ("autoplan.cost.model", "CostModel"),
    "InputError": ("autoplan.errors", "InputError"),
    "NoPlanError": ("autoplan.errors", "NoPlanError"),
    "Plan": ("autoplan.plan.schema", "Plan"),
    "estimate": ("autoplan.search", "estimate"),
    "from_jax": ("autoplan.model.importers.jax", "from_jax"),
    "from_onnx": ("autoplan.model.importers.onnx", "from_onnx"),
    "from_torch": ("autoplan.model.importers.torch", "from_torch"),
    "load_cluster": ("autoplan.cluster", "load"),
    "load_model": ("autoplan.model", "load"),
    "plan": ("autoplan.search", "plan"),
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'autoplan' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `autoplan.plan` the function: importing the room of that name would bind the room here instead."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "plan" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
