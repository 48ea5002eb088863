"""Exact bucket elimination (Dechter 1999) with dense min-plus tables: the unconstrained optimum, and marginal tables.

Eliminating a node sums all tables that mention it and takes the minimum over its strategies; the argmin is kept, so
that choices are read back in reverse order. Time and memory are Σ over eliminated nodes of the product of the
strategies of the node and its neighbours at that moment (`elimination_order` tells it beforehand). The usage limit is
not seen here: the optimum is a lower bound of the limited problem, and its optimum if it happens to fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray, IntraOpProblem, Solution, solution
from autoplan.intraop.solve.graph import elimination_order, merge_edges

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Table:
    """The least cost for each assignment of the kept nodes.

    keep: the kept nodes. values: [K_keep[0], K_keep[1], …] seconds over all assignments of the other nodes, inf where
    there is none. `allowed` and `steps` hold the back-pointers that `choice` reads: per node the strategies that
    aren't forbidden, and per eliminated node `(node, its neighbours, [K_neighbours…] best allowed strategy)`.
    """

    keep: tuple[int, ...]
    values: FloatArray
    allowed: tuple[IndexArray, ...]
    steps: tuple[tuple[int, tuple[int, ...], IndexArray], ...]

    def choice(self, *kept: int) -> tuple[int, ...]:
        """Return one strategy a node that attains `values[kept]`. Raises ValueError if that entry is inf."""
        if not math.isfinite(self.values[kept]):
            raise ValueError(f"no assignment with the kept nodes {self.keep} at {kept}")
        at = [0] * len(self.allowed)
        for node, strategy in zip(self.keep, kept, strict=True):
            at[node] = int(np.searchsorted(self.allowed[node], strategy))
        for node, scope, best in reversed(self.steps):
            at[node] = int(best[tuple(at[other] for other in scope)])
        return tuple(int(a[i]) for a, i in zip(self.allowed, at, strict=True))


def tabulate(problem: IntraOpProblem, keep: Sequence[int] = ()) -> Table:
    """Return the least cost for every assignment of the nodes `keep`, over all assignments of the others.

    Usage terms are ignored. Of equal costs the lowest strategy index wins at each elimination. Raises ValueError if
    `keep` repeats a node.
    """
    if len(set(keep)) != len(keep):
        raise ValueError(f"kept nodes repeat: {tuple(keep)}")
    sizes = [c.size for c in problem.costs]
    merged, loops = merge_edges(sizes, problem.edges, problem.edge_costs)
    unary = [c + loops[i] if i in loops else c for i, c in enumerate(problem.costs)]
    allowed = tuple(np.flatnonzero(np.isfinite(c)) for c in unary)
    full = tuple(problem.costs[i].size for i in keep)
    if not all(a.size for a in allowed):
        return Table(tuple(keep), np.full(full, np.inf), allowed, ())

    order, _ = elimination_order([a.size for a in allowed], merged, keep)
    rank = {node: r for r, node in enumerate((*order, *keep))}
    # A factor is (scope, table); scopes are sorted by rank, so that the node to eliminate is always axis 0.
    buckets: list[list[tuple[tuple[int, ...], FloatArray]]] = [[] for _ in unary]
    rest: list[tuple[tuple[int, ...], FloatArray]] = []
    for node, cost in enumerate(unary):
        (buckets[node] if rank[node] < len(order) else rest).append(((node,), cost[allowed[node]]))
    for (u, v), cost in merged.items():
        ends, matrix = ((u, v), cost) if rank[u] < rank[v] else ((v, u), cost.T)
        factor = (ends, matrix[np.ix_(allowed[ends[0]], allowed[ends[1]])])
        (buckets[ends[0]] if rank[ends[0]] < len(order) else rest).append(factor)

    steps = []
    for node in order:
        scope = tuple(sorted({n for s, _ in buckets[node] for n in s}, key=rank.__getitem__))
        table = _add(buckets[node], scope)
        best = table.argmin(axis=0)
        message = np.take_along_axis(table, best[None], axis=0)[0]
        steps.append((node, scope[1:], best))
        (buckets[scope[1]] if len(scope) > 1 and rank[scope[1]] < len(order) else rest).append((scope[1:], message))
    values = np.full(full, np.inf)
    values[np.ix_(*(allowed[i] for i in keep))] = np.broadcast_to(
        _add(rest, tuple(keep)), tuple(allowed[i].size for i in keep))
    return Table(tuple(keep), values, allowed, tuple(steps))


def _add(factors: list[tuple[tuple[int, ...], FloatArray]], scope: tuple[int, ...]) -> FloatArray:
    """Sum factors over `scope` by broadcasting, small ones first. Each factor's scope is a subsequence of `scope`."""
    total: FloatArray = np.zeros((1,) * len(scope))
    for own, table in sorted(factors, key=lambda factor: factor[1].size):
        total = total + table.reshape([table.shape[own.index(n)] if n in own else 1 for n in scope])
    return total


def minimum(problem: IntraOpProblem) -> Solution:
    """Return the optimum of the problem without its usage limit: a lower bound of the problem with it.

    The status is `optimal` or `infeasible` of the unlimited problem; `problem.evaluate` tells whether the choice fits.
    """
    begin = time.perf_counter()
    table = tabulate(problem)
    if not np.isfinite(table.values):
        return solution(problem, None, "infeasible", "elimination", seconds=time.perf_counter() - begin)
    return solution(problem, table.choice(), "optimal", "elimination", seconds=time.perf_counter() - begin)
