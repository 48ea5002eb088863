"""From a row's dimensions to an operator graph."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import autoplan
from autoplan.model import ModelGraph
from autoplan.model.architectures import build
from autoplan.model.spec import parse

from .assumptions import Assumed, family
from .rows import Row

_DIMENSIONS = ("layers", "hidden", "heads", "ffn")


class Unpriced(Exception):
    """Why a row can't be priced."""


def graph_of(row: Row, assumed: Assumed) -> ModelGraph:
    """Return the model of a row. Raises Unpriced where a dimension isn't recorded, InputError where it's impossible."""
    if isinstance(assumed.model, str):
        return _shipped(assumed.model)
    described = family(row)
    if described is None:
        raise Unpriced(f"architecture {row.arch_family or 'not recorded'}")
    if "skip" in described:
        raise Unpriced(str(described["skip"]))
    keys = dict(described["model"]) | dict(assumed.model or {})
    if "read" in described:
        keys |= _read(described["read"], row)
        return _built(json.dumps(keys, sort_keys=True), row.model or row.source_id, None)
    sizes = {"layers": assumed.layers or row.layers, "hidden": row.hidden, "heads": row.heads or assumed.heads,
             "ffn": row.ffn or keys.get("ffn"), "vocab_size": row.vocab or assumed.vocab or keys.get("vocab_size"),
             "kv_heads": row.kv_heads or assumed.kv_heads}
    if "kv_heads" in assumed.override:
        sizes["kv_heads"] = assumed.kv_heads
    if "vocab" in assumed.override:
        sizes["vocab_size"] = assumed.vocab
    if sizes["ffn"] is None and not keys.get("gated") and row.hidden is not None and described.get("ffn") == "4h":
        sizes["ffn"] = 4 * row.hidden
    if row.glu is not None:
        keys["gated"] = bool(row.glu)
    tied = bool(row.tied_emb) if row.tied_emb is not None else assumed.tied
    if tied is not None:
        keys["tied_embeddings"] = tied
    if row.experts and row.topk and row.moe_ffn:
        keys["moe"] = {"experts": row.experts, "top_k": row.topk, "ffn": row.moe_ffn} | dict(keys.get("moe", {}))
        if not keys.get("blocks"):
            sizes.pop("ffn")
    elif "moe" in keys:
        raise Unpriced("experts not recorded")
    missing = [key for key in (*_DIMENSIONS, "vocab_size") if sizes.get(key, 0) is None]
    if missing:
        raise Unpriced(f"{', '.join(key.removesuffix('_size') for key in missing)} not recorded")
    keys |= {key: value for key, value in sizes.items() if value is not None}
    if assumed.vocab_multiple_tp > 1:
        keys["vocab_padding_multiple"] = assumed.vocab_multiple_tp * (row.tp or assumed.tp or 1)
    if keys.get("positions") == "learned":
        keys["max_positions"] = row.seq_len or assumed.seq_len or 1
    return _built(json.dumps(keys, sort_keys=True), row.model or row.source_id, assumed.mask)


def _read(patterns: Mapping[str, str], row: Row) -> dict[str, int]:
    """Return the numbers that the words of the row's architecture hold: key → the pattern's group."""
    found = {key: re.search(pattern, row.arch_family) for key, pattern in patterns.items()}
    missing = [key for key, match in found.items() if match is None]
    if missing:
        raise Unpriced(f"{', '.join(missing)} not recorded")
    return {key: int(match[1]) for key, match in found.items() if match is not None}


@cache
def _shipped(name: str) -> ModelGraph:
    return autoplan.load_model(name)


@cache
def _built(keys: str, name: str, mask: float | None) -> ModelGraph:
    """Build a graph from the keys of a model file, written as JSON so that equal ones are built once."""
    spec: dict[str, Any] = json.loads(keys)
    graph = build(parse({"name": name, **spec}, "row", name))
    if mask is None:
        return graph
    return _masked(graph, spec, name, mask)


def _masked(graph: ModelGraph, spec: dict[str, Any], name: str, mask: float) -> ModelGraph:
    """Return the graph with a head that sees only a fraction `mask` of the tokens.

    The head keeps its FLOPs by having that fraction of the vocabulary instead.
    """
    small = {"vocab_size": max(1, round(spec["vocab_size"] * mask)), "tied_embeddings": False}
    other = build(parse({"name": name, **spec, **small}, "row", name))
    return replace(graph, classes=(*graph.classes[:-1], other.classes[-1]))
