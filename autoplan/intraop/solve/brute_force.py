"""Every choice, priced: the reference that the other solvers are tested against, and enough for tiny problems."""

from __future__ import annotations

import math
import time

import numpy as np

from autoplan.intraop.problem import FloatArray, IntraOpProblem, Solution, solution

MAX_CHOICES = 1 << 22


def brute_force(problem: IntraOpProblem) -> Solution:
    """Return the cheapest feasible choice, of equal costs the lexicographically first.

    Raises ValueError for more than `MAX_CHOICES` choices.
    """
    begin = time.perf_counter()
    shape = tuple(c.size for c in problem.costs)
    if math.prod(shape) > MAX_CHOICES:
        raise ValueError(f"{math.prod(shape)} choices are too many to try one by one (at most {MAX_CHOICES})")
    grid = np.indices(shape, sparse=True)
    total: FloatArray = np.zeros(shape)
    for at, cost in zip(grid, problem.costs, strict=True):
        total = total + cost[at]
    for (u, v), cost in zip(problem.edges, problem.edge_costs, strict=True):
        total = total + cost[grid[u], grid[v]]
    for time_point in sorted({t.start for t in problem.usages if t.start < t.end}):
        level: FloatArray = np.zeros(shape)
        for term in problem.usages:
            if term.start <= time_point < term.end:
                level = level + term.usage[grid[term.node]]
        total = np.where(level - problem.limit > problem.tolerance, np.inf, total)
    best = np.unravel_index(int(total.argmin()), shape)
    found = None if not np.isfinite(total[best]) else [int(s) for s in best]
    return solution(problem, found, "infeasible" if found is None else "optimal", "brute_force",
                    seconds=time.perf_counter() - begin)
