"""Many objectives on one graph: the unconstrained minima of V cost vectors at once.

Bucket elimination as in `elimination`, with the V objectives as a last array axis, so that the Python work of one
elimination serves them all. Only the minima are kept, no choices: this is for bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.graph import elimination_order


def minima(costs: Sequence[FloatArray], edges: Sequence[tuple[int, int]],
           edge_costs: Sequence[FloatArray]) -> FloatArray:
    """Return the least total cost under each of V objectives, [V].

    costs: per node [K_i, V]. edge_costs: per edge [K_u, K_v, V]; parallel edges add up. inf forbids a strategy or a
    pair; an objective without any allowed assignment has the minimum inf.
    """
    sizes = [cost.shape[0] for cost in costs]
    factors: list[tuple[tuple[int, ...], FloatArray]] = [((node,), cost) for node, cost in enumerate(costs)]
    factors += list(zip(edges, edge_costs, strict=True))
    order, _ = elimination_order(sizes, edges)
    total = np.zeros(costs[0].shape[1])
    for node in order:
        mine = [factor for factor in factors if node in factor[0]]
        factors = [factor for factor in factors if node not in factor[0]]
        scope = tuple(sorted({other for nodes, _ in mine for other in nodes} - {node}))
        least = _sum(mine, (node, *scope), sizes).min(axis=0)
        if scope:
            factors.append((scope, least))
        else:
            total = total + least
    return total


def _sum(factors: Sequence[tuple[tuple[int, ...], FloatArray]], scope: tuple[int, ...],
         sizes: Sequence[int]) -> FloatArray:
    """Add factors up over the nodes of `scope`, the smaller ones first."""
    result: FloatArray = np.zeros(1)
    for nodes, values in sorted(factors, key=lambda factor: factor[1].size):
        axes = np.argsort([scope.index(node) for node in nodes])
        shape = [sizes[node] if node in nodes else 1 for node in scope]
        result = result + values.transpose(*axes, len(nodes)).reshape(*shape, values.shape[-1])
    return result
