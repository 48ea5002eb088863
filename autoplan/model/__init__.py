"""What is trained or served: operator graphs, from model files and Hugging Face configs."""

from __future__ import annotations

from autoplan.model.facts import describe
from autoplan.model.graph import ModelGraph
from autoplan.model.load import load

__all__ = ["ModelGraph", "describe", "load", "model_schema"]


def model_schema() -> dict[str, object]:
    """Return the JSON Schema of a model file (`models/*.yaml`)."""
    from pydantic import TypeAdapter

    from autoplan.model.spec import Spec

    schema = TypeAdapter(Spec).json_schema()
    for kind in ("TransformerSpec", "ResNetSpec"):  # the file's name will do
        schema["$defs"][kind]["required"].remove("name")
    return schema
