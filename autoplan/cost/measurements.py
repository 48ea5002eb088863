"""A CSV of a user's own measurements: its columns, and the errors for what can't be one.

One row a measurement; docs/cost-model.md lists the columns. Empty cells are "not given".
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import InputError, nearest

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
NEEDED: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"), "attention": ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim"),
    "memory": ("bytes",), **dict.fromkeys(COLLECTIVES, ("bytes", "ranks")),
    "step": ("model", "micro_batch_size", "global_batch_size"),
}
OPTIONAL: dict[str, tuple[str, ...]] = {
    "gemm": ("batch", "dtype"), "attention": ("dtype", "causal", "phase"), "memory": ("operator",),
    **dict.fromkeys(COLLECTIVES, ("nodes",)),
    "step": ("tp", "pp", "dp", "cp", "zero", "seq_len", "precision", "recompute", "sequence_parallel", "schedule",
             "virtual_stages", "optimizer", "runtime"),
}
WORDS: dict[str, tuple[str, ...]] = {  # columns that hold a word; all others hold numbers above zero
    "dtype": ("bf16", "fp16", "fp8", "tf32", "fp32"), "phase": ("forward", "backward"), "causal": ("true", "false"),
    "sequence_parallel": ("true", "false"), "operator": (), "model": (), "precision": (), "recompute": (),
    "schedule": (), "optimizer": (), "runtime": (),
}
COLUMNS = ("kind", "target", "seconds", *dict.fromkeys(
    name for kind in NEEDED for name in (*NEEDED[kind], *OPTIONAL[kind])))


@dataclass(frozen=True)
class Measurement:
    """One row: what was measured, on which device or cluster, its sizes and words, and the seconds it took."""

    where: str  # file:line
    kind: str
    target: str
    seconds: float
    sizes: dict[str, float]
    words: dict[str, str]


def read(path: str | Path) -> list[Measurement]:
    """Return the rows of a CSV. InputError, naming file and line, for the first that can't be a measurement."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, restkey="", strict=True)
            header = lines.fieldnames or ()
            _check_header(header, str(path))
            rows = [_row(cells, f"{path}:{lines.line_num}") for cells in lines if any(cells.values())]
    except OSError as error:
        raise InputError(f"can't read the file: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is no CSV file: not UTF-8 text", where=str(path)) from None
    except csv.Error as error:
        raise InputError(f"is no CSV file: {error}", where=str(path)) from None
    if not rows:
        raise InputError("holds no measurements", where=str(path))
    return rows


def _check_header(header: Sequence[str], where: str) -> None:
    for name in header:
        if name not in COLUMNS:
            hint = nearest(name, COLUMNS)
            raise InputError("unknown column" + (f", {hint}" if hint else ""), where=f"{where}:1", found=name,
                             allowed=", ".join(COLUMNS))
    for name in ("kind", "target", "seconds"):
        if name not in header:
            raise InputError("a column is missing", where=f"{where}:1", key=name)
    if len(set(header)) < len(header):
        raise InputError("a column is given twice", where=f"{where}:1", found=", ".join(header))


def _row(cells: dict[str, str | None], where: str) -> Measurement:
    if "" in cells:
        raise InputError("has more cells than the header", where=where)
    given = {name: text.strip() for name, text in cells.items() if text and text.strip()}
    kind = given.pop("kind", "")
    if kind not in NEEDED:
        raise InputError("unknown kind of measurement", where=where, key="kind", found=kind, allowed=", ".join(NEEDED))
    if "target" not in given:
        raise InputError("needs the name of a device or cluster", where=where, key="target")
    target = given.pop("target")
    allowed = ("seconds", *NEEDED[kind], *OPTIONAL[kind])
    for name in given:
        if name not in allowed:
            raise InputError(f"a {kind} has no such column", where=where, key=name, found=given[name],
                             allowed=", ".join(allowed))
    for name in ("seconds", *NEEDED[kind]):
        if name not in given:
            raise InputError(f"a {kind} needs it", where=where, key=name)
    words = {name: _word(name, text, where) for name, text in given.items() if name in WORDS}
    sizes = {name: _number(name, text, where) for name, text in given.items() if name not in WORDS}
    return Measurement(where, kind, target, sizes.pop("seconds"), sizes, words)


def _word(name: str, text: str, where: str) -> str:
    if WORDS[name] and text not in WORDS[name]:
        raise InputError("unknown value", where=where, key=name, found=text, allowed=", ".join(WORDS[name]))
    return text


def _number(name: str, text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    least = 0 if name == "zero" else 1e-12
    if not least <= number < math.inf:
        raise InputError("must be a number above zero", where=where, key=name, found=text)
    if name != "seconds" and number != int(number):
        raise InputError("must be a whole number", where=where, key=name, found=text)
    return number
