"""Dead-end elimination with usage dominance (Desmet et al. 1992; Goldstein 1994), here for memory as well as cost.

Strategy s of a node goes if some strategy r never holds more memory and is never dearer, whatever the neighbours do:

    cost_r − cost_s + Σ_edges max_t (M[r, t] − M[s, t]) ≤ 0,  usage_r ≤ usage_s on every segment.

In normalised matrices every row has a zero, so each term of the sum is ≥ 0 and the sum may stop once it is positive.
"""

from __future__ import annotations

import numpy as np

from autoplan.intraop.solve.large.contract import push
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.graph import Graph, strides
from autoplan.intraop.solve.large.jit import kernel, part
from autoplan.intraop.solve.large.sorting import sort_by


@kernel
def dominate(graph: Graph, queue: Ints, state: Ints, waiting: Ints, changed: Ints, first: int, budget: int) -> int:
    """Mark dominated strategies of the nodes `changed` from `first` on with infinite cost and queue their nodes.

    Returns the node to go on with after the budget of entries is spent; N when done.
    """
    for node in range(first, graph.size.size):
        if budget <= 0:
            return node
        if changed[node] == 0:
            continue
        changed[node] = 0
        if graph.size[node] < 2:
            continue
        spent, found = dominate_one(graph, node)
        budget -= spent
        if found:
            push(queue, state, waiting, node)
    return graph.size.size


@part
def dominate_one(graph: Graph, node: int) -> tuple[int, bool]:
    """Mark the dominated strategies of one node. Returns the entries looked at and whether any was marked."""
    size, at = graph.size[node], graph.cost_at[node]
    spent, found, hint = size * size, False, graph.head[node]
    order = np.arange(size)
    sort_by(graph.cost[at:at + size], order, size)
    for i in range(size - 1, -1, -1):
        s = order[i]
        for j in range(size):
            r = order[j]
            if graph.cost[at + r] > graph.cost[at + s] or graph.cost[at + r] == np.inf:
                break
            if r == s or not holds_less(graph, node, r, s):
                continue
            hint, steps = never_dearer(graph, node, r, s, hint)
            spent += steps
            if hint < 0:
                graph.cost[at + s] = np.inf
                found = True
                break
    return spent, found


@part
def holds_less(graph: Graph, node: int, r: int, s: int) -> bool:
    """Tell whether strategy r never holds more memory than s."""
    i = graph.memory[node]
    while i >= 0:
        if graph.usage[graph.usage_at[i] + r] > graph.usage[graph.usage_at[i] + s]:
            return False
        i = graph.chain[i]
    return True


@part
def never_dearer(graph: Graph, node: int, r: int, s: int, hint: int) -> tuple[int, int]:
    """Tell whether strategy r is never dearer than s: −1 if so, else the half-edge that shows it may be.

    hint: a half-edge to try first, or −1. Returns the entries looked at, too.
    """
    total = graph.cost[graph.cost_at[node] + r] - graph.cost[graph.cost_at[node] + s]
    steps = 0
    h = hint if hint >= 0 else graph.head[node]
    while h >= 0:
        start, own, far = strides(graph, h)
        worst = -np.inf
        size = graph.size[graph.end[h ^ 1]]
        for t in range(size):
            value = graph.matrix[start + s * own + t * far]
            if value < np.inf:
                worst = max(worst, graph.matrix[start + r * own + t * far] - value)
                if total + worst > 0.0:
                    return h, steps + t
        steps += size + 4
        if h == hint:
            hint = -1
            h = graph.head[node]
            continue
        total += worst
        h = graph.next[h]
    return -1, steps
