"""The strategies of one operator on one mesh: each mesh axis is given to one loop dim, or to none.

From that choice follow the layouts of all operands, the partial sums (a split dim that the output lacks), and, by the
same rule applied backward, the layouts of the gradients: the gradient of an operand that lacks a split dim is a partial
sum over that axis. Data parallelism's gradient reduction is the case of a weight under a split of a token dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.model.graph import SEQ, Op, Param
from autoplan.model.ops import splittable
from autoplan.sharding import PARTIAL, REPLICATED

Ints = NDArray[np.int64]
Array = NDArray[np.float64]

NONE = -1  # a mesh axis given to no loop dim: its devices do the same work
PADDED = ("vocab",)  # dims that are padded where they don't divide, as every runtime does with the vocabulary
REPEATED = ("kv_heads",)  # dims that several devices may each hold the same part of: a key/value head for its queries


@dataclass(frozen=True)
class OpStrategies:
    """K strategies of one operator on a mesh of A axes.

    assign [K, A]: index into `op.dims`, or NONE. local: loop dim → local sizes [K].
    output [K, A]: layout of the output. inputs, gradients: for each operand its layout and its gradient's, [K, A].
    params: for each parameter its layout, [K, A]; PARTIAL marks an axis over which it is whole and its gradient a
    partial sum (data parallel), REPLICATED one over which both are whole.
    """

    op: Op
    assign: Ints
    local: Mapping[str, Array]
    output: Ints
    inputs: tuple[Ints, ...]
    gradients: tuple[Ints, ...]
    params: tuple[Ints, ...]

    @property
    def count(self) -> int:
        """K."""
        return len(self.assign)


def enumerate_all(op: Op, sizes: Mapping[str, int], axis_sizes: tuple[int, ...],
                  free: tuple[str, ...] | None = None) -> Ints:
    """Return every legal assignment [K, A]: any splittable dim for any axis, where the split sizes divide.

    free: only these dims, if given. An axis of size 1 is given to none, so that equal strategies appear once.
    """
    dims = [dim.name for dim in op.dims]
    allowed = [NONE, *(dims.index(name) for name in splittable(op) if free is None or name in free)]
    choices = [allowed if size > 1 else [NONE] for size in axis_sizes]
    every = np.array(list(itertools.product(*choices)), np.int64).reshape(-1, len(axis_sizes))
    legal = np.ones(len(every), bool)
    for position, name in enumerate(dims):
        split = np.where(every == position, np.array(axis_sizes), 1).prod(axis=1)
        legal &= splits(name, sizes[name], split)
    return every[legal]


def splits(name: str, size: int, parts: Ints) -> NDArray[np.bool_]:
    """Whether a dim of `size` can be split into so many parts: evenly, padded, or several devices a part."""
    if name in PADDED:
        return np.asarray(parts <= size)
    even = size % parts == 0
    return np.asarray(even | (parts % size == 0) if name in REPEATED else even)


def pinned(op: Op, sizes: Mapping[str, int], axis_sizes: tuple[int, ...],
           roles: tuple[tuple[str, ...], ...]) -> Ints | None:
    """Return the one assignment [1, A] that the axes' roles demand, or None where it is not legal.

    roles: for each axis the loop dims it splits, in order of preference. An operator takes the first that it has; one
    on a single token of each sequence has no sequence to split.
    """
    dims = [dim.name for dim in op.dims]
    can = [name for name in splittable(op) if (name, sizes[name]) != (SEQ, 1)]
    row = []
    split: dict[str, int] = {}
    for size, role in zip(axis_sizes, roles, strict=True):
        name = next((name for name in role if name in can), None)
        if size == 1 or name is None:
            row.append(NONE)
            continue
        parts = split.get(name, 1) * size
        if not splits(name, sizes[name], np.array([parts]))[0]:
            return None
        split[name] = parts
        row.append(dims.index(name))
    return np.array([row], np.int64)


def strategies(op: Op, sizes: Mapping[str, int], axis_sizes: tuple[int, ...], assign: Ints) -> OpStrategies:
    """Derive layouts and local sizes from the assignments [K, A]."""
    dims = [dim.name for dim in op.dims]
    shape = np.array(axis_sizes)
    local = {}
    for position, name in enumerate(dims):
        split = np.where(assign == position, shape, 1).prod(axis=1)
        local[name] = np.ceil(sizes[name] / split)
    output = _layout(assign, dims, op.output.dims)
    if op.kind == "loss":  # its exchange of statistics leaves the result whole
        output = np.where(output == PARTIAL, REPLICATED, output)
    gradients = tuple(_operand(op, assign, dims, operand.dims, axis_sizes) for operand in op.inputs)
    inputs = tuple(np.where(layout == PARTIAL, REPLICATED, layout) for layout in gradients)
    params = tuple(_param(op, assign, dims, param) for param in op.params)
    return OpStrategies(op, assign, local, output, inputs, gradients, params)


def _layout(assign: Ints, dims: list[str], tensor_dims: tuple[str, ...]) -> Ints:
    """Return the layout of a tensor under the assignments: its dim's position, or PARTIAL where it lacks the dim."""
    code = np.array([tensor_dims.index(name) if name in tensor_dims else PARTIAL for name in dims] + [REPLICATED])
    return code[assign]  # NONE = -1 takes the last entry


def _operand(op: Op, assign: Ints, dims: list[str], tensor_dims: tuple[str, ...], axis_sizes: tuple[int, ...]) -> Ints:
    """Return the layout of an operand's gradient; grouped dims follow their loop dim while they divide."""
    layout = _layout(assign, dims, tensor_dims)
    for inner, outer in op.grouped:
        if inner not in tensor_dims:
            continue
        parts = np.ones(len(assign), np.int64)
        for axis, size in enumerate(axis_sizes):
            follows = (assign[:, axis] == dims.index(outer)) & splits(inner, int(op.attr(inner) or 1), parts * size)
            layout[follows, axis] = tensor_dims.index(inner)
            parts = np.where(follows, parts * size, parts)
    return layout


def _param(op: Op, assign: Ints, dims: list[str], param: Param) -> Ints:
    layout = _layout(assign, dims, param.dims)
    if param.after_reduction:  # added to the finished output: a split of a contracted dim leaves its gradient whole
        contracted = np.array([name in op.contracted for name in dims] + [False])
        layout = np.where(contracted[assign] & (layout == PARTIAL), REPLICATED, layout)
    return layout
