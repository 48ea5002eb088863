"""What the exact algorithms share: merged edges and a greedy elimination order."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from autoplan.intraop.problem import FloatArray

Edges = dict[tuple[int, int], FloatArray]


def merge_edges(sizes: Sequence[int], edges: Iterable[tuple[int, int]], edge_costs: Iterable[FloatArray],
                ) -> tuple[Edges, dict[int, FloatArray]]:
    """Sum parallel edges into one matrix a pair `u < v`; self-loops become a vector a node.

    sizes: strategies a node. Returns `({(u, v): [K_u, K_v]}, {node: [K_node]})`.
    """
    merged: Edges = {}
    loops: dict[int, FloatArray] = {}
    for (u, v), cost in zip(edges, edge_costs, strict=True):
        if u == v:
            loops[u] = loops.get(u, np.zeros(sizes[u])) + cost.diagonal()
            continue
        pair, matrix = ((u, v), cost) if u < v else ((v, u), cost.T)
        merged[pair] = merged[pair] + matrix if pair in merged else matrix
    return merged, loops


def elimination_order(sizes: Sequence[int], edges: Iterable[tuple[int, int]], keep: Sequence[int] = (),
                      max_entries: float = math.inf) -> tuple[tuple[int, ...], float]:
    """Return a greedy min-weight elimination order of the nodes not in `keep`, and the entries of all its tables.

    The weight of a node is the size of the table its elimination builds: its own strategies times those of its
    neighbours in the graph so far (min-weight; Kask et al. 2011, "Pushing the power of stochastic greedy ordering
    schemes"). Ties go to the lower index. The table over the kept nodes counts too. The search stops as soon as the
    entries exceed `max_entries`; the order is then incomplete.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for u, v in edges:
        if u != v:
            neighbours[u].add(v)
            neighbours[v].add(u)

    def weight(node: int) -> float:
        return float(sizes[node]) * math.prod(float(sizes[other]) for other in neighbours[node])

    entries = math.prod(float(sizes[node]) for node in keep)
    open_nodes = set(range(len(sizes))) - set(keep)
    current = {node: weight(node) for node in open_nodes}
    heap = [(w, node) for node, w in current.items()]
    heapq.heapify(heap)
    order: list[int] = []
    while heap and entries <= max_entries:
        w, node = heapq.heappop(heap)
        if node not in open_nodes or current[node] != w:
            continue
        open_nodes.remove(node)
        order.append(node)
        entries += w
        around = neighbours[node]
        for other in around:
            neighbours[other] |= around
            neighbours[other] -= {other, node}
        for other in around & open_nodes:
            current[other] = weight(other)
            heapq.heappush(heap, (current[other], other))
    return tuple(order), entries
