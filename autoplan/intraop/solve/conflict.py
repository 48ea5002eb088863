"""Why nothing fits: where even the least memory exceeds the limit, and who holds it."""

from __future__ import annotations

import numpy as np

from autoplan.intraop.arrays import ProblemArrays
from autoplan.intraop.problem import Conflict


def conflict_of(arrays: ProblemArrays, *, forbidden: bool) -> Conflict | None:
    """Return why an infeasible problem is so, None if neither memory nor forbidden costs tell it alone.

    Memory comes first: the first window in which the least that the nodes can hold exceeds the limit most. A node's
    least is taken at each time over its strategies of finite cost. forbidden: no choice has a finite cost.
    """
    spent = Conflict(None, None, 0.0) if forbidden else None
    live = np.flatnonzero(arrays.term_start < arrays.term_end)
    if not live.size:
        return spent
    times = np.unique(np.concatenate([arrays.term_start[live], arrays.term_end[live]]))
    level = np.zeros(times.size - 1)
    for node in np.unique(arrays.term_node[live]).tolist():
        allowed = np.isfinite(arrays.node_cost[arrays.node_at[node]:arrays.node_at[node + 1]])
        if not allowed.any():
            return Conflict(None, None, 0.0)
        held = np.zeros((int(allowed.sum()), level.size))
        for term in live[arrays.term_node[live] == node].tolist():
            low, high = np.searchsorted(times, [arrays.term_start[term], arrays.term_end[term]])
            held[:, low:high] += arrays.usage[arrays.term_at[term]:arrays.term_at[term + 1]][allowed, None]
        level += held.min(axis=0)
    worst = int(level.argmax())
    if level[worst] - arrays.limit <= arrays.tolerance:
        return spent
    lower = np.flatnonzero(level[worst:] < level[worst])
    end = worst + int(lower[0]) if lower.size else level.size
    return Conflict(int(times[worst]), int(times[end]), float(level[worst] - arrays.limit))


def holders(arrays: ProblemArrays, conflict: Conflict) -> tuple[int, ...]:
    """Return the nodes that hold memory in the conflict's window under every strategy, those that hold most first."""
    if conflict.start is None or not arrays.term_node.size:
        return ()
    least = np.minimum.reduceat(arrays.usage, arrays.term_at[:-1])
    live = (arrays.term_start <= conflict.start) & (conflict.start < arrays.term_end)
    held = np.bincount(arrays.term_node[live], least[live], arrays.num_nodes)
    order = np.argsort(-held, kind="stable")
    return tuple(order[:np.count_nonzero(held)].tolist())
