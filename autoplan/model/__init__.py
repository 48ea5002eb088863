"""What is trained or served: operator graphs, from model files and Hugging Face configs."""

from __future__ import annotations

from autoplan.model.facts import describe
from autoplan.model.graph import ModelGraph
from autoplan.model.load import load

__all__ = ["ModelGraph", "describe", "load", "model_schema"]


def model_schema() -> dict[str, object]:
    """Return the JSON Schema of a model file (`models/*.yaml`)."""
    from autoplan.model.spec import DecoderSpec

    schema = DecoderSpec.model_json_schema()
    return {**schema, "required": [key for key in schema["required"] if key != "name"]}  # the file's name will do
