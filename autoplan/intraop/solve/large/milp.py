"""A core as a MILP in the tight form (see `solve.ilp`), with memory rows added only once they are violated.

Scaled as there: costs to at most `_COST_RANGE`, memory rows to their slack.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Core, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_COST_RANGE = 1e5
_ROWS_A_ROUND = 8


@dataclass(frozen=True, eq=False)
class Outcome:
    """choice: of the core's nodes, None if none was found. bound: seconds no choice can beat (inf: none exists)."""

    choice: Ints | None
    bound: float


@dataclass(frozen=True, eq=False)
class _Programme:
    """The part of the MILP that stays: columns are strategies, then the allowed pairs of each edge."""

    cost: FloatArray
    upper: FloatArray
    rows: csr_array
    rhs: FloatArray
    scale: float
    offset: float


def solve_core(core: Core, deadline: float) -> Outcome:
    """Return the optimum of a core, or the bound that is known when the monotonic clock passes `deadline`."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not core.num_nodes:
        return Outcome(np.zeros(0, np.int64), core.constant)
    programme = _programme(core)
    binaries = core.node_cost.size
    integrality = np.zeros(programme.cost.size, np.int8)
    integrality[:binaries] = 1
    constraints = [LinearConstraint(programme.rows, programme.rhs, programme.rhs)]
    used: set[int] = set()
    bound = -math.inf
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return Outcome(None, bound)
        result = milp(programme.cost, integrality=integrality, bounds=Bounds(0.0, programme.upper),
                      constraints=constraints, options={"mip_rel_gap": 0.0, "time_limit": left})
        if result.status == 2:
            return Outcome(None, math.inf)
        if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
            bound = max(bound, programme.scale * float(result.mip_dual_bound) + programme.offset)
        if result.x is None:
            return Outcome(None, bound)
        choice = first_of_each(result.x[:binaries], core.node_at)
        room = core.room(choice)
        if (room >= 0).all():
            return Outcome(choice, core.cost(choice) if result.status == 0 else bound)
        new = worst_times(room, used)
        if not new:
            return Outcome(None, bound)
        used.update(new)
        rows = memory_rows(core, new)
        constraints.append(LinearConstraint(rows, -np.inf, core.slack[new] / _units(core, new)))


def first_of_each(values: FloatArray, node_at: Ints) -> Ints:
    """Return the strategy of the greatest value of each node."""
    best = np.maximum.reduceat(values, node_at[:-1])
    hit = np.flatnonzero(values == np.repeat(best, np.diff(node_at)))
    owner = np.repeat(np.arange(node_at.size - 1), np.diff(node_at))[hit]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    chosen: Ints = hit[first] - node_at[:-1]
    return chosen


def worst_times(room: FloatArray, used: set[int]) -> list[int]:
    """Return the deepest time of each violated window, at most `_ROWS_A_ROUND` that have no row yet."""
    over = room < 0
    edges = np.flatnonzero(np.diff(over, prepend=False, append=False))
    deepest = [int(a + room[a:b].argmin()) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    deepest += [int(t) for t in np.argsort(room) if over[t]]
    ranked = sorted(dict.fromkeys(deepest), key=lambda t: float(room[t]))
    return [t for t in ranked if t not in used][:_ROWS_A_ROUND]


def _units(core: Core, times: list[int]) -> FloatArray:
    return np.maximum(core.slack[times], 1.0)


def memory_rows(core: Core, times: list[int]) -> csr_array:
    """Return the bytes each strategy holds at these times, as rows in units of the slack."""
    from scipy.sparse import csr_array

    row, column, value = [], [], []
    sizes = np.diff(core.node_at)
    for number, (at, unit) in enumerate(zip(times, _units(core, times).tolist(), strict=True)):
        for i in np.flatnonzero((core.seg_low <= at) & (at < core.seg_high)).tolist():
            node = core.seg_node[i]
            row.append(np.full(sizes[node], number))
            column.append(core.node_at[node] + np.arange(sizes[node]))
            value.append(core.usage[core.seg_at[i]:core.seg_at[i] + sizes[node]] / unit)
    return csr_array((np.concatenate(value), (np.concatenate(row), np.concatenate(column))),
                     shape=(len(times), core.node_cost.size + int(np.isfinite(core.edge_cost).sum())))


def _programme(core: Core) -> _Programme:
    from scipy.sparse import csr_array

    sizes = np.diff(core.node_at)
    num_nodes, binaries = sizes.size, core.node_cost.size
    entries = np.flatnonzero(np.isfinite(core.edge_cost))
    edge = np.repeat(np.arange(core.edge_u.size), sizes[core.edge_u] * sizes[core.edge_v])[entries]
    u, v = core.edge_u[edge], core.edge_v[edge]
    s, t = np.divmod(entries - core.edge_at[edge], sizes[v])
    widths = sizes[core.edge_u] + sizes[core.edge_v]
    first_row = num_nodes + np.cumsum(widths) - widths
    column = binaries + np.arange(entries.size)
    side = np.arange(int(widths.sum()))
    owner = np.repeat(np.arange(core.edge_u.size), widths)
    inner = side - (first_row - num_nodes)[owner]
    own = np.where(inner < sizes[core.edge_u[owner]], core.node_at[core.edge_u[owner]] + inner,
                   core.node_at[core.edge_v[owner]] + inner - sizes[core.edge_u[owner]])
    row = np.concatenate([np.repeat(np.arange(num_nodes), sizes), first_row[edge] + s,
                          first_row[edge] + sizes[u] + t, num_nodes + side])
    place = np.concatenate([np.arange(binaries), column, column, own])
    value = np.concatenate([np.ones(binaries + 2 * entries.size), -np.ones(side.size)])
    rows = csr_array((value, (row, place)), shape=(num_nodes + side.size, binaries + entries.size))
    finite = np.isfinite(core.node_cost)
    least = np.minimum.reduceat(core.node_cost, core.node_at[:-1])
    cost = np.concatenate([np.where(finite, core.node_cost, 0.0) - np.where(finite, np.repeat(least, sizes), 0.0),
                           core.edge_cost[entries]])
    scale = float(cost.max(initial=0.0)) / _COST_RANGE or 1.0
    return _Programme(cost / scale, np.concatenate([finite.astype(np.float64), np.ones(entries.size)]), rows,
                      np.concatenate([np.ones(num_nodes), np.zeros(side.size)]), scale,
                      core.constant + float(least.sum()))
