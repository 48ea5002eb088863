"""Exact Pareto elimination: all non-dominated trade-offs of a graph, for every assignment of a few kept nodes.

Every strategy has a vector of C criteria (criterion 0 is time); criteria compose over the nodes by sum or by max, and
edges add to criterion 0. It is bucket elimination (Dechter 1999) over the semiring of Pareto sets (Rollon & Larrosa
2006, "Bucket elimination for multiobjective optimization problems"): a message holds, for each assignment of its open
variables, the non-dominated rows over the variables eliminated behind it. Adding a common completion to two rows
never reverses their dominance (for sums and for maxima), so pruning inside a key is exact.

Inside, rows carry the *functionals* that dominance is tested on, each entry rounded to whole multiples of `resolution`
times the functional's greatest total. Sums are then exact in any order, ties are true ties, and trade-offs below
rounding noise don't multiply. A coarser resolution keeps fewer rows, at a known error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.graph import Edges, merge_edges
from autoplan.intraop.solve.messages import Graph, PairCost, eliminate

Combine = Literal["sum", "max"]
FINEST = 2.0**-42  # totals of at most 2^42 units: exact in float64, with room for sums of columns


@dataclass(frozen=True, eq=False)
class Frontier:
    """Non-dominated rows, by assignment of the kept nodes and then by the sum of scaled functionals.

    values: [R, C] the criteria, re-priced from the choice. choice: [R, N] int16, one strategy a node. kept:
    [R, len(keep)] the strategies of the kept nodes.
    """

    values: FloatArray
    choice: npt.NDArray[np.int16]
    kept: npt.NDArray[np.int16]


def frontier(costs: Sequence[FloatArray], edges: Sequence[tuple[int, int]], edge_costs: Sequence[FloatArray],
             keep: Sequence[int], combine: Sequence[Combine], prune: FloatArray | None = None, *,
             resolution: float = FINEST) -> Frontier:
    """Return, for each assignment of the nodes `keep`, the complete set of non-dominated rows over all others.

    costs: per node [K_i, C], inf = forbidden. edges, edge_costs: pairs of nodes and their [K_u, K_v] seconds, added to
    criterion 0, inf = forbidden pair; parallel edges add up. combine: per criterion; criterion 0 must be a sum.
    prune: [P, C] linear functionals of the sum criteria (columns of max criteria must be 0); if given, dominance is
    tested on `prune @ criteria` and each max criterion instead of on the criteria.

    Of rows equal in every functional one is kept, always the same: the lexicographically first choice, unless that one
    holds a part that is worse where the rest of the choice (a max criterion, an edge entry) doesn't show it.
    resolution: no trade-off is missed by more than 2 · (nodes + edges) · resolution · total in a functional, its total
    being the sum of the greatest entry of every node and edge. The finest is rounding noise.
    No rows at all means infeasible. Raises ValueError if shapes don't agree.
    """
    _check(costs, combine, keep, prune)
    if not FINEST <= resolution < 1:
        raise ValueError(f"resolution must be in [2^-42, 1): {resolution}")
    sizes = [c.shape[0] for c in costs]
    merged, loops = merge_edges(sizes, edges, edge_costs)
    plain = [np.array(c, dtype=np.float64) for c in costs]
    for node, loop in loops.items():
        plain[node][:, 0] += loop
    graph = _reduce(_quantise(plain, merged, combine, prune, resolution), frozenset(keep))
    choice = eliminate(graph, tuple(keep)) if all(graph.sizes) else np.zeros((0, len(costs)), dtype=np.int16)
    return Frontier(_price(plain, merged, combine, choice), choice, choice[:, list(keep)])


def _check(costs: Sequence[FloatArray], combine: Sequence[Combine], keep: Sequence[int],
           prune: FloatArray | None) -> None:
    if not costs or any(c.ndim != 2 or not c.shape[0] or c.shape[1] != len(combine) for c in costs):
        raise ValueError(f"every node needs costs of shape [K, {len(combine)}], and there must be a node")
    if combine[0] != "sum" or not set(combine) <= {"sum", "max"}:
        raise ValueError(f"criterion 0 must be a sum, the others sum or max: {tuple(combine)}")
    if len(set(keep)) != len(keep):
        raise ValueError(f"kept nodes repeat: {tuple(keep)}")
    if prune is not None:
        is_max = np.array([how == "max" for how in combine])
        if prune.ndim != 2 or prune.shape[1] != len(combine) or prune[:, is_max].any():
            raise ValueError(f"prune must be [P, {len(combine)}] with zeros for the max criteria")


def _quantise(costs: list[FloatArray], merged: Edges, combine: Sequence[Combine], prune: FloatArray | None,
              resolution: float) -> Graph:
    """Turn criteria into rounded functionals; forbidden strategies are left out."""
    is_max = np.array([how == "max" for how in combine])
    weights = np.eye(len(combine))[~is_max] if prune is None else prune
    allowed = [np.flatnonzero(np.isfinite(c).all(axis=1)) for c in costs]
    unary = [np.concatenate([weights[:, ~is_max] @ c[a][:, ~is_max].T, c[a][:, is_max].T])
             for c, a in zip(costs, allowed, strict=True)]
    slope = np.concatenate([weights[:, 0], np.zeros(np.count_nonzero(is_max))])
    finite = {pair: np.where(np.isfinite(m), m, 0.0) for pair, m in merged.items()}
    total = np.abs(slope) * sum(np.abs(m).max() for m in finite.values())
    total += np.sum([np.abs(u).max(axis=1, initial=0.0) for u in unary], axis=0)
    unit = np.exp2(-np.ceil(np.log2(np.where(total > 0, total, 1.0)))) / resolution
    moved = np.flatnonzero(slope)
    pairs = {}
    for (u, v), m in finite.items():
        cell = np.ix_(allowed[u], allowed[v])
        pairs[u, v] = PairCost(np.rint((slope * unit)[moved, None, None] * m[cell]), np.isfinite(merged[u, v][cell]))
    return Graph(tuple(allowed), tuple(np.rint(u * unit[:, None]) for u in unary), pairs, moved,
                 np.arange(slope.size) < len(weights))


def _reduce(graph: Graph, keep: Collection[int]) -> Graph:
    """Remove strategies that can't be part of a non-dominated answer, to a fixpoint.

    A strategy goes if it has no partner across some edge; or, on a node that isn't kept, if another strategy is no
    worse in every functional and in every entry of every edge (of equals the lower index stays).
    """
    allowed, unary, pairs = list(graph.allowed), list(graph.unary), dict(graph.pairs)
    around: list[list[tuple[int, int]]] = [[] for _ in allowed]
    for pair in pairs:
        for node in pair:
            around[node].append(pair)
    waiting = set(range(len(allowed)))
    while waiting:
        node = min(waiting)
        waiting.remove(node)
        views = [pairs[p] if p[0] == node else pairs[p].transposed() for p in around[node]]
        stay = np.ones(allowed[node].size, dtype=np.bool_)
        for view in views:
            stay &= view.ok.any(axis=1)
        if node not in keep:
            rows = [unary[node].T, *(np.where(v.ok, d, np.inf) for v in views for d in v.delta)]
            rows += [np.where(v.ok, 0.0, np.inf) for v in views if not len(v.delta)]
            stay[_dominated(np.concatenate(rows, axis=1), stay)] = False
        if stay.all():
            continue
        left = np.flatnonzero(stay)
        allowed[node], unary[node] = allowed[node][left], unary[node][:, left]
        for pair in around[node]:
            cost = pairs[pair]
            pairs[pair] = (PairCost(cost.delta[:, left], cost.ok[left]) if pair[0] == node
                           else PairCost(cost.delta[:, :, left], cost.ok[:, left]))
            waiting.add(pair[0] + pair[1] - node)
    return Graph(tuple(allowed), tuple(unary), pairs, graph.moved, graph.is_sum)


def _dominated(rows: FloatArray, stay: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return which of the rows [K, M] that `stay` have another of them ≤ in every column (of equals the first wins)."""
    index = np.flatnonzero(stay)
    rows = rows[index]
    count = index.size
    if count < 2:
        return index[:0]
    below = np.empty((count, count), dtype=np.bool_)
    block = max(1, (1 << 22) // rows.size)
    for at in range(0, count, block):
        below[at:at + block] = (rows[at:at + block, None, :] <= rows[None, :, :]).all(axis=2)
    beats = below & ~(below.T & np.tri(count, dtype=np.bool_))
    return index[beats.any(axis=0)]


def _price(costs: list[FloatArray], merged: Edges, combine: Sequence[Combine],
           choice: npt.NDArray[np.int16]) -> FloatArray:
    """Return the criteria [R, C] of the choices [R, N] from the unrounded costs."""
    is_max = np.array([how == "max" for how in combine])
    values = costs[0][choice[:, 0]]
    for node, cost in enumerate(costs[1:], start=1):
        own = cost[choice[:, node]]
        values = np.where(is_max, np.maximum(values, own), values + own)
    for (u, v), pair in merged.items():
        values[:, 0] += pair[choice[:, u], choice[:, v]]
    return values
