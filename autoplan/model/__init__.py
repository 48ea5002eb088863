"""What is trained or served: operator graphs, from model files and Hugging Face configs."""

from __future__ import annotations

from pathlib import Path

from autoplan.model.graph import ModelGraph

__all__ = ["ModelGraph", "describe", "load", "model_schema"]


def load(ref: str | Path) -> ModelGraph:
    """Read a model by its shipped name, or from a model file or Hugging Face config; see `autoplan.model.load`."""
    from autoplan.model import load as module

    return module.load(ref)


def describe(graph: ModelGraph) -> dict[str, object]:
    """Return what there is to tell about a model, ready for JSON; see `autoplan.model.facts`."""
    from autoplan.model import facts

    return facts.describe(graph)


def model_schema() -> dict[str, object]:
    """Return the JSON Schema of a model file (`models/*.yaml`)."""
    from autoplan.model.spec import DecoderSpec

    return DecoderSpec.model_json_schema()
