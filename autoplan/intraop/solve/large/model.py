"""A core laid out for the search: every edge from both ends, every node's memory segments side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Core, Ints
from autoplan.intraop.solve.large.jit import kernel


class Model(NamedTuple):
    """size, node_at [N]: strategies of a node and where they begin in node_cost. arc_at [N + 1]: the arcs of a node,
    each edge being two; arc_to: the other node; arc_back: the same edge's arc from there; arc_cost_at: where its costs
    begin in arc_cost, laid out [strategy of arc_to, own strategy]; arc_message_at: where a vector over own strategies
    would begin if all arcs had one. seg_of [N + 1]: the memory segments of a node; seg_low, seg_high: low ≤ t <
    high; seg_at: where its bytes by strategy begin in usage. slack [T]: the limits.
    """

    size: Ints
    node_at: Ints
    node_cost: FloatArray
    arc_at: Ints
    arc_to: Ints
    arc_back: Ints
    arc_cost_at: Ints
    arc_cost: FloatArray
    arc_message_at: Ints
    seg_of: Ints
    seg_low: Ints
    seg_high: Ints
    seg_at: Ints
    usage: FloatArray
    slack: FloatArray


def build_model(core: Core) -> Model:
    """Return the search's layout of a core; forbidden costs stay infinite."""
    sizes = np.diff(core.node_at)
    ends = np.concatenate([core.edge_u, core.edge_v])
    others = np.concatenate([core.edge_v, core.edge_u])
    order = np.lexsort((others, ends))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    edges = core.edge_u.size
    partner = np.concatenate([np.arange(edges, 2 * edges), np.arange(edges)])
    own, other = ends[order], others[order]
    entries = sizes[own] * sizes[other]
    cost_at = np.cumsum(entries) - entries
    arc_cost = np.empty(int(entries.sum()))
    lay_out(core.edge_at, core.edge_cost, sizes[core.edge_u], sizes[core.edge_v], rank, cost_at, arc_cost)
    arc_at, seg_of = np.zeros(sizes.size + 1, np.int64), np.zeros(sizes.size + 1, np.int64)
    np.cumsum(np.bincount(own, minlength=sizes.size), out=arc_at[1:])
    np.cumsum(np.bincount(core.seg_node, minlength=sizes.size), out=seg_of[1:])
    return Model(sizes, core.node_at[:-1].copy(), core.node_cost, arc_at, other, rank[partner[order]], cost_at,
                 arc_cost, np.cumsum(sizes[own]) - sizes[own], seg_of, core.seg_low, core.seg_high, core.seg_at,
                 core.usage, core.slack)


@kernel
def lay_out(edge_at: Ints, edge_cost: FloatArray, rows: Ints, columns: Ints, rank: Ints, cost_at: Ints,
            arc_cost: FloatArray) -> None:
    """Write each edge's matrix for both of its arcs: [other, own]."""
    for e in range(rows.size):
        first, second = cost_at[rank[e]], cost_at[rank[rows.size + e]]
        for s in range(rows[e]):
            for t in range(columns[e]):
                value = edge_cost[edge_at[e] + s * columns[e] + t]
                arc_cost[first + t * rows[e] + s] = value
                arc_cost[second + s * columns[e] + t] = value


@kernel
def room_of(model: Model, choice: Ints) -> FloatArray:
    """Return the bytes left at each time."""
    change = np.zeros(model.slack.size + 1)
    for node in range(choice.size):
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            used = model.usage[model.seg_at[i] + choice[node]]
            change[model.seg_low[i]] += used
            change[model.seg_high[i]] -= used
    room = np.empty(model.slack.size)
    used = 0.0
    for t in range(room.size):
        used += change[t]
        room[t] = model.slack[t] - used
    return room


@kernel
def cost_of(model: Model, choice: Ints) -> float:
    """Return the seconds of a choice."""
    total = 0.0
    for node in range(choice.size):
        total += model.node_cost[model.node_at[node] + choice[node]]
        for a in range(model.arc_at[node], model.arc_at[node + 1]):
            other = model.arc_to[a]
            if other > node:
                total += model.arc_cost[model.arc_cost_at[a] + choice[other] * model.size[node] + choice[node]]
    return total
