"""The problem while it is being reduced: a graph that changes in place, in arrays that compiled kernels can work on.

Edge e has two half-edges: 2e at its first node (whose strategies are the matrix's rows) and 2e + 1 at its second; each
node has a linked list of its half-edges and one of its memory segments. What a reduction decides is written to a log:
records `choice[node] = table[choice[a] · width + choice[b]]`, read backwards by `undo`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoplan.intraop.arrays import offsets
from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Core, Ints
from autoplan.intraop.solve.large.jit import kernel, part

NONE = -1
MATRIX, USAGE, LOG = 0, 1, 2  # indices of `Graph.top`
RECORD = 5  # header entries of a log record: node, a, b, width, length of the table


class Graph(NamedTuple):
    """size [N]: strategies left (0: the node is gone). cost_at, head, degree, memory [N]: where a node's costs begin,
    its first half-edge, its number of edges, its first memory segment. cost: seconds by strategy. end, next, prev [2E]:
    a half-edge's node and its neighbours in that node's list. matrix_at [E], matrix: row-major costs of an edge. fresh,
    bound [E]: whether the matrix changed since it was last looked at; 1 if the first node decides the second, 2 if the
    second decides the first, 3 both. low, high, usage_at, chain [M], usage: segments low ≤ t < high, their bytes by
    strategy, the next segment of the node. log; top: how much of `matrix`, `usage` and `log` is in use. constant [1]:
    seconds of the nodes that are gone.
    """

    size: Ints
    cost_at: Ints
    head: Ints
    degree: Ints
    memory: Ints
    cost: FloatArray
    end: Ints
    next: Ints
    prev: Ints
    matrix_at: Ints
    matrix: FloatArray
    fresh: Ints
    bound: Ints
    low: Ints
    high: Ints
    usage_at: Ints
    chain: Ints
    usage: FloatArray
    log: npt.NDArray[np.int32]
    top: Ints
    constant: FloatArray


def build(core: Core) -> Graph:
    """Return the graph of a problem: parallel edges added up, self-loops priced in their nodes."""
    sizes = np.diff(core.node_at)
    cost = core.node_cost.copy()
    for e in np.flatnonzero(core.edge_u == core.edge_v).tolist():
        node, at = int(core.edge_u[e]), int(core.edge_at[e])
        diagonal = core.edge_cost[at:at + sizes[node]**2:sizes[node] + 1]
        cost[core.node_at[node]:core.node_at[node + 1]] += diagonal
    proper = np.flatnonzero(core.edge_u != core.edge_v)
    u, v = core.edge_u[proper], core.edge_v[proper]
    proper = proper[np.lexsort((np.maximum(u, v), np.minimum(u, v)))]
    u, v = core.edge_u[proper], core.edge_v[proper]
    end, matrix_at, matrix = merge(u, v, core.edge_at[proper], core.edge_cost, sizes)
    n, m, edges = sizes.size, core.seg_node.size, matrix_at.size
    graph = Graph(
        sizes.copy(), core.node_at[:-1].copy(), np.full(n, NONE), np.zeros(n, np.int64), np.full(n, NONE), cost,
        end, np.full(2 * edges, NONE), np.full(2 * edges, NONE), matrix_at, matrix, np.ones(edges, np.int64),
        np.zeros(edges, np.int64), core.seg_low.copy(), core.seg_high.copy(), core.seg_at.copy(), np.full(m, NONE),
        core.usage.copy(), np.zeros(4 * cost.size + 1024, np.int32),
        np.array([matrix.size, core.usage.size, 0]), np.array([core.constant]))
    link(graph, core.seg_node)
    return graph


@kernel
def merge(edge_u: Ints, edge_v: Ints, edge_at: Ints, edge_cost: FloatArray, sizes: Ints,
          ) -> tuple[Ints, Ints, FloatArray]:
    """Add up the parallel ones of edges that are sorted by their nodes."""
    count = edge_u.size
    end, at = np.empty(2 * count, np.int64), np.empty(count, np.int64)
    last, top = -1, 0
    for e in range(count):
        same = last >= 0 and ((end[2 * last] == edge_u[e] and end[2 * last + 1] == edge_v[e])
                              or (end[2 * last] == edge_v[e] and end[2 * last + 1] == edge_u[e]))
        if not same:
            last += 1
            end[2 * last], end[2 * last + 1], at[last] = edge_u[e], edge_v[e], top
            top += sizes[edge_u[e]] * sizes[edge_v[e]]
    matrix = np.zeros(top)
    last = -1
    for e in range(count):
        same = last >= 0 and ((end[2 * last] == edge_u[e] and end[2 * last + 1] == edge_v[e])
                              or (end[2 * last] == edge_v[e] and end[2 * last + 1] == edge_u[e]))
        if not same:
            last += 1
        straight = end[2 * last] == edge_u[e]
        rows, columns = sizes[end[2 * last]], sizes[end[2 * last + 1]]
        for s in range(rows):
            for t in range(columns):
                source = s * columns + t if straight else t * rows + s
                matrix[at[last] + s * columns + t] += edge_cost[edge_at[e] + source]
    return end[:2 * (last + 1)].copy(), at[:last + 1].copy(), matrix


@kernel
def link(graph: Graph, term_node: Ints) -> None:
    """Hang every half-edge and memory segment on its node."""
    for h in range(graph.end.size - 1, -1, -1):
        attach(graph, h, graph.end[h])
    for i in range(term_node.size - 1, -1, -1):
        graph.chain[i] = graph.memory[term_node[i]]
        graph.memory[term_node[i]] = i


@part
def attach(graph: Graph, h: int, node: int) -> None:
    """Put a half-edge at the front of a node's list."""
    first = graph.head[node]
    graph.end[h], graph.next[h], graph.prev[h] = node, first, -1
    if first >= 0:
        graph.prev[first] = h
    graph.head[node] = h
    graph.degree[node] += 1


@part
def detach(graph: Graph, h: int) -> None:
    """Take a half-edge out of its node's list."""
    node, after, before = graph.end[h], graph.next[h], graph.prev[h]
    if before >= 0:
        graph.next[before] = after
    else:
        graph.head[node] = after
    if after >= 0:
        graph.prev[after] = before
    graph.degree[node] -= 1


@part
def half_edge(graph: Graph, a: int, b: int) -> int:
    """Return the half-edge at `a` of the edge between `a` and `b`, or −1; the shorter list is searched."""
    swap = graph.degree[b] < graph.degree[a]
    near, far = (b, a) if swap else (a, b)
    h = graph.head[near]
    while h >= 0:
        if graph.end[h ^ 1] == far:
            return h ^ 1 if swap else h
        h = graph.next[h]
    return -1


@part
def strides(graph: Graph, h: int) -> tuple[int, int, int]:
    """Return (start, step of own strategies, step of the other's) of the matrix seen from a half-edge."""
    if h & 1 == 0:
        return graph.matrix_at[h >> 1], graph.size[graph.end[h ^ 1]], 1
    return graph.matrix_at[h >> 1], 1, graph.size[graph.end[h]]


@part
def has_room(graph: Graph, matrix: int, usage: int, log: int) -> bool:
    """Tell whether so many more entries fit."""
    return (graph.top[0] + matrix <= graph.matrix.size and graph.top[1] + usage <= graph.usage.size
            and graph.top[2] + log <= graph.log.size)


@part
def write_header(graph: Graph, node: int, a: int, b: int, width: int, length: int) -> None:
    """Close a log record whose table of `length` entries was put at the top of the log."""
    at = graph.top[2] + length
    graph.log[at], graph.log[at + 1], graph.log[at + 2] = node, a, b
    graph.log[at + 3], graph.log[at + 4] = width, length
    graph.top[2] = at + 5


@kernel
def undo(log: npt.NDArray[np.int32], top: int, choice: Ints) -> None:
    """Complete a choice of the nodes that are left to one of all nodes, in place, by reading the log backwards."""
    at = top
    while at > 0:
        node, a, b = log[at - 5], log[at - 4], log[at - 3]
        width, length = log[at - 2], log[at - 1]
        index = 0
        if a >= 0:
            index += choice[a] * width
        if b >= 0:
            index += choice[b]
        choice[node] = log[at - 5 - length + index]
        at -= 5 + length


def grow(graph: Graph) -> Graph:
    """Return the graph with room in each pool for as much again as is in use; dead matrices and usages are dropped."""
    ends = graph.end.reshape(-1, 2)
    alive = np.flatnonzero(alive_edges(graph))
    sizes = graph.size[ends[alive, 0]] * graph.size[ends[alive, 1]]
    matrix, at = _packed(graph.matrix, graph.matrix_at[alive], sizes)
    graph.matrix_at[alive] = at
    owner = segment_owners(graph)
    alive = np.flatnonzero(owner >= 0)
    usage, place = _packed(graph.usage, graph.usage_at[alive], graph.size[owner[alive]])
    graph.usage_at[alive] = place
    log = np.zeros(2 * graph.top[LOG] + (1 << 21), np.int32)
    log[:graph.top[LOG]] = graph.log[:graph.top[LOG]]
    graph.top[MATRIX], graph.top[USAGE] = sizes.sum(), graph.size[owner[alive]].sum()
    return graph._replace(matrix=matrix, usage=usage, log=log)


def _packed(pool: FloatArray, at: Ints, sizes: Ints) -> tuple[FloatArray, Ints]:
    place = offsets(sizes)
    packed = np.zeros(2 * place[-1] + (1 << 21))
    copy_blocks(pool, at, sizes, packed, place)
    return packed, place[:-1]


@kernel
def copy_blocks(source: FloatArray, at: Ints, sizes: Ints, target: FloatArray, place: Ints) -> None:
    """Copy blocks of `sizes` entries from `source[at]` to `target[place]`."""
    for i in range(at.size):
        for k in range(sizes[i]):
            target[place[i] + k] = source[at[i] + k]


@kernel
def alive_edges(graph: Graph) -> Ints:
    """Return 1 for each edge that hangs on a node, else 0."""
    alive = np.zeros(graph.matrix_at.size, np.int64)
    for node in range(graph.size.size):
        h = graph.head[node] if graph.size[node] > 0 else -1
        while h >= 0:
            alive[h >> 1] = 1
            h = graph.next[h]
    return alive


@kernel
def segment_owners(graph: Graph) -> Ints:
    """Return the node of each memory segment, −1 for those that are gone."""
    owner = np.full(graph.low.size, -1)
    for node in range(graph.size.size):
        i = graph.memory[node] if graph.size[node] > 0 else -1
        while i >= 0:
            owner[i] = node
            i = graph.chain[i]
    return owner
