"""Reductions of the memory constraints: what never binds goes.

* Each node's terms become disjoint segments; what a node holds under every strategy counts against the limit at once.
* Times that can't exceed the limit, and times that another time implies, are dropped; the rest are renumbered.
* A strategy that holds more at some time than is left goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.graph import Graph
from autoplan.intraop.solve.large.jit import kernel, part
from autoplan.intraop.solve.large.sorting import sort_by

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Limits:
    """The times that may still bind: which of the core's they are [T], and the bytes left there for the segments."""

    time: Ints
    slack: FloatArray


def reduce_memory(graph: Graph, limits: Limits, changed: Ints) -> tuple[Graph, Limits, Ints]:
    """Return the graph with disjoint segments, the times that may bind, and the nodes to look at again.

    Those hold memory at fewer times, or have strategies that can't fit, whose cost is infinite now. `changed[node]` is
    set to 1 where memory changed. Where a slack is negative nothing fits, and the segments are left as they are.
    """
    if not limits.slack.size:
        graph.memory[:] = -1
        return graph, limits, np.zeros(0, np.int64)
    node, low, high, at, usage = disjoint(graph)
    least, most = extremes(graph, node, at, usage)
    base, peak = np.zeros(limits.slack.size + 1), np.zeros(limits.slack.size + 1)
    np.add.at(base, low, least)
    np.subtract.at(base, high, least)
    np.add.at(peak, low, most - least)
    np.subtract.at(peak, high, most - least)
    slack = limits.slack - np.cumsum(base[:-1])
    if (slack < 0).any():
        return graph, Limits(limits.time, slack), np.zeros(0, np.int64)
    subtract(graph, node, at, usage, least)
    kept = np.flatnonzero(np.cumsum(peak[:-1]) > slack)
    time, slack = limits.time[kept], slack[kept]
    low, high = np.searchsorted(kept, low), np.searchsorted(kept, high)
    while slack.size:
        kept = np.flatnonzero(binding(graph, node, low, high, at, usage, slack))
        if kept.size == slack.size:
            break
        time, slack = time[kept], slack[kept]
        low, high = np.searchsorted(kept, low), np.searchsorted(kept, high)
    before = segments_of(graph)
    graph, hit = hang(graph, node, low, high, at, usage, slack)
    less = before != segments_of(graph)
    changed[less] = 1
    return graph, Limits(time, slack), np.flatnonzero(less | hit)


@kernel
def segments_of(graph: Graph) -> Ints:
    """Return how many segments each node has."""
    count = np.zeros(graph.size.size, np.int64)
    for node in range(graph.size.size):
        i = graph.memory[node]
        while i >= 0:
            count[node] += 1
            i = graph.chain[i]
    return count


@kernel
def disjoint(graph: Graph) -> tuple[Ints, Ints, Ints, Ints, FloatArray]:
    """Return all segments by node and time, cut so that those of a node don't overlap: node, low, high, at, usage."""
    total = entries = most = 0
    for node in range(graph.size.size):
        count, i = 0, graph.memory[node]
        while i >= 0:
            count += 1
            i = graph.chain[i]
        most = max(most, count)
        total += 2 * count
        entries += 2 * count * graph.size[node]
    owner, low, high = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    at, usage = np.empty(total, np.int64), np.empty(entries)
    points, order, items = np.empty(2 * most), np.empty(2 * most, np.int64), np.empty(most, np.int64)
    n = top = 0
    for node in range(graph.size.size):
        size, count, i = graph.size[node], 0, graph.memory[node]
        while i >= 0:
            if graph.low[i] < graph.high[i]:
                items[count] = i
                points[2 * count], points[2 * count + 1] = graph.low[i], graph.high[i]
                count += 1
            i = graph.chain[i]
        if count == 0:
            continue
        for k in range(2 * count):
            order[k] = k
        sort_by(points, order, 2 * count)
        begun = n
        for k in range(2 * count - 1):
            start, stop = int(points[order[k]]), int(points[order[k + 1]])
            if start == stop:
                continue
            for s in range(size):
                usage[top + s] = 0.0
            any_usage = False
            for c in range(count):
                j = items[c]
                if graph.low[j] <= start and stop <= graph.high[j]:
                    for s in range(size):
                        usage[top + s] += graph.usage[graph.usage_at[j] + s]
            same = n > begun and high[n - 1] == start
            for s in range(size):
                if usage[top + s] != 0.0:
                    any_usage = True
                if same and usage[top + s] != usage[at[n - 1] + s]:
                    same = False
            if same:
                high[n - 1] = stop
            elif any_usage:
                owner[n], low[n], high[n], at[n] = node, start, stop, top
                n += 1
                top += size
    return owner[:n].copy(), low[:n].copy(), high[:n].copy(), at[:n].copy(), usage[:top].copy()


@kernel
def extremes(graph: Graph, node: Ints, at: Ints, usage: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and the greatest bytes of each segment."""
    least, most = np.empty(node.size), np.empty(node.size)
    for i in range(node.size):
        low, high = usage[at[i]], usage[at[i]]
        for s in range(graph.size[node[i]]):
            low, high = min(low, usage[at[i] + s]), max(high, usage[at[i] + s])
        least[i], most[i] = low, high
    return least, most


@kernel
def subtract(graph: Graph, node: Ints, at: Ints, usage: FloatArray, amount: FloatArray) -> None:
    """Subtract an amount from all entries of each segment."""
    for i in range(node.size):
        for s in range(graph.size[node[i]]):
            usage[at[i] + s] -= amount[i]


@kernel
def binding(graph: Graph, node: Ints, low: Ints, high: Ints, at: Ints, usage: FloatArray, slack: FloatArray) -> Ints:
    """Return 0 for the times that the time before or after them implies, else 1.

    Usage rises from one time to the next by at most the sum over nodes of the greatest rise under one strategy: if that
    is no more than the slack rises, the later time is implied by the earlier. The same holds backward.
    """
    num = slack.size
    rise, fall = np.zeros(num + 1), np.zeros(num + 1)
    last = -1
    for i in range(node.size):
        if low[i] == high[i]:
            continue
        size = graph.size[node[i]]
        adjoining = last >= 0 and node[last] == node[i] and high[last] == low[i]
        if last >= 0 and not adjoining:
            end_segment(fall, high[last], usage, at[last], graph.size[node[last]])
        most_up = most_down = 0.0
        for s in range(size):
            before = usage[at[last] + s] if adjoining else 0.0
            most_up = max(most_up, usage[at[i] + s] - before) if s > 0 else usage[at[i] + s] - before
            most_down = max(most_down, before - usage[at[i] + s]) if s > 0 else before - usage[at[i] + s]
        rise[low[i]] += most_up
        fall[low[i]] += most_down
        last = i
    if last >= 0:
        end_segment(fall, high[last], usage, at[last], graph.size[node[last]])
    keep = np.ones(num, np.int64)
    for t in range(num):
        if t + 1 < num and fall[t + 1] <= slack[t] - slack[t + 1]:
            keep[t] = 0
        elif t > 0 and rise[t] <= slack[t] - slack[t - 1]:
            implied_by_this = keep[t - 1] == 0 and fall[t] <= slack[t - 1] - slack[t]
            if not implied_by_this:
                keep[t] = 0
    return keep


@part
def end_segment(fall: FloatArray, time: int, usage: FloatArray, at: int, size: int) -> None:
    """Add the greatest fall of a segment that ends without a successor."""
    most = 0.0
    for s in range(size):
        most = max(most, usage[at + s])
    fall[time] += most


@kernel
def place(graph: Graph, node: Ints, low: Ints, high: Ints, at: Ints, usage: FloatArray, slack: FloatArray,
          hit: Ints) -> int:
    """Replace the graph's segments by these; mark strategies that don't fit. Returns how many segments there are."""
    count = 0
    for i in range(node.size - 1, -1, -1):
        if low[i] == high[i]:
            continue
        room = slack[low[i]]
        for t in range(low[i], high[i]):
            room = min(room, slack[t])
        owner, top = node[i], False
        for s in range(graph.size[owner]):
            if usage[at[i] + s] > 0.0:
                top = True
            if usage[at[i] + s] > room and graph.cost[graph.cost_at[owner] + s] < np.inf:
                graph.cost[graph.cost_at[owner] + s] = np.inf
                hit[owner] = 1
        if not top:
            continue
        graph.low[count], graph.high[count], graph.usage_at[count] = low[i], high[i], at[i]
        graph.chain[count] = graph.memory[owner]
        graph.memory[owner] = count
        count += 1
    return count


def hang(graph: Graph, node: Ints, low: Ints, high: Ints, at: Ints, usage: FloatArray, slack: FloatArray,
         ) -> tuple[Graph, BoolArray]:
    """Return the graph with these segments instead of its own, and which nodes have strategies that can't fit."""
    most = max(graph.low.size, node.size)
    if graph.low.size < most:
        empty = np.zeros(most, np.int64)
        graph = graph._replace(low=empty.copy(), high=empty.copy(), usage_at=empty.copy(), chain=empty.copy())
    graph = graph._replace(usage=usage)
    graph.top[1] = usage.size
    hit = np.zeros(graph.size.size, np.int64)
    graph.memory[:] = -1
    place(graph, node, low, high, at, usage, slack, hit)
    return graph, hit > 0
