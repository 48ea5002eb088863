"""Strategies: which assignments are legal, and what layouts follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from byte_prices import model
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.intraop.strategies import NONE, PADDED, REPEATED, enumerate_all, pinned, splits, strategies
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, Op
from autoplan.model.ops import splittable
from autoplan.sharding import PARTIAL, REPLICATED

GRAPH = model(kv_heads=2, gated=True, biases=("qkv", "o", "mlp"), qk_norm=True, positions="rotary")
OPS = {op.name: op for layer in GRAPH.classes for op in layer.ops}
TENSOR = ("heads", "kv_heads", "ffn", "vocab")
AXES = st.sampled_from([(2,), (8,), (2, 4), (4, 2), (1, 8), (2, 2, 2)])


def sizes(op: Op, batch: int = 16, seq: int = 256) -> dict[str, int]:
    return {BATCH: batch, SEQ: seq, KV_SEQ: seq} | op.static_sizes


def one(op: Op, axis_sizes: tuple[int, ...], *dims: str | None) -> object:
    names = [dim.name for dim in op.dims]
    assign = np.array([[NONE if dim is None else names.index(dim) for dim in dims]])
    return strategies(op, sizes(op), axis_sizes, assign)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(OPS.values())), AXES, st.sampled_from([1, 3, 16]), st.sampled_from([7, 256]))
def test_every_assignment_is_legal_distinct_and_splits_evenly(
        op: Op, axis_sizes: tuple[int, ...], batch: int, seq: int) -> None:
    every = enumerate_all(op, sizes(op, batch, seq), axis_sizes)
    names = [dim.name for dim in op.dims]
    assert len(np.unique(every, axis=0)) == len(every) >= 1
    assert (every == NONE).all(axis=1).any()
    for row in every:
        assert all(code == NONE for code, size in zip(row, axis_sizes, strict=True) if size == 1)
        for position in set(row.tolist()) - {NONE}:
            name = names[position]
            parts = math.prod(size for code, size in zip(row, axis_sizes, strict=True) if code == position)
            size = sizes(op, batch, seq)[name]
            assert name in splittable(op)
            assert size % parts == 0 or (name in PADDED and parts <= size) or (name in REPEATED and parts % size == 0)
    free = enumerate_all(op, sizes(op, batch, seq), axis_sizes, (BATCH,))
    assert set(np.unique(free).tolist()) <= {NONE, names.index(BATCH)}


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(OPS.values())), AXES)
def test_layouts_follow_from_the_split_dims(op: Op, axis_sizes: tuple[int, ...]) -> None:
    """A split dim that a tensor has splits it; one that the output lacks leaves partial sums of it, one that an operand
    lacks leaves the operand whole and its gradient a partial sum. A loss is exchanged; a bias is added to the sum."""
    made = strategies(op, sizes(op), axis_sizes, enumerate_all(op, sizes(op), axis_sizes))
    names = [dim.name for dim in op.dims]
    grouped = {outer for _, outer in op.grouped}
    for k in range(made.count):
        for axis in range(len(axis_sizes)):
            code = int(made.assign[k, axis])
            name = None if code == NONE else names[code]

            def expect(dims: tuple[str, ...], lacking: int, name: str | None = name) -> int:
                return REPLICATED if name is None else dims.index(name) if name in dims else lacking

            output = expect(op.output.dims, REPLICATED if op.kind == "loss" else PARTIAL)
            assert made.output[k, axis] == output
            for operand, layout, gradient in zip(op.inputs, made.inputs, made.gradients, strict=True):
                if name in grouped and name not in operand.dims:
                    continue
                assert layout[k, axis] == expect(operand.dims, REPLICATED)
                assert gradient[k, axis] == expect(operand.dims, PARTIAL)
            for param, layout in zip(op.params, made.params, strict=True):
                finished = param.after_reduction and name in op.contracted
                assert layout[k, axis] == expect(param.dims, REPLICATED if finished else PARTIAL)
    for position, name in enumerate(names):
        parts = np.where(made.assign == position, np.array(axis_sizes), 1).prod(axis=1)
        assert (made.local[name] == np.ceil(sizes(op)[name] / parts)).all()


@pytest.mark.parametrize(("axis_sizes", "heads", "expected"), [
    ((2,), ("heads",), [2]), ((4,), ("heads",), [2]),  # two key heads on two devices; each on two of four
    ((2, 2), ("heads", "heads"), [2, 2]), ((2, 2), (None, "heads"), [REPLICATED, 2]),
])
def test_key_heads_follow_their_queries(axis_sizes: tuple[int, ...], heads: tuple[str | None, ...],
                                        expected: list[int]) -> None:
    made = one(OPS["attention"], axis_sizes, *heads)
    for operand in (1, 2):
        assert made.inputs[operand].tolist() == [expected]  # type: ignore[attr-defined]
        assert made.gradients[operand].tolist() == [expected]  # type: ignore[attr-defined]


def test_key_heads_stay_whole_where_a_split_of_queries_cuts_across_their_groups() -> None:
    """Six query heads in three groups over two devices: the keys are whole, their gradients partial sums."""
    graph = model(hidden=384, heads=6, kv_heads=3)
    op = next(op for op in graph.layer(1).ops if op.name == "attention")
    made = one(op, (2,), "heads")
    assert made.inputs[1].tolist() == [[REPLICATED]]  # type: ignore[attr-defined]
    assert made.gradients[1].tolist() == [[PARTIAL]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "size", "parts", "legal"), [
    ("ffn", 12, 4, True), ("ffn", 12, 5, False), ("ffn", 4, 8, False), ("vocab", 50257, 8, True),
    ("vocab", 4, 8, False),
    ("kv_heads", 8, 4, True), ("kv_heads", 8, 16, True), ("kv_heads", 8, 12, False),
])
def test_what_a_dim_may_be_split_into(name: str, size: int, parts: int, legal: bool) -> None:
    assert splits(name, size, np.array([parts]))[0] == legal


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(OPS.values())), AXES, st.lists(
    st.sampled_from([(BATCH,), (SEQ,), TENSOR, (*TENSOR, SEQ)]), min_size=3, max_size=3))
def test_a_recipe_is_one_of_the_legal_assignments(
        op: Op, axis_sizes: tuple[int, ...], roles: list[tuple[str, ...]]) -> None:
    """And None exactly where the dims that the roles name don't divide."""
    taken = tuple(roles[:len(axis_sizes)])
    got = pinned(op, sizes(op), axis_sizes, taken)
    names = [dim.name for dim in op.dims]
    wanted = [NONE if size == 1 else next((names.index(d) for d in role if d in splittable(op)), NONE)
              for role, size in zip(taken, axis_sizes, strict=True)]
    legal = (enumerate_all(op, sizes(op), axis_sizes) == wanted).all(axis=1).any()
    assert (got is not None) == legal
    assert got is None or got.tolist() == [wanted]
