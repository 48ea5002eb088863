"""Reductions that follow from the costs alone, to a fixpoint: a work list of nodes whose surroundings changed.

* Row and column minima of a matrix move into the nodes; a matrix that is zero then is dropped.
* A strategy without an allowed partner on some edge goes (arc consistency).
* A node whose strategy another node's decides (one finite entry a row) is merged into it, with edges and memory.
* A memory-free node of degree ≤ 2 is eliminated: its best strategy is a table over its neighbours' strategies.
"""

from __future__ import annotations

import numpy as np

from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.graph import (
    Graph,
    attach,
    detach,
    half_edge,
    has_room,
    strides,
    write_header,
)
from autoplan.intraop.solve.large.jit import kernel, part

DONE, PAUSED, FULL, EMPTY = 0, 1, 2, 3  # what `propagate` returns


@part
def push(queue: Ints, state: Ints, waiting: Ints, node: int) -> None:
    """Put a node into the ring `queue` unless it waits there. state: first, count."""
    if waiting[node] == 0:
        waiting[node] = 1
        queue[(state[0] + state[1]) % queue.size] = node
        state[1] += 1


@part
def push_around(graph: Graph, queue: Ints, state: Ints, waiting: Ints, node: int) -> None:
    """Put a node's neighbours into the queue."""
    h = graph.head[node]
    while h >= 0:
        push(queue, state, waiting, graph.end[h ^ 1])
        h = graph.next[h]


@kernel
def propagate(graph: Graph, queue: Ints, state: Ints, waiting: Ints, changed: Ints, budget: int) -> int:
    """Work the queue off; `changed[node]` is set to 1 where costs, edges or memory change.

    Returns DONE, PAUSED (about `budget` entries were looked at), FULL (a pool must grow) or EMPTY (a node has no
    strategy left; it is `state[2]`).
    """
    while state[1] > 0:
        if budget <= 0:
            return 1
        node = queue[state[0]]
        state[0] = (state[0] + 1) % queue.size
        state[1] -= 1
        waiting[node] = 0
        if graph.size[node] == 0:
            continue
        budget -= normalise_around(graph, queue, state, waiting, changed, node) + 16
        if not has_room(graph, 0, 0, graph.size[node] + 8):
            push(queue, state, waiting, node)
            return 2
        if shrink(graph, node, changed):
            if graph.size[node] == 0:
                state[2] = node
                return 3
            push(queue, state, waiting, node)
            push_around(graph, queue, state, waiting, node)
            continue
        spent = merge_one(graph, queue, state, waiting, changed, node)
        if spent == 0:
            spent = eliminate(graph, queue, state, waiting, changed, node)
        if spent < 0:
            push(queue, state, waiting, node)
            return 2
        budget -= spent
    return 0


@part
def normalise_around(graph: Graph, queue: Ints, state: Ints, waiting: Ints, changed: Ints, node: int) -> int:
    """Normalise the fresh matrices around a node and drop those that are zero. Returns the entries looked at."""
    seen = 0
    h = graph.head[node]
    while h >= 0:
        after = graph.next[h]
        e = h >> 1
        seen += 1
        if graph.fresh[e] == 1:
            other = graph.end[h ^ 1]
            seen += 4 * graph.size[node] * graph.size[other]
            found = normalise(graph, e)
            changed[node] = changed[other] = 1
            if found & 2 != 0:
                push(queue, state, waiting, other)
            if found & 1 != 0:
                detach(graph, h)
                detach(graph, h ^ 1)
                push(queue, state, waiting, other)
        h = after
    return seen


@part
def normalise(graph: Graph, e: int) -> int:
    """Move row and then column minima of a matrix into the nodes; strategies without a partner get infinite cost.

    Then every row and column has a zero. Returns bits: 1 the matrix is zero, 2 a strategy lost its last partner.
    """
    u, v, at = graph.end[2 * e], graph.end[2 * e + 1], graph.matrix_at[e]
    rows, columns = graph.size[u], graph.size[v]
    cost_u, cost_v = graph.cost_at[u], graph.cost_at[v]
    zero, dead, first_decides, second_decides = True, False, True, True
    for s in range(rows):
        least = np.inf
        for t in range(columns):
            least = min(least, graph.matrix[at + s * columns + t])
        if least == np.inf:
            dead = True
            graph.cost[cost_u + s] = np.inf
        elif least != 0.0:
            graph.cost[cost_u + s] += least
            for t in range(columns):
                graph.matrix[at + s * columns + t] -= least
    for t in range(columns):
        least, finite = np.inf, 0
        for s in range(rows):
            value = graph.matrix[at + s * columns + t]
            least = min(least, value)
            if value < np.inf:
                finite += 1
        if finite > 1:
            second_decides = False
        if least == np.inf:
            dead = True
            graph.cost[cost_v + t] = np.inf
        elif least != 0.0:
            graph.cost[cost_v + t] += least
            for s in range(rows):
                graph.matrix[at + s * columns + t] -= least
    for s in range(rows):
        finite = 0
        for t in range(columns):
            value = graph.matrix[at + s * columns + t]
            if value < np.inf:
                finite += 1
            if value != 0.0:
                zero = False
        if finite > 1:
            first_decides = False
    graph.fresh[e] = 0
    graph.bound[e] = (1 if first_decides else 0) + (2 if second_decides else 0)
    return (1 if zero else 0) + (2 if dead else 0)


@part
def shrink(graph: Graph, node: int, changed: Ints) -> bool:
    """Remove the strategies of infinite cost from a node, its matrices and its memory; log which are left."""
    size, at = graph.size[node], graph.cost_at[node]
    keep = np.empty(size, np.int64)
    left = 0
    for s in range(size):
        if graph.cost[at + s] < np.inf:
            keep[left] = s
            left += 1
    if left == size:
        return False
    changed[node] = 1
    for i in range(left):
        graph.cost[at + i] = graph.cost[at + keep[i]]
        graph.log[graph.top[2] + i] = keep[i]
    write_header(graph, node, node, -1, 1, left)
    h = graph.head[node]
    while h >= 0:
        e, other = h >> 1, graph.size[graph.end[h ^ 1]]
        start = graph.matrix_at[e]
        if h & 1 == 0:
            for i in range(left):
                for t in range(other):
                    graph.matrix[start + i * other + t] = graph.matrix[start + keep[i] * other + t]
        else:
            for t in range(other):
                for i in range(left):
                    graph.matrix[start + t * left + i] = graph.matrix[start + t * size + keep[i]]
        graph.fresh[e] = 1
        changed[graph.end[h ^ 1]] = 1
        h = graph.next[h]
    j = graph.memory[node]
    while j >= 0:
        for i in range(left):
            graph.usage[graph.usage_at[j] + i] = graph.usage[graph.usage_at[j] + keep[i]]
        j = graph.chain[j]
    graph.size[node] = left
    return True


@part
def merge_one(graph: Graph, queue: Ints, state: Ints, waiting: Ints, changed: Ints, node: int) -> int:
    """Merge the first neighbour that this node decides, or this node into one that decides it.

    Returns the entries written, 0 if there is none, −1 if there is no room.
    """
    h = graph.head[node]
    while h >= 0:
        bits = graph.bound[h >> 1]
        other = graph.end[h ^ 1]
        decides = bits & (1 if h & 1 == 0 else 2) != 0
        decided = bits & (2 if h & 1 == 0 else 1) != 0
        if decides and (not decided or graph.degree[other] <= graph.degree[node]):
            spent = absorb(graph, h, queue, state, waiting, changed)
            if spent != 0:
                return spent
        elif decided:
            spent = absorb(graph, h ^ 1, queue, state, waiting, changed)
            if spent != 0:
                return spent
        h = graph.next[h]
    return 0


@part
def absorb(graph: Graph, h: int, queue: Ints, state: Ints, waiting: Ints, changed: Ints) -> int:
    """Merge the far end `v` of half-edge h into its near end `u`, which decides it.

    Not done (0) where it would more than double the entries of the matrices; −1 if there is no room.
    """
    u, v = graph.end[h], graph.end[h ^ 1]
    size_u, size_v = graph.size[u], graph.size[v]
    entries = segments = 0
    k = graph.head[v]
    while k >= 0:
        if k != h ^ 1:
            entries += graph.size[graph.end[k ^ 1]]
        k = graph.next[k]
    j = graph.memory[v]
    while j >= 0:
        segments += 1
        j = graph.chain[j]
    if size_u * entries > 2 * size_v * entries + 2 * size_u * size_v:
        return 0
    if not has_room(graph, size_u * entries, size_u * segments, size_u + 8):
        return -1
    image = np.zeros(size_u, np.int64)
    start, own, far = strides(graph, h)
    for s in range(size_u):
        for t in range(size_v):
            value = graph.matrix[start + s * own + t * far]
            if value < np.inf:
                image[s] = t
                graph.cost[graph.cost_at[u] + s] += value + graph.cost[graph.cost_at[v] + t]
        graph.log[graph.top[2] + s] = image[s]
    write_header(graph, v, u, -1, 1, size_u)
    detach(graph, h)
    detach(graph, h ^ 1)
    push_around(graph, queue, state, waiting, v)
    k = graph.head[v]
    while k >= 0:
        after = graph.next[k]
        move_edge(graph, k, u, image)
        changed[graph.end[k ^ 1]] = 1
        k = after
    graph.head[v] = -1
    j = graph.memory[v]
    while j >= 0:
        after = graph.chain[j]
        for s in range(size_u):
            graph.usage[graph.top[1] + s] = graph.usage[graph.usage_at[j] + image[s]]
        graph.usage_at[j] = graph.top[1]
        graph.top[1] += size_u
        graph.chain[j] = graph.memory[u]
        graph.memory[u] = j
        j = after
    graph.memory[v] = -1
    graph.size[v] = 0
    changed[u] = 1
    push(queue, state, waiting, u)
    return size_u * (entries + segments) + 1


@part
def move_edge(graph: Graph, k: int, u: int, image: Ints) -> None:
    """Hang the edge of half-edge k, of the absorbed node, on `u`, or add it to the edge that is there already."""
    w = graph.end[k ^ 1]
    start, own, far = strides(graph, k)
    there = half_edge(graph, u, w)
    if there >= 0:
        place, near, across = strides(graph, there)
        for s in range(image.size):
            for t in range(graph.size[w]):
                graph.matrix[place + s * near + t * across] += graph.matrix[start + image[s] * own + t * far]
        graph.fresh[there >> 1] = 1
        detach(graph, k ^ 1)
        return
    place = graph.top[0]
    width = graph.size[w]
    for s in range(image.size):
        for t in range(width):
            target = place + s * width + t if k & 1 == 0 else place + t * image.size + s
            graph.matrix[target] = graph.matrix[start + image[s] * own + t * far]
    graph.top[0] += image.size * width
    graph.matrix_at[k >> 1] = place
    graph.fresh[k >> 1] = 1
    attach(graph, k, u)


@part
def eliminate(graph: Graph, queue: Ints, state: Ints, waiting: Ints, changed: Ints, node: int) -> int:
    """Eliminate a memory-free node of degree ≤ 2. Returns the entries looked at, 0 if it stays, −1 without room."""
    if graph.memory[node] >= 0 or graph.degree[node] > 2:
        return 0
    size, at = graph.size[node], graph.cost_at[node]
    first = graph.head[node]
    second = graph.next[first] if first >= 0 else -1
    a = graph.end[first ^ 1] if first >= 0 else -1
    b = graph.end[second ^ 1] if second >= 0 else -1
    size_a, size_b = (graph.size[a] if a >= 0 else 1), (graph.size[b] if b >= 0 else 1)
    if b >= 0 and size_a * size_b > 4 * size * (size_a + size_b) + 4096:
        return 0
    if not has_room(graph, size_a * size_b, 0, size_a * size_b + 8):
        return -1
    start_a, own_a, far_a = strides(graph, first) if a >= 0 else (0, 0, 0)
    start_b, own_b, far_b = strides(graph, second) if b >= 0 else (0, 0, 0)
    place = graph.top[0]
    for i in range(size_a):
        for j in range(size_b):
            best, chosen = np.inf, 0
            for s in range(size):
                value = graph.cost[at + s]
                if a >= 0:
                    value += graph.matrix[start_a + s * own_a + i * far_a]
                if b >= 0:
                    value += graph.matrix[start_b + s * own_b + j * far_b]
                if value < best:
                    best, chosen = value, s
            graph.matrix[place + i * size_b + j] = best
            graph.log[graph.top[2] + i * size_b + j] = chosen
    write_header(graph, node, a, b, size_b, size_a * size_b)
    graph.size[node] = 0
    graph.head[node] = -1
    if a < 0:
        graph.constant[0] += graph.matrix[place]
        return size
    changed[a] = 1
    push(queue, state, waiting, a)
    detach(graph, first ^ 1)
    if b < 0:
        for i in range(size_a):
            graph.cost[graph.cost_at[a] + i] += graph.matrix[place + i]
        return size * size_a
    changed[b] = 1
    push(queue, state, waiting, b)
    detach(graph, second ^ 1)
    there = half_edge(graph, a, b)
    if there >= 0:
        at_ab, near, across = strides(graph, there)
        for i in range(size_a):
            for j in range(size_b):
                graph.matrix[at_ab + i * near + j * across] += graph.matrix[place + i * size_b + j]
        graph.fresh[there >> 1] = 1
        return size * size_a * size_b
    e = first >> 1
    attach(graph, 2 * e, a)
    attach(graph, 2 * e + 1, b)
    graph.matrix_at[e], graph.fresh[e] = place, 1
    graph.top[0] = place + size_a * size_b
    return size * size_a * size_b
