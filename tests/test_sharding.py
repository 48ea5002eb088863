"""Layout conversions: textbook bytes, XLA's as an outside judge, and the laws of a shortest path."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.sharding import (
    PARTIAL,
    REPLICATED,
    Array,
    Collective,
    Layout,
    codes_to_index,
    conversion_seconds,
    index,
    layouts,
    spec,
    steps,
)

ORACLE = json.loads((Path(__file__).parent / "data" / "xla_reshard.json").read_text())
ROWS = [tuple(row) for row in ORACLE["rows"]]


class Wire:
    """Bytes a device sends, at most: the bandwidth terms of ring algorithms."""

    def __init__(self, axis_sizes: tuple[int, ...], scale: float = 1.0) -> None:
        self.axis_sizes, self.scale = axis_sizes, scale

    def __call__(self, kind: Collective, nbytes: Array, axes: tuple[int, ...]) -> Array:
        n = math.prod(self.axis_sizes[axis] for axis in axes)
        part = {Collective.ALL_REDUCE: 2 * (n - 1) / n, Collective.PERMUTE: 1.0}.get(kind, (n - 1) / n)
        return nbytes * part * self.scale


def table(shape: tuple[int, ...], axis_sizes: tuple[int, ...]) -> Array:
    return conversion_seconds(shape, 4, axis_sizes, Wire(axis_sizes))


def seconds(shape: tuple[int, ...], axis_sizes: tuple[int, ...], source: Layout, target: Layout) -> float:
    where = index(len(shape), len(axis_sizes))
    return float(table(shape, axis_sizes)[where[source], where[target]])


def parse(text: str) -> Layout:
    """The oracle's notation on the axes (d, m), as a layout; the order of axes in a dim must be (d, m)."""
    found, dim = {"d": REPLICATED, "m": REPLICATED}, REPLICATED
    for letter in text if text != "R" else "":
        if letter.isdigit():
            dim = int(letter)
        else:
            found[letter] = dim
    return found["d"], found["m"]


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axis_sizes = draw(st.sampled_from([(1,), (4,), (2, 4), (4, 2), (1, 8), (3, 2), (2, 2, 2)]))
    rank = draw(st.integers(1, 3 if len(axis_sizes) < 3 else 2))
    return tuple(draw(st.lists(st.sampled_from([24, 48, 96]), min_size=rank, max_size=rank))), axis_sizes


def test_layouts_are_numbered_in_order_of_their_codes() -> None:
    every = np.array(layouts(3, 2))
    assert len(every) == 25
    assert (codes_to_index(every, 3) == np.arange(25)).all()
    assert [index(3, 2)[layout] for layout in layouts(3, 2)] == list(range(25))


def test_a_spec_names_axes_by_dim_major_first() -> None:
    assert spec((0, 0, PARTIAL), 2, ("a", "b", "c")) == ([["a", "b"], []], ["c"])
    assert spec((1, REPLICATED), 2, ("a", "b")) == ([[], ["a"]], [])


@pytest.mark.parametrize(("source", "target", "expected"), [
    (0, REPLICATED, 3 / 4), (0, 1, 3 / 16), (REPLICATED, 1, 0.0), (1, 1, 0.0),
    (PARTIAL, REPLICATED, 2 * 3 / 4), (PARTIAL, 0, 3 / 4), (REPLICATED, PARTIAL, 0.0), (PARTIAL, PARTIAL, 0.0),
    (0, PARTIAL, 0.0),
])
def test_one_axis_costs_what_the_textbook_says(source: int, target: int, expected: float) -> None:
    """Bytes sent over 4 devices as a part of the whole tensor; to partial: zeros stand for what a device hasn't."""
    assert seconds((8, 8), (4,), (source,), (target,)) == pytest.approx(expected * 8 * 8 * 4)


def kind_of(source: Layout, target: Layout, rank: int = 3) -> tuple[Collective, bool] | None:
    """What the one step from `source` to `target` sends, and whether its axes trade places; None if there is none."""
    where = index(rank, len(source))
    found = [(step.kind, step.trades) for step in steps(rank, len(source))
             if ((step.source == where[source]) & (step.target == where[target])).any()]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(("source", "code", "kind"), [
    ((PARTIAL,), REPLICATED, Collective.ALL_REDUCE), ((PARTIAL,), 0, Collective.REDUCE_SCATTER),
    ((REPLICATED,), 0, Collective.SLICE), ((0,), REPLICATED, Collective.ALL_GATHER), ((0,), 1, Collective.ALL_TO_ALL),
    ((REPLICATED, 0), 0, Collective.PERMUTE), ((0, 0), 1, Collective.PERMUTE), ((1, 0), 0, Collective.PERMUTE),
    ((0, 0), REPLICATED, None), ((PARTIAL, 0), 0, None), ((PARTIAL, 0), 1, Collective.REDUCE_SCATTER),
])
def test_steps_of_the_first_axis(source: Layout, code: int, kind: Collective | None) -> None:
    assert kind_of(source, (code, *source[1:])) == (kind and (kind, False))


@pytest.mark.parametrize(("source", "target", "expected"), [
    ((PARTIAL, PARTIAL), (REPLICATED, REPLICATED), (Collective.ALL_REDUCE, False)),
    ((0, 0), (1, 1), (Collective.ALL_TO_ALL, False)),
    ((0, 1), (1, 0), (Collective.ALL_TO_ALL, True)),
    ((0, 0), (1, 2), (Collective.ALL_TO_ALL, False)),
    ((0, 0, 0), (1, 1, 0), (Collective.ALL_TO_ALL, True)),  # the axis that stays is more minor: parts in another order
    ((0, 0), (REPLICATED, REPLICATED), None), ((PARTIAL, 0), (REPLICATED, 1), None),
])
def test_steps_of_several_axes(source: Layout, target: Layout, expected: tuple[Collective, bool] | None) -> None:
    assert kind_of(source, target) == expected


def test_steps_change_their_axes_and_no_other() -> None:
    every = np.array(layouts(2, 3))
    for step in steps(2, 3):
        changed = every[step.source] != every[step.target]
        assert (changed == np.isin(np.arange(3), step.axes)).all()
        assert (every[step.target][:, list(step.axes)] != PARTIAL).all()


def test_axes_that_move_together_send_one_all_to_all_and_those_that_trade_places_one_each() -> None:
    held = 64 * 64 * 4 / 8
    assert seconds((64, 64), (2, 4), (0, 0), (1, 1)) == held * 7 / 8
    assert seconds((64, 64), (2, 4), (0, 1), (1, 0)) == held * (1 / 2 + 3 / 4)


def test_the_order_of_axes_is_part_of_the_layout() -> None:
    """Taking in the minor axis is a slice, the major one a permute; taking out the major one a permute more."""
    shape, sizes = (64, 64), (2, 4)
    held = 64 * 64 * 4 / 8
    assert seconds(shape, sizes, (0, REPLICATED), (0, 0)) == 0
    assert seconds(shape, sizes, (REPLICATED, 0), (0, 0)) == held
    assert seconds(shape, sizes, (0, 0), (0, REPLICATED)) == held * 4 * 3 / 4
    assert seconds(shape, sizes, (0, 0), (REPLICATED, 0)) == held + held * 2 / 2
    assert seconds(shape, sizes, (0, PARTIAL), (0, 0)) == held * 4 * 3 / 4
    assert seconds(shape, sizes, (PARTIAL, 0), (0, 0)) == held + held * 2 / 2


@pytest.mark.parametrize(("source", "target", "textbook", "xla"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_conversions_are_between_the_textbook_and_xla(source: str, target: str, textbook: float, xla: float) -> None:
    got = seconds((64, 64, 64), (2, 4), parse(source), parse(target))
    assert min(textbook, xla) <= got <= max(textbook, xla)  # the 30 rows where both agree: equal


def test_xla_agrees_with_the_textbook_on_thirty_conversions() -> None:
    assert len(ROWS) == 56 and sum(row[2] == row[3] for row in ROWS) == 30


@settings(max_examples=30, deadline=None)
@given(tables())
def test_a_path_is_shortest(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Free to itself, nothing negative, every layout reachable; the triangle inequality, by way of layouts that split
    no axis that the target doesn't."""
    found = table(*case)
    assert (np.diag(found) == 0).all()
    assert (found >= 0).all() and np.isfinite(found).all()
    split = np.array(layouts(len(case[0]), len(case[1]))) >= 0
    fair = (split[:, None, :] <= split[None, :, :]).all(axis=2)
    through = (found[:, :, None] + np.where(fair, found, np.inf)[None, :, :]).min(axis=1)
    assert (through >= found * (1 - 1e-12)).all()


def test_replicas_do_not_share_a_reduction_and_gather_its_parts() -> None:
    """Over (2, 4): halves reduced over 4 and gathered over 2 would send 5/4 of the tensor, not 3/2."""
    whole = 64 * 64 * 4
    assert seconds((64, 64), (2, 4), (REPLICATED, PARTIAL), (REPLICATED, REPLICATED)) == whole * 2 * 3 / 4
    assert seconds((64, 64), (2, 4), (REPLICATED, PARTIAL), (0, REPLICATED)) == whole / 2 * 2 * 3 / 4
    assert seconds((64, 64), (2, 4), (PARTIAL, PARTIAL), (REPLICATED, REPLICATED)) == whole * 2 * 7 / 8


@settings(max_examples=30, deadline=None)
@given(tables(), st.floats(1.01, 100))
def test_less_bandwidth_and_more_bytes_cost_more(case: tuple[tuple[int, ...], tuple[int, ...]], factor: float) -> None:
    shape, axis_sizes = case
    fast = table(shape, axis_sizes)
    slow = conversion_seconds(shape, 4, axis_sizes, Wire(axis_sizes, factor))
    assert slow == pytest.approx(fast * factor)
    assert conversion_seconds((2 * shape[0], *shape[1:]), 4, axis_sizes, Wire(axis_sizes)) == pytest.approx(2 * fast)


@pytest.mark.parametrize("axis_sizes", [(1,), (1, 4), (1, 2, 2)])
def test_an_axis_of_one_device_is_free_to_change(axis_sizes: tuple[int, ...]) -> None:
    every = np.array(layouts(2, len(axis_sizes)))
    same = (every[:, None, 1:] == every[None, :, 1:]).all(axis=2)
    assert (table((8, 8), axis_sizes)[same] == 0).all()


@settings(max_examples=30, deadline=None)
@given(tables())
def test_slices_are_free_and_what_is_replicated_is_also_partial(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    found = table(*case)
    where = index(len(case[0]), len(case[1]))
    whole = where[(REPLICATED,) * len(case[1])]
    assert (found[whole] == 0).all()
    partial = where[(PARTIAL,) * len(case[1])]
    assert (found[:, partial] <= found[:, whole] * (1 + 1e-12)).all()
