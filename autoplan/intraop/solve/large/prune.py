"""Strategies that no better choice uses: reduced-cost fixing from the bound that message passing proves.

When a node is visited, its belief less the belief's minimum is how much the bound rises if a strategy is forced (all
trees of the decomposition through a node share its belief). Where bound + rise exceeds the cost of a known choice the
strategy can go.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Core, Ints
from autoplan.intraop.solve.large.jit import kernel
from autoplan.intraop.solve.large.messages import beliefs, send, sweep, to_zero
from autoplan.intraop.solve.large.model import Model
from autoplan.intraop.solve.large.prices import priced
from autoplan.intraop.solve.large.relax import finite

_ROUNDING = 1e-9  # relative to the cost: strategies this close to it stay
_SWEEPS = 30


@kernel
def rises(model: Model, cost: FloatArray, message: FloatArray) -> FloatArray:
    """Return by how much the last sweep's bound rises, at least, if a strategy is forced. One more sweep is made."""
    rise = np.zeros(cost.size)
    for turn in range(2):
        for step in range(model.size.size):
            node = step if turn == 0 else model.size.size - 1 - step
            belief = beliefs(model, cost, message, node)
            to_zero(belief)
            at = model.node_at[node]
            for s in range(belief.size):
                rise[at + s] = max(rise[at + s], belief[s])
            send(model, belief, message, node, turn == 0)
    return rise


def prune(core: Core, model: Model, price: FloatArray, cost: float) -> Core:
    """Return the core with strategies forbidden that no choice cheaper than `cost` (constant included) uses.

    price: on memory, as `relax` found it.
    """
    soft = finite(model)
    total = priced(soft, soft.node_cost, price)
    message = np.zeros(int(model.size[np.repeat(np.arange(model.size.size), np.diff(model.arc_at))].sum()))
    choice: Ints = np.zeros(model.size.size, np.int64)
    bound = -np.inf
    for _ in range(_SWEEPS):
        bound = sweep(soft, total, message, choice)
    bound += core.constant - float((price * core.slack).sum())
    margin = cost + _ROUNDING * abs(cost)
    lost = bound + rises(soft, total, message) > margin
    node_cost = np.where(lost, np.inf, core.node_cost)
    edge_cost = core.edge_cost.copy()
    if edge_cost.min(initial=0.0) >= 0.0:
        prune_pairs(core.edge_u, core.edge_v, core.edge_at, edge_cost, core.node_at, core.node_cost,
                    margin - core.constant)
    return replace(core, node_cost=node_cost, edge_cost=edge_cost)


@kernel
def prune_pairs(edge_u: Ints, edge_v: Ints, edge_at: Ints, edge_cost: FloatArray, node_at: Ints, node_cost: FloatArray,
                most: float) -> None:
    """Forbid pairs that alone cost, with the least of all other nodes, more than `most`. Edges must not be negative."""
    least = np.empty(node_at.size - 1)
    for node in range(least.size):
        least[node] = np.inf
        for s in range(node_at[node], node_at[node + 1]):
            least[node] = min(least[node], node_cost[s])
        most -= least[node]
    for e in range(edge_u.size):
        u, v, at = edge_u[e], edge_v[e], edge_at[e]
        for s in range(node_at[u], node_at[u + 1]):
            for t in range(node_at[v], node_at[v + 1]):
                if edge_cost[at] + (node_cost[s] - least[u]) + (node_cost[t] - least[v]) > most:
                    edge_cost[at] = np.inf
                at += 1
