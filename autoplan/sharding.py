"""Layouts of tensors on a mesh, and the cheapest way from one layout to another.

A *layout* gives each mesh axis, in mesh order (major to minor), one code: the position of the tensor dim that the axis
splits, `REPLICATED`, or `PARTIAL` (every device holds a term of a sum that is still to be reduced over the axis). Where
several axes split one dim, the earlier axis is the major one, so the order of axes is part of a layout.

Conversions are shortest paths over steps: slice (free), all-gather, reduce-scatter and permute of one axis, all-reduce
and all-to-all over any set of axes at once. A permute is needed where an axis is put in or moved out above a more minor
axis of the same dim: the parts that one collective leaves would come in the wrong order. This module knows bytes and
steps; what a step costs in seconds is asked of the caller (`Price`), since prices live in `autoplan.cost`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

REPLICATED = -1
PARTIAL = -2

Layout = tuple[int, ...]
Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Collective(StrEnum):
    """What a step between two layouts sends."""

    SLICE = "slice"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "permute"


class Price(Protocol):
    """Seconds of one collective.

    nbytes [n]: of the whole tensor in one group for gathers and reductions, of what one device holds for all-to-all and
    permute. axes: the mesh axes whose devices form one group.
    """

    def __call__(self, kind: Collective, nbytes: Array, axes: tuple[int, ...]) -> Array: ...


@dataclass(frozen=True)
class Steps:
    """All steps of one kind over the same axes: from layouts `source` [n] to layouts `target` [n], as indices.

    trades: the axes change places in a way that no single all-to-all does, and take one each.
    """

    kind: Collective
    axes: tuple[int, ...]
    source: Ints
    target: Ints
    trades: bool = False


def spec(layout: Layout, rank: int, axis_names: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return a layout as a partition spec: the mesh axes of each of `rank` dims (major first), and the partial axes."""
    dims = [[name for code, name in zip(layout, axis_names, strict=True) if code == dim] for dim in range(rank)]
    return dims, [name for code, name in zip(layout, axis_names, strict=True) if code == PARTIAL]


@cache
def layouts(rank: int, num_axes: int) -> tuple[Layout, ...]:
    """Return every layout of a tensor of `rank` dims on `num_axes` mesh axes, partial ones included."""
    return tuple(itertools.product((PARTIAL, REPLICATED, *range(rank)), repeat=num_axes))


def _codes(rank: int, num_axes: int) -> Ints:
    """Return `layouts` as an array [L, num_axes]."""
    every = layouts(rank, num_axes)
    return np.array(every, np.int64).reshape(len(every), num_axes)


@cache
def index(rank: int, num_axes: int) -> dict[Layout, int]:
    """Return the position of each layout in `layouts(rank, num_axes)`."""
    return {layout: position for position, layout in enumerate(layouts(rank, num_axes))}


def codes_to_index(codes: Ints, rank: int) -> Ints:
    """Return, for layouts given as codes [..., num_axes], their positions in `layouts(rank, num_axes)`."""
    base = rank + 2
    result = np.zeros(codes.shape[:-1], np.int64)
    for axis in range(codes.shape[-1]):
        result = result * base + (codes[..., axis] + 2)
    return result


@cache
def steps(rank: int, num_axes: int) -> tuple[Steps, ...]:
    """Return every step between layouts of a tensor of `rank` dims, grouped by what it sends and over which axes."""
    every = _codes(rank, num_axes)
    changes = (every[:, None, :] != every[None, :, :]) @ (1 << np.arange(num_axes))  # a bit an axis, [L, L]
    found = []
    for axes in _subsets(num_axes):
        source, target = np.nonzero(changes == sum(1 << axis for axis in axes))
        for (kind, trades), rows in _kinds(every[source], every[target], axes).items():
            if rows.any():
                found.append(Steps(kind, axes, source[rows], target[rows], trades))
    return tuple(found)


def _subsets(num_axes: int) -> list[tuple[int, ...]]:
    """Return every set of axes that is not empty, the smaller ones first."""
    return [axes for size in range(1, num_axes + 1) for axes in itertools.combinations(range(num_axes), size)]


def _kinds(before: Ints, after: Ints, axes: tuple[int, ...]) -> dict[tuple[Collective, bool], NDArray[np.bool_]]:
    """Return which changes [n] of the layouts of all of `axes` at once each kind of collective brings about.

    An axis *reorders* where another axis, which stays and is more minor, splits the dim it leaves or enters: the parts
    come in another order, so that whatever the device holds is sent on, and a gather or reduce-scatter can't do it.
    """
    old, new = before[:, axes], after[:, axes]
    count, num_axes = before.shape
    reorders = np.zeros(count, bool)
    trades = np.zeros(count, bool)  # a dim loses one of the axes and gains another
    for axis in axes:
        for stays in set(range(axis + 1, num_axes)) - set(axes):
            code = before[:, stays]
            reorders |= (code >= 0) & ((code == before[:, axis]) | (code == after[:, axis]))
        trades |= (old == after[:, axis, None]).any(axis=1)
    summed, whole, split = (old == PARTIAL).all(axis=1), (old == REPLICATED).all(axis=1), (old >= 0).all(axis=1)
    to_whole, to_split = (new == REPLICATED).all(axis=1), (new >= 0).all(axis=1)
    kinds = {(Collective.ALL_REDUCE, False): summed & to_whole,
             (Collective.ALL_TO_ALL, False): split & to_split & ~reorders & ~trades}
    if len(axes) > 1:
        return kinds | {(Collective.ALL_TO_ALL, True): split & to_split & (reorders | trades)}
    return kinds | {
        (Collective.SLICE, False): whole & to_split & ~reorders,
        (Collective.ALL_GATHER, False): split & to_whole & ~reorders,
        (Collective.REDUCE_SCATTER, False): summed & to_split & ~reorders,
        (Collective.PERMUTE, False): (whole | split) & to_split & reorders,
    }


class Conversions:
    """Seconds of the cheapest path between layouts of one tensor: `conversions[sources, targets]`.

    sources, targets: arrays of indices into `layouts(rank, num_axes)`, broadcast against each other.

    shape: sizes of the tensor's dims, unsplit. A *partial* layout is reached for free from one that is whole there (one
    device keeps the term, the others hold zeros) and from one that is split (zeros around each part), but for a split
    over a more minor axis of the same dim, whose parts lie elsewhere. Only axes that the target splits are sliced on
    the way: replicas that divide a reduction among them and gather the parts again would send less, but no compiler or
    runtime makes them. An axis of one device is free to change. Paths are found by relaxation, for those sources and
    kinds of target that are asked for.
    """

    def __init__(self, shape: Sequence[float], element_bytes: int, axis_sizes: Sequence[int], price: Price) -> None:
        rank, kept = len(shape), [axis for axis, size in enumerate(axis_sizes) if size > 1]
        self._smaller = codes_to_index(_codes(rank, len(axis_sizes))[:, kept], rank)  # without axes of one device
        codes = _codes(rank, len(kept))
        self._split = codes >= 0

        def over(kind: Collective, nbytes: Array, axes: tuple[int, ...]) -> Array:
            """Price each number of bytes once."""
            distinct, where = np.unique(nbytes, return_inverse=True)
            return price(kind, distinct, tuple(kept[axis] for axis in axes))[where]

        self._step = _one_step(shape, element_bytes, [axis_sizes[axis] for axis in kept], over)
        self._sliced = (codes[:, None, :] == REPLICATED) & self._split[None, :, :]  # [L, L, A]
        self._paths = np.full_like(self._step, np.nan)

    def __getitem__(self, key: tuple[Ints, Ints]) -> Array:
        source, target = np.broadcast_arrays(self._smaller[key[0]], self._smaller[key[1]])
        missing = np.isnan(self._paths[source, target])
        if missing.any():
            kinds = self._split @ (1 << np.arange(self._split.shape[1]))
            for kind in np.unique(kinds[target[missing]]):
                rows = np.unique(source[missing & (kinds[target] == kind)])
                columns = np.flatnonzero(kinds == kind)
                self._paths[np.ix_(rows, columns)] = self._relaxed(rows, self._split[columns[0]])[:, columns]
        found: Array = self._paths[source, target]
        return found

    def _relaxed(self, sources: Ints, split: NDArray[np.bool_]) -> Array:
        """Return the seconds [S, L] from sources to every layout, by paths that slice no other axes than `split`."""
        step = np.where((self._sliced & ~split).any(axis=2), np.inf, self._step)
        best = step[sources]
        while True:
            shorter = np.array([(row[:, None] + step).min(axis=0) for row in best])
            if (shorter >= best).all():
                return best
            best = shorter


def conversion_seconds(shape: Sequence[float], element_bytes: int, axis_sizes: Sequence[int], price: Price) -> Array:
    """Return the seconds of the cheapest path between every two layouts of a tensor, [L, L] (see `Conversions`)."""
    every = np.arange(len(layouts(len(shape), len(axis_sizes))))
    return Conversions(shape, element_bytes, axis_sizes, price)[every[:, None], every[None, :]]


def _one_step(shape: Sequence[float], element_bytes: int, axis_sizes: Sequence[int], price: Price) -> Array:
    """Return the seconds of one step between every two layouts, [L, L]; inf where there is none."""
    rank, num_axes = len(shape), len(axis_sizes)
    all_layouts = _codes(rank, num_axes)
    split = np.where(all_layouts >= 0, np.array(axis_sizes, np.int64)[None, :], 1).prod(axis=1)
    held = float(np.prod(np.asarray(shape, float))) * element_bytes / split  # bytes one device holds, [L]
    cost = np.full((len(all_layouts), len(all_layouts)), np.inf)
    for step in steps(rank, num_axes):
        cost[step.source, step.target] = _step_seconds(step, held, all_layouts, axis_sizes, price)
    for axis in range(num_axes):
        code = all_layouts[:, axis]
        free = ~((code >= 0)[:, None] & (all_layouts[:, axis + 1:] == code[:, None])).any(axis=1)
        partial = all_layouts.copy()
        partial[:, axis] = PARTIAL
        cost[np.flatnonzero(free), codes_to_index(partial, rank)[free]] = 0.0
    np.fill_diagonal(cost, 0.0)
    return cost


def _step_seconds(step: Steps, held: Array, all_layouts: Ints, axis_sizes: Sequence[int], price: Price) -> Array:
    """Return the seconds of each step [n]. held [L]: bytes that one device holds in each layout.

    Axes that trade places take an all-to-all each. That is no less than all that a device holds, which is what it takes
    to send every part of it to the device that needs it: two axes of two devices and more already come to the whole.
    """
    if step.kind is Collective.SLICE:
        return np.zeros(len(step.source))
    if step.trades:
        return sum((price(step.kind, held[step.source], (axis,)) for axis in step.axes), np.zeros(len(step.source)))
    if step.kind in (Collective.ALL_TO_ALL, Collective.PERMUTE):
        return price(step.kind, held[step.target], step.axes)
    parts = np.where(all_layouts[step.source][:, step.axes] >= 0, np.array(axis_sizes)[list(step.axes)], 1)
    return price(step.kind, held[step.source] * parts.prod(axis=1), step.axes)  # the whole tensor of one group
