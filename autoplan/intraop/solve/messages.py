"""Bucket elimination whose messages are sets of Pareto rows, joined by key without a Python loop over rows or keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.pareto import IndexArray, WordArray, pareto_rows

_CHUNK_ROWS = 1 << 20  # joined rows held at once


@dataclass(frozen=True, eq=False)
class PairCost:
    """What an edge adds. delta: [M, K_u, K_v], one layer for each moved functional. ok: [K_u, K_v] allowed pairs."""

    delta: FloatArray
    ok: npt.NDArray[np.bool_]

    def transposed(self) -> PairCost:
        return PairCost(self.delta.transpose(0, 2, 1), self.ok.T)


@dataclass(frozen=True, eq=False)
class Graph:
    """A problem in functionals of whole numbers.

    allowed: per node the strategies left. unary: per node [D, K_i]. pairs: `(u, v)` with u < v to what the edge adds.
    moved: [M] the functionals that edges add to. is_sum: [D]; the other functionals compose by max.
    """

    allowed: tuple[IndexArray, ...]
    unary: tuple[FloatArray, ...]
    pairs: dict[tuple[int, int], PairCost]
    moved: IndexArray
    is_sum: npt.NDArray[np.bool_]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.allowed)


@dataclass(frozen=True, eq=False)
class _Message:
    """Rows over the open nodes `scope`: those of key k (mixed radix, last node fastest) are starts[k]:starts[k+1].

    values: [D, R] functionals. words: [W, R] the choices behind the rows, packed by `_Packing`.
    """

    scope: tuple[int, ...]
    starts: IndexArray
    values: FloatArray
    words: WordArray


@dataclass(frozen=True)
class _Packing:
    """Choices as words of 64 bits that compare as the choices do, node 0 first: per node its word, shift and bits."""

    word: tuple[int, ...]
    shift: tuple[int, ...]
    bits: tuple[int, ...]

    @property
    def words(self) -> int:
        return self.word[-1] + 1

    def pack(self, node: int, strategies: IndexArray) -> WordArray:
        packed = np.zeros((self.words, strategies.size), dtype=np.uint64)
        packed[self.word[node]] = strategies.astype(np.uint64) << np.uint64(self.shift[node])
        return packed

    def unpack(self, node: int, words: WordArray) -> IndexArray:
        mask = np.uint64((1 << self.bits[node]) - 1)
        unpacked: IndexArray = (words[self.word[node]] >> np.uint64(self.shift[node]) & mask).astype(np.intp)
        return unpacked


def _packing(sizes: Sequence[int]) -> _Packing:
    word, shift, at, free = [], [], 0, 64
    bits = [max(1, (size - 1).bit_length()) for size in sizes]
    for need in bits:
        if need > free:
            at, free = at + 1, 64
        free -= need
        word.append(at)
        shift.append(free)
    return _Packing(tuple(word), tuple(shift), tuple(bits))


def eliminate(graph: Graph, keep: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """Return the choices [R, N] of all non-dominated rows for each assignment of `keep`, ordered by that assignment.

    At each step the node goes whose join is estimated to be smallest: strategies of the node and its neighbours times
    the mean rows a key of the messages it joins.
    """
    sizes = graph.sizes
    packing = _packing(sizes)
    messages: list[_Message] = []
    open_nodes = set(range(len(sizes))) - set(keep)
    neighbours: list[set[int]] = [set() for _ in sizes]
    for u, v in graph.pairs:
        neighbours[u].add(v)
        neighbours[v].add(u)

    def weight(node: int) -> float:
        factors = [float(sizes[n]) for n in (node, *neighbours[node])]
        factors += [m.values.shape[1] / (m.starts.size - 1) for m in messages if node in m.scope]
        return math.prod(factors)

    while open_nodes:
        node = min(open_nodes, key=lambda n: (weight(n), n))
        open_nodes.remove(node)
        bucket = [m for m in messages if node in m.scope]
        messages = [m for m in messages if node not in m.scope]
        scope = (*sorted(neighbours[node]), node)
        messages.append(_close(graph, packing, bucket, scope, (node,), last=True))
        for other in neighbours[node]:
            neighbours[other] |= neighbours[node]
            neighbours[other] -= {other, node}
    final = _close(graph, packing, messages, tuple(sorted(keep)), keep, last=False)
    choice = np.stack([a[packing.unpack(i, final.words)] for i, a in enumerate(graph.allowed)], axis=1)
    order = np.lexsort(tuple(choice[:, node] for node in reversed(keep))) if keep else np.arange(len(choice))
    return choice[order].astype(np.int16)


def _close(graph: Graph, packing: _Packing, bucket: list[_Message], scope: tuple[int, ...], nodes: tuple[int, ...],
           *, last: bool) -> _Message:
    """Join messages over `scope`, add the functionals of `nodes` and of the edges they have in it, and prune.

    last: whether the last node of the scope is eliminated.
    """
    bucket = sorted(bucket, key=_size)
    shape = tuple(graph.sizes[n] for n in scope)
    while len(bucket) > 2:
        union = tuple(n for n in scope if n in bucket[0].scope or n in bucket[1].scope)
        cells = _Cells.blank(graph, packing, tuple(graph.sizes[n] for n in union))
        bucket = sorted([_join(graph, union, bucket[:2], cells, last=False), *bucket[2:]], key=_size)
    cells = _Cells.blank(graph, packing, shape)
    shift = cells.shift.reshape(-1, *shape)
    ok = cells.ok.reshape(shape)
    for node in nodes:
        own = graph.unary[node].reshape(-1, *_aligned(scope, shape, (node,)))
        shift[graph.is_sum] += own[graph.is_sum]
        shift[~graph.is_sum] = np.maximum(shift[~graph.is_sum], own[~graph.is_sum])
        cells.words[...] |= packing.pack(node, _keys(scope, shape, (node,)))
    for (u, v), pair in graph.pairs.items():
        if u in scope and v in scope and (u in nodes or v in nodes):
            ends, cost = ((u, v), pair) if scope.index(u) < scope.index(v) else ((v, u), pair.transposed())
            place = _aligned(scope, shape, ends)
            shift[graph.moved] += cost.delta.reshape(-1, *place)
            ok &= cost.ok.reshape(place)
    return _join(graph, scope, bucket, cells, last=last)


@dataclass(frozen=True, eq=False)
class _Cells:
    """What each assignment of a scope adds to its rows: shift [D, cells], words [W, cells]; ok [cells] if allowed."""

    shift: FloatArray
    ok: npt.NDArray[np.bool_]
    words: WordArray

    @classmethod
    def blank(cls, graph: Graph, packing: _Packing, shape: tuple[int, ...]) -> _Cells:
        count = math.prod(shape)
        shift = np.where(graph.is_sum, 0.0, -np.inf)[:, None].repeat(count, axis=1)
        return cls(shift, np.ones(count, dtype=np.bool_), np.zeros((packing.words, count), dtype=np.uint64))


def _size(message: _Message) -> tuple[int, int]:
    return len(message.scope), message.values.shape[1]


def _aligned(scope: tuple[int, ...], shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that broadcasts an array over the nodes `own` (in scope order) against the scope."""
    return tuple(size if node in own else 1 for node, size in zip(scope, shape, strict=True))


def _keys(scope: tuple[int, ...], shape: tuple[int, ...], own: tuple[int, ...]) -> IndexArray:
    """Return for each cell of the scope the mixed-radix key of its nodes `own` (last fastest)."""
    keys: IndexArray = np.zeros(shape, dtype=np.intp)
    stride = 1
    for node in reversed(own):
        axis = scope.index(node)
        steps = np.arange(shape[axis]) * stride
        keys = keys + steps.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        stride *= shape[axis]
    return keys.ravel()


def _join(graph: Graph, scope: tuple[int, ...], bucket: Sequence[_Message], cells: _Cells, *, last: bool) -> _Message:
    """Join up to two messages cell by cell, add what the cells add, and keep the non-dominated rows of each key.

    The cells of one key are adjacent: the strategies of the last node if it is eliminated (`last`), else one cell.
    """
    shape = tuple(graph.sizes[n] for n in scope)
    inner = shape[-1] if last else 1
    keys = [_keys(scope, shape, m.scope) for m in bucket]
    sizes = [np.diff(m.starts)[k] for m, k in zip(bucket, keys, strict=True)]
    counts = cells.ok.astype(np.intp)
    for size in sizes:
        counts *= size
    groups = counts.reshape(-1, inner).sum(axis=1)
    kept: list[tuple[FloatArray, WordArray]] = []
    found = np.zeros(groups.size, dtype=np.intp)
    for low, high in _chunks(groups):
        count = counts[low * inner:high * inner]
        cell = np.repeat(np.arange(low * inner, high * inner), count)
        local = np.arange(cell.size) - np.repeat(np.cumsum(count) - count, count)
        picks = []
        for m, key, size in reversed(list(zip(bucket, keys, sizes, strict=True))):
            own = size[cell]
            picks.append((m, m.starts[key[cell]] + local % own))
            local //= own
        values = cells.shift.take(cell, axis=1)
        for m, row in picks:
            theirs = m.values.take(row, axis=1)
            for d, is_sum in enumerate(graph.is_sum):
                (np.add if is_sum else np.maximum)(values[d], theirs[d], out=values[d])

        def words(rows: IndexArray, cell: IndexArray = cell,
                  picks: list[tuple[_Message, IndexArray]] = picks) -> WordArray:
            packed = cells.words[:, cell[rows]]
            for m, row in picks:
                packed |= m.words[:, row[rows]]
            return packed

        present = np.flatnonzero(groups[low:high])
        starts = (np.cumsum(groups[low:high]) - groups[low:high])[present]
        rows = pareto_rows(values, starts, words)
        kept.append((values[:, rows], words(rows)))
        found[low:high] = np.bincount(cell[rows] // inner - low, minlength=high - low)
    return _Message(scope[:-1] if last else scope, np.concatenate([[0], np.cumsum(found)]),
                    np.concatenate([v for v, _ in kept], axis=1), np.concatenate([w for _, w in kept], axis=1))


def _chunks(groups: IndexArray) -> list[tuple[int, int]]:
    """Cut the keys into runs of about `_CHUNK_ROWS` joined rows (one key at the least)."""
    ends = np.cumsum(groups)
    cuts, at = [0], 0
    while at < groups.size:
        done = ends[at - 1] if at else 0
        at = max(at + 1, int(np.searchsorted(ends, done + _CHUNK_ROWS, side="right")))
        cuts.append(at)
    return list(itertools.pairwise(cuts))
