"""Find a model by name, file or folder, and read it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoplan import specs
from autoplan.errors import InputError, nearest
from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load(ref: str | Path) -> ModelGraph:
    """Read a model.

    ref: the name of a shipped model; or the path of a model file (`.yaml`, `.yml`), of a Hugging Face `config.json`, of
        a folder that holds one, or of an ONNX model (`.onnx`); or `module:function` of a function that makes a model
        (`autoplan.model.importers.reference`). A shipped name goes before a file of the same name (write `./name` for
        the file).
    Raises InputError if there's no such model, or its file is malformed or describes what isn't supported.
    """
    text = specs.reference(ref, "model")
    if text in specs.names("models"):
        return _read_model_file(specs.shipped("models") / f"{text}.yaml")
    path = Path(text)
    if text and os.path.isdir(path):
        if not specs.is_file(path / "config.json"):
            raise InputError("the folder has no config.json", where=str(path / "config.json"))
        return _read_huggingface(path / "config.json", path.resolve().name)
    if path.suffix in (".yaml", ".yml"):
        return _read_model_file(path)
    if path.suffix == ".json":
        if not specs.is_file(path):
            raise InputError("no such file", where=text)
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return _read_huggingface(path, name)
    if path.suffix == ".onnx":
        return _read_onnx(path)
    if specs.is_file(path):
        raise InputError("not a model file", where=str(path), found=path.suffix,
                         allowed="a model's .yaml, a Hugging Face config.json, a folder that holds one, or an .onnx")
    if _REFERENCE.fullmatch(text):
        return _call(text)
    hint = nearest(text, specs.names("models"))
    raise InputError(f"no such model{'; ' + hint if hint else ''}", where="model", found=text,
                     allowed="a name of `autoplan models list`, a model's .yaml, a Hugging Face config.json, an .onnx, "
                             "module:function")


def _read_onnx(path: Path) -> ModelGraph:
    from autoplan.model.importers.onnx import from_onnx

    if not specs.is_file(path):
        raise InputError("no such file", where=str(path))
    return from_onnx(path)


def _call(reference: str) -> ModelGraph:
    from autoplan.model.importers.reference import from_reference

    return from_reference(reference)


def _read_model_file(path: Path) -> ModelGraph:
    from autoplan.model.spec import parse

    if not specs.is_file(path):
        raise InputError("no such file", where=str(path))
    return build(parse(specs.read_yaml(path), str(path), path.stem))


def _read_huggingface(path: Path, name: str) -> ModelGraph:
    from autoplan.model.importers import huggingface

    return build(huggingface.read(path, name))
