"""Files that come from outside: where the shipped specs are, and how a YAML file is read and validated.

Everything wrong with a file is one `InputError` of one line that names the file, the key, what was found and what
is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from autoplan.errors import InputError, nearest

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    ModelT = TypeVar("ModelT", bound=BaseModel)

Kind = Literal["cluster_specs", "models"]

# Files in a folder of specs that the specs refer to and that are no spec themselves.
SHARED = frozenset({"devices"})

_EXPECTED = {
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "int_parsing_size": "a whole number", "bool_type": "true or false", "bool_parsing": "true or false",
    "string_type": "text", "string_too_short": "text that isn't empty", "list_type": "a list", "tuple_type": "a list",
    "dict_type": "a mapping", "model_type": "a mapping", "model_attributes_type": "a mapping",
}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def shipped(kind: Kind) -> Path:
    """The folder of shipped specs: inside the package when installed from a wheel, else in the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "shipped" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise InputError("the shipped specs are missing from this installation", where=str(package), key=kind)


def names(kind: Kind) -> tuple[str, ...]:
    """Names of the shipped specs, sorted: what `load` of the room accepts."""
    return tuple(sorted(path.stem for path in shipped(kind).glob("*.yaml") if path.stem not in SHARED))


def locate(kind: Kind, ref: str, what: str) -> Path:
    """The file that `ref` means: the name of a shipped spec, else a path. `what` names the thing in the error."""
    known = names(kind)
    if ref in known:
        return shipped(kind) / f"{ref}.yaml"
    path = Path(ref)
    if is_file(path):
        return path
    if ref and os.path.isdir(path):
        raise InputError(f"is a folder, not a {what} file", where=ref)
    if path.suffix.lower() in {".yaml", ".yml"} or "/" in ref:
        raise InputError(f"no such {what} file", where=ref)
    hint = nearest(ref, known)
    raise InputError(f"unknown {what}" + (f"; {hint}" if hint else ""), found=ref,
                     allowed=f"{', '.join(known)}, or the path of a {what} file")


def reference(ref: object, what: str) -> str:
    """`ref` as text. InputError where it is neither text nor a path. `what` names the thing in the error."""
    if not isinstance(ref, (str, os.PathLike)) or not isinstance(os.fspath(ref), str):
        raise InputError(f"not a reference to a {what}", where=what, found=type(ref).__name__,
                         allowed="a name or a path, as text or pathlib.Path")
    return str(os.fspath(ref))


def is_file(path: Path) -> bool:
    """Whether `path` is a file; False too for what can't be a path at all, such as a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_yaml(path: Path) -> object:
    """Read one YAML document. InputError: unreadable, malformed (with the line), empty, or a key given twice."""
    import yaml

    try:
        text = path.read_bytes().decode("utf-8-sig")
        data = yaml.load(text, _loader())
    except OSError as error:
        raise InputError(f"can't read the file: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("can't read the file: it isn't UTF-8 text", where=str(path)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = " ".join((error.problem or error.context or "can't be parsed").split())
        raise InputError(f"malformed YAML: {problem}", where=where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"malformed YAML: {unparsed(error)}", where=str(path)) from None
    if data is None:
        raise InputError("the file is empty", where=str(path))
    return data


def unparsed(error: Exception) -> str:
    """Why JSON or YAML text can't be parsed, in a line, from what its parser raised."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = " ".join(str(error).split())
    return "a whole number has too many digits" if "set_int_max_str_digits" in text else text


def validated(model: type[ModelT], data: object, where: str, prefix: str = "") -> ModelT:
    """Check `data` against a pydantic model. InputError for the first thing that is wrong, named by its dotted path.

    where: the file. prefix: the dotted path of `data` inside it.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    raise _input_error((unknown or errors)[0], model, data, where, prefix)


@cache
def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader, in C where built, that refuses duplicate keys and reads 1e9 as YAML 1.2 does."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """The safe loader with the two changes above."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                    key = self.construct_object(key_node)
                    if key in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key {key!r} is given twice", key_node.start_mark)
                    seen.add(key)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return mapping

    exponent = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


def _choices(found: str, known: Iterable[str]) -> str:
    known = tuple(known)
    hint, text = nearest(found, known), ", ".join(known)
    return f"{text} – {hint}" if hint else text


def _input_error(error: ErrorDetails, model: type[BaseModel], data: object, where: str, prefix: str) -> InputError:
    """One pydantic error as an InputError."""
    steps = _visible(error["loc"], data)
    key = ".".join(str(part) for part in ((prefix,) if prefix else ()) + steps) or None
    kind, found = error["type"], error["input"]
    if kind == "extra_forbidden":
        keys = [field.alias or name for name, field in _owner(error, model).model_fields.items()]
        return InputError("unknown key", where=where, key=key, allowed=_choices(str(steps[-1]), keys))
    if kind == "missing":
        field = _owner(error, model).model_fields.get(str(error["loc"][-1]))
        return InputError("this key is missing", where=where, key=key, allowed=field.description if field else None)
    context = error.get("ctx", {})
    if kind == "fault":  # found where several keys were looked at together: the context names the one at fault
        path = ".".join((*((key,) if key else ()), context["key"]))
        return InputError(context["what"], where=where, key=path, found=_short(context["found"]))
    bounds = [f"{words} {context[name]:.12g}" for name, words in _BOUNDS.items() if name in context]
    if kind in _EXPECTED:
        allowed = _EXPECTED[kind]
    elif kind == "too_short":
        allowed = f"at least {context['min_length']} item"
    elif bounds:
        allowed = f"a number {' and '.join(bounds)}"
    elif "expected" in context:
        allowed = str(context["expected"])
    else:
        return InputError(error["msg"].removeprefix("Value error, "), where=where, key=key, found=_short(found))
    if found is None:
        return InputError("must not be null", where=where, key=key, allowed=allowed)
    return InputError("not allowed here", where=where, key=key, found=_short(found), allowed=allowed)


def _visible(loc: tuple[int | str, ...], data: object) -> tuple[int | str, ...]:
    """The steps of a location that exist in the file: pydantic adds tags of unions and [key] marks."""
    steps: list[int | str] = []
    for i, part in enumerate(loc):
        if part == "[key]":
            continue
        last = i == len(loc) - 1
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data))
        if inside:
            data = data[part]  # type: ignore[index]
            steps.append(part)
        elif last and isinstance(data, Mapping):
            steps.append(part)  # a missing key
    return tuple(steps)


def _owner(error: ErrorDetails, model: type[BaseModel]) -> type[BaseModel]:
    """The (nested) model in which a key is missing or unknown."""
    from pydantic import BaseModel as Base

    current: type[BaseModel] = model
    for part in error["loc"][:-1]:
        field = current.model_fields.get(str(part))
        if field is not None:
            inner = [kind for kind in _flatten(field.annotation) if isinstance(kind, type) and issubclass(kind, Base)]
            current = inner[0] if inner else current
    return current


def _flatten(annotation: object) -> tuple[object, ...]:
    """The types named in an annotation such as Annotated[Union[A, B], …] or list[A]."""
    arguments = getattr(annotation, "__args__", ())
    return (annotation, *(kind for argument in arguments for kind in _flatten(argument)))


def _short(found: object) -> object:
    """`found` as it is if its repr is short, else a cut repr."""
    text = repr(found)
    return found if len(text) <= 80 else f"{text[:77]}…"
