"""Layouts of tensors on a mesh, and the cheapest way from one layout to another.

A *layout* gives each mesh axis, in mesh order (major to minor), one code: the position of the tensor dim that the axis
splits, `REPLICATED`, or `PARTIAL` (every device holds a term of a sum that is still to be reduced over the axis). Where
several axes split one dim, the earlier axis is the major one, so the order of axes is part of a layout.

Conversions are shortest paths over single-axis steps: slice (free), all-gather, reduce-scatter, all-reduce, all-to-all,
and permute where an axis is put in or moved out above a more minor axis of the same dim. A gather or reduce-scatter
can't do that by itself, since the parts would come in the wrong order: its path leads over a permute. This module knows
bytes and steps; what a step costs in seconds is asked of the caller (`Price`), since prices live in `autoplan.cost`.
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
    permute. axis: the mesh axis it runs over.
    """

    def __call__(self, kind: Collective, nbytes: Array, axis: int) -> Array: ...


@dataclass(frozen=True)
class Step:
    """One single-axis step of the layout graph of a tensor: from layout index to layout index."""

    source: int
    target: int
    axis: int
    kind: Collective


def spec(layout: Layout, rank: int, axis_names: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return a layout as a partition spec: the mesh axes of each of `rank` dims (major first), and the partial axes."""
    dims = [[name for code, name in zip(layout, axis_names, strict=True) if code == dim] for dim in range(rank)]
    return dims, [name for code, name in zip(layout, axis_names, strict=True) if code == PARTIAL]


def step_kind(layout: Layout, axis: int, code: int) -> Collective | None:
    """Return what it takes to change `axis` of `layout` to `code` (another than it has, and not `PARTIAL`).

    None where no single collective does: a gather or reduce-scatter above a more minor axis of the same dim.
    """
    old = layout[axis]
    minor = layout[axis + 1:]
    reorders = (old >= 0 and old in minor) or (code >= 0 and code in minor)
    if old == PARTIAL:
        if code == REPLICATED:
            return Collective.ALL_REDUCE
        return None if reorders else Collective.REDUCE_SCATTER
    if reorders:
        return None if code == REPLICATED else Collective.PERMUTE
    if old == REPLICATED:
        return Collective.SLICE
    return Collective.ALL_GATHER if code == REPLICATED else Collective.ALL_TO_ALL


@cache
def layouts(rank: int, num_axes: int) -> tuple[Layout, ...]:
    """Return every layout of a tensor of `rank` dims on `num_axes` mesh axes, partial ones included."""
    return tuple(itertools.product((PARTIAL, REPLICATED, *range(rank)), repeat=num_axes))


@cache
def index(rank: int, num_axes: int) -> dict[Layout, int]:
    """Return the position of each layout in `layouts(rank, num_axes)`."""
    return {layout: position for position, layout in enumerate(layouts(rank, num_axes))}


def codes_to_index(codes: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Return, for layouts given as codes [..., num_axes], their positions in `layouts(rank, num_axes)`."""
    base = rank + 2
    result = np.zeros(codes.shape[:-1], np.int64)
    for axis in range(codes.shape[-1]):
        result = result * base + (codes[..., axis] + 2)
    return result


@cache
def steps(rank: int, num_axes: int) -> tuple[Step, ...]:
    """Return every single-axis step between layouts of a tensor of `rank` dims."""
    found = []
    where = index(rank, num_axes)
    for source in layouts(rank, num_axes):
        for axis in range(num_axes):
            for code in (REPLICATED, *range(rank)):
                if code == source[axis]:
                    continue
                target = (*source[:axis], code, *source[axis + 1:])
                kind = step_kind(source, axis, code)
                if kind is not None:
                    found.append(Step(where[source], where[target], axis, kind))
    return tuple(found)


@cache
def _step_arrays(rank: int, num_axes: int) -> list[tuple[Collective, int, NDArray[np.int64], NDArray[np.int64]]]:
    """Group the steps by what they send and over which axis: `(kind, axis, sources, targets)`."""
    grouped: dict[tuple[Collective, int], list[Step]] = {}
    for step in steps(rank, num_axes):
        grouped.setdefault((step.kind, step.axis), []).append(step)
    return [(kind, axis, np.array([s.source for s in some]), np.array([s.target for s in some]))
            for (kind, axis), some in grouped.items()]


def conversion_seconds(shape: Sequence[float], element_bytes: int, axis_sizes: Sequence[int], price: Price) -> Array:
    """Return the seconds of the cheapest path between every two layouts of a tensor, [L, L].

    shape: sizes of the tensor's dims, unsplit. L indexes `layouts(rank, num_axes)`. Going *to* a partial layout is free
    from itself and from the layout that is replicated there (one device keeps the term, the others hold zeros), and
    impossible (inf) otherwise. Shortest paths by repeated min-plus squaring of the one-step matrix, O(L³ log A).
    """
    rank, num_axes = len(shape), len(axis_sizes)
    all_layouts = np.array(layouts(rank, num_axes)).reshape(-1, num_axes)
    count = len(all_layouts)
    split = np.where(all_layouts >= 0, np.array(axis_sizes)[None, :], 1).prod(axis=1)
    held = float(np.prod(np.asarray(shape, float))) * element_bytes / split  # bytes one device holds, [L]
    cost = np.full((count, count), np.inf)
    np.fill_diagonal(cost, 0.0)
    for kind, axis, source, target in _step_arrays(rank, num_axes):
        if kind is Collective.SLICE:
            cost[source, target] = 0.0
        elif kind is Collective.ALL_TO_ALL:
            cost[source, target] = price(kind, held[source], axis)
        elif kind is Collective.PERMUTE:
            cost[source, target] = price(kind, held[target], axis)
        else:  # gathers and reductions: the whole tensor of one group
            whole = held[source] * np.where(all_layouts[source, axis] >= 0, axis_sizes[axis], 1)
            cost[source, target] = price(kind, whole, axis)
    for axis, size in enumerate(axis_sizes):
        if size == 1:  # one device has all parts, in any order
            others = np.delete(all_layouts, axis, axis=1)
            cost[(others[:, None] == others[None, :]).all(axis=2)] = 0.0
    for _ in range(max(1, int(np.ceil(np.log2(2 * num_axes))))):
        cost = (cost[:, :, None] + cost[None, :, :]).min(axis=1)
    return _with_partial_targets(cost, rank, num_axes)


def _with_partial_targets(cost: Array, rank: int, num_axes: int) -> Array:
    """Let a layout replicated on some axes stand for the partial one there."""
    base = rank + 2
    shaped = cost.reshape((cost.shape[0],) + (base,) * num_axes)
    for axis in range(num_axes):
        view = np.moveaxis(shaped, axis + 1, -1)
        view[..., 0] = np.minimum(view[..., 0], view[..., 1])
    return shaped.reshape(cost.shape)
