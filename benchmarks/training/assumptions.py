"""What a source ran, where a row doesn't say it: `sources.yaml`, read and applied.

Each set of assumptions is a mapping with the keys of `Assumed` (and `where`: the place that states them). For a row
they are laid over each other, later ones win: `defaults`, each of `frameworks` whose `match` the row's framework has,
what its kind of memory means, the source's own, and each of its `cases` and of the file's `cases` that the row matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .rows import Row

FILE = Path(__file__).parent / "sources.yaml"


@dataclass(frozen=True)
class Assumed:
    """What is assumed of a row's run. The row's own columns go first, but for those that `override` names.

    skip: why the row can't be priced. cluster: a shipped cluster or a file of `clusters/`.
    model: the name of a shipped model, or keys of a model file that the row doesn't give.
    vocab_multiple_tp: the vocabulary is padded to a multiple of this times tp.
    cut: "best", or "equal" (the first stages take one more), "ceil" (all but the last take ⌈L/p⌉), "ends" (embedding
    and head take a layer's slot each), "last" (the last stage has as few as is fastest, the others the rest), "items"
    (`plan_json` lists items of which `items_before` come before the first layer).
    mask: fraction of the tokens that the head sees. memory_unit: "gib" or "gb". memory_counts: "all" (context
    included), "reserved" (no context) or "allocated" (nor what the allocator wastes). memory_stages: "all" or "ends".
    """

    skip: str | None = None
    cluster: str | None = None
    model: str | Mapping[str, Any] | None = None
    override: tuple[str, ...] = ()
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    vocab_multiple_tp: int = 1
    seq_len: int | None = None
    tied: bool | None = None
    mask: float | None = None
    micro_batch: int | str | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    virtual_stages: int | None = None
    schedule: str | None = None
    cut: str = "best"
    items_before: int = 0
    zero: int = 0
    shard: int | None = None
    recompute: str | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    grad_dtype: str | None = None
    reduce_dtype: str | None = None
    optimizer: str = "adam"
    attention: str | None = None
    dropout: bool = False
    frozen: bool = False
    etp: int | None = None
    runtime: str = "plain"
    memory_unit: str = "gib"
    memory_counts: str = "all"
    memory_stages: str = "all"


_KEYS = {one.name for one in fields(Assumed)}


@cache
def table() -> Mapping[str, Any]:
    """Return the file's content."""
    with FILE.open(encoding="utf-8") as file:
        data: Mapping[str, Any] = yaml.safe_load(file)
    return data


def assumed(row: Row) -> Assumed:
    """Return what is assumed of a row. ValueError where the file has a key that nobody knows."""
    data = table()
    source = data["sources"].get(row.source_id, {})
    layers = [data["defaults"]]
    layers += [one for one in data["frameworks"] if re.search(one["match"], row.framework, re.IGNORECASE)]
    layers += [one for one in data["memory"] if matches(one["match"], row)]
    layers.append(source)
    layers += [one for one in (*source.get("cases", ()), *data["cases"]) if matches(one["match"], row)]
    merged: dict[str, Any] = {}
    for one in layers:
        merged |= {key: value for key, value in one.items() if key not in ("where", "match", "cases")}
    unknown = merged.keys() - _KEYS
    if unknown:
        raise ValueError(f"{FILE.name}: unknown keys {sorted(unknown)} for {row.source_id}")
    merged["override"] = tuple(merged.get("override", ()))
    return Assumed(**merged)


def matches(conditions: Mapping[str, Any], row: Row) -> bool:
    """Whether a row meets all conditions: a column → a regular expression that its text holds, or a number."""
    for column, wanted in conditions.items():
        value = getattr(row, column)
        if isinstance(wanted, str):
            if re.search(wanted, "" if value is None else str(value), re.IGNORECASE) is None:
                return False
        elif value != wanted:
            return False
    return True


def cluster_of(row: Row) -> str | None:
    """Return the cluster that the row's GPU stands for where its source names none: the first rule that matches."""
    for rule in table()["clusters"]:
        if matches(rule["match"], row):
            return str(rule["cluster"])
    return None


def family(row: Row) -> Mapping[str, Any] | None:
    """Return the keys of a model file that a row's architecture family stands for; None for an unknown family."""
    for rule in table()["families"]:
        if matches(rule["match"], row):
            found: Mapping[str, Any] = rule
            return found
    return None
