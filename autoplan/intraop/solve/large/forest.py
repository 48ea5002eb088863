"""Large-neighbourhood search: exact dynamic programming over random induced forests, with prices on memory.

A move frees the nodes of a random forest near a random place; all others stay. Along a forest the cheapest choice under
prices is exact. The prices are a global vector over times, only where the forest can bind, times a factor: the least
factor is sought whose choice fits. Moves are accepted as in simulated annealing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.jit import part
from autoplan.intraop.solve.large.model import Model

FEASIBLE = 1e-9


class Scratch(NamedTuple):
    """Work space: `place` [N] −1 or the index of a freed node; the rest by index of a freed node or by time."""

    place: Ints
    ball: Ints
    seen: Ints
    forest: Ints
    group: Ints
    parent: Ints
    parent_arc: Ints
    order: Ints
    value_at: Ints
    base: FloatArray
    lean: FloatArray
    weight: FloatArray
    value: FloatArray
    trial: Ints
    best: Ints
    change: FloatArray
    peak: FloatArray
    local: FloatArray
    prefix: FloatArray


def scratch(model: Model, most: int) -> Scratch:
    """Return work space for moves of at most `most` nodes."""
    n, times, widest = model.size.size, model.slack.size + 1, int(model.size.max(initial=1))

    def ints(count: int) -> Ints:
        return np.zeros(count, np.int64)

    return Scratch(np.full(n, -1), ints(most), ints(n), ints(most), ints(most), ints(most), ints(most), ints(most),
                   ints(most + 1), np.zeros(most * widest), np.zeros(most * widest),
                   np.zeros(most * widest), np.zeros(most * widest), ints(most), ints(most), np.zeros(times),
                   np.zeros(times), np.zeros(times), np.zeros(times))


@part
def grow_ball(model: Model, work: Scratch, rng: Generator, first: int, count: int, most: int, stamp: int) -> int:
    """Add up to `most` nodes around `first` to `ball`, which has `count`: random growth. Returns the new count."""
    if work.seen[first] == stamp:
        return count
    work.seen[first] = stamp
    work.ball[count] = first
    begin, end = count, count + 1
    limit = min(count + most, work.ball.size)
    while begin < end and end < limit:
        pick = begin + int(rng.random() * (end - begin))
        node = work.ball[pick]
        work.ball[pick] = work.ball[begin]
        work.ball[begin] = node
        begin += 1
        arcs = model.arc_at[node + 1] - model.arc_at[node]
        turn = int(rng.random() * arcs)
        for k in range(min(arcs, 12)):
            other = model.arc_to[model.arc_at[node] + (turn + k) % arcs]
            if work.seen[other] != stamp and end < limit:
                work.seen[other] = stamp
                work.ball[end] = other
                end += 1
    return end


@part
def find(group: Ints, k: int) -> int:
    """Return the representative of k's tree."""
    while group[k] != k:
        group[k] = group[group[k]]
        k = group[k]
    return k


@part
def pick_forest(model: Model, work: Scratch, rng: Generator, count: int) -> int:
    """Choose, in random order, ball nodes that close no cycle with those chosen. Returns how many."""
    size = 0
    for i in range(count - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        node = work.ball[i]
        work.ball[i] = work.ball[j]
        work.ball[j] = node
    for i in range(count):
        work.order[i] = -1
    for i in range(count):
        node = work.ball[i]
        begin, end = model.arc_at[node], model.arc_at[node + 1]
        clean = True
        for a in range(begin, end):
            other = work.place[model.arc_to[a]]
            if other >= 0:
                root = find(work.group, other)
                if work.order[root] == i:
                    clean = False
                    break
                work.order[root] = i
        if not clean:
            continue
        work.group[size] = size
        for a in range(begin, end):
            other = work.place[model.arc_to[a]]
            if other >= 0:
                work.group[find(work.group, other)] = size
        work.place[node] = size
        work.forest[size] = node
        size += 1
    return size


@part
def hang_trees(model: Model, work: Scratch, size: int) -> None:
    """Order the forest from roots to leaves: `order`, and for each node its parent and the arc to it."""
    for k in range(size):
        work.parent[k] = -2
    top = 0
    for root in range(size):
        if work.parent[root] != -2:
            continue
        work.parent[root] = -1
        work.order[top] = root
        at = top
        top += 1
        while at < top:
            k = work.order[at]
            at += 1
            node = work.forest[k]
            for a in range(model.arc_at[node], model.arc_at[node + 1]):
                other = work.place[model.arc_to[a]]
                if other >= 0 and work.parent[other] == -2:
                    work.parent[other] = k
                    work.parent_arc[other] = model.arc_back[a]
                    work.order[top] = other
                    top += 1


@part
def fix_surroundings(model: Model, work: Scratch, choice: Ints, worth: FloatArray, size: int) -> None:
    """Set `base`: a freed node's costs, with the edges to nodes that stay; and `lean`: what its memory is worth.

    worth [T + 1]: the sum of what a byte is worth at all earlier times.
    """
    at = 0
    for k in range(size):
        node = work.forest[k]
        wide = model.size[node]
        work.value_at[k] = at
        for s in range(wide):
            work.base[at + s] = model.node_cost[model.node_at[node] + s]
            work.lean[at + s] = 0.0
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            price = worth[model.seg_high[i]] - worth[model.seg_low[i]]
            for s in range(wide):
                work.lean[at + s] += price * model.usage[model.seg_at[i] + s]
        for a in range(model.arc_at[node], model.arc_at[node + 1]):
            other = model.arc_to[a]
            if work.place[other] < 0:
                row = model.arc_cost_at[a] + choice[other] * wide
                for s in range(wide):
                    work.base[at + s] += model.arc_cost[row + s]
        at += wide
    work.value_at[size] = at


@part
def free_memory(model: Model, work: Scratch, choice: Ints, room: FloatArray, price: FloatArray, size: int,
                ) -> tuple[int, int, bool]:
    """Set `local`: the room at each time of the forest's window once it holds nothing; and `weight`: the price of what
    each strategy holds, at times that the forest could overfill. Returns the window, and whether there is such a time.
    """
    begin, end = model.slack.size, 0
    for k in range(size):
        node = work.forest[k]
        first, last = model.seg_of[node], model.seg_of[node + 1]
        if first < last:
            begin, end = min(begin, model.seg_low[first]), max(end, model.seg_high[last - 1])
    if begin >= end:
        for j in range(work.value_at[size]):
            work.weight[j] = 0.0
        return 0, 0, False
    for t in range(begin, end + 1):
        work.change[t] = work.peak[t] = 0.0
    for k in range(size):
        node = work.forest[k]
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            used = model.usage[model.seg_at[i] + choice[node]]
            most = 0.0
            for s in range(model.size[node]):
                most = max(most, model.usage[model.seg_at[i] + s])
            low, high = model.seg_low[i], model.seg_high[i]
            work.change[low] += used
            work.change[high] -= used
            work.peak[low] += most
            work.peak[high] -= most
    used = most = total = 0.0
    binding = False
    for t in range(begin, end):
        used += work.change[t]
        most += work.peak[t]
        work.local[t] = room[t] + used
        work.prefix[t] = total
        if work.local[t] < most:
            total += price[t]
            binding = True
    work.prefix[end] = total
    for k in range(size):
        node, at = work.forest[k], work.value_at[k]
        wide = model.size[node]
        for s in range(wide):
            work.weight[at + s] = 0.0
        if not binding:
            continue
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            worth = work.prefix[model.seg_high[i]] - work.prefix[model.seg_low[i]]
            if worth > 0.0:
                for s in range(wide):
                    work.weight[at + s] += worth * model.usage[model.seg_at[i] + s]
    return begin, end, binding


@part
def cheapest(model: Model, work: Scratch, size: int, factor: float) -> None:
    """Set `trial` to the cheapest strategies of the forest when memory costs `factor` times its prices."""
    for j in range(work.value_at[size]):
        work.value[j] = work.base[j] + work.lean[j] + factor * work.weight[j]
    for i in range(size - 1, -1, -1):
        k = work.order[i]
        p = work.parent[k]
        if p < 0:
            continue
        at, wide = work.value_at[k], model.size[work.forest[k]]
        up = work.value_at[p]
        row = model.arc_cost_at[work.parent_arc[k]]
        for t in range(model.size[work.forest[p]]):
            best = np.inf
            for s in range(wide):
                best = min(best, work.value[at + s] + model.arc_cost[row + s])
            row += wide
            work.value[up + t] += best
    for i in range(size):
        k = work.order[i]
        at, wide, p = work.value_at[k], model.size[work.forest[k]], work.parent[k]
        row = model.arc_cost_at[work.parent_arc[k]] + work.trial[p] * wide if p >= 0 else 0
        best, chosen = np.inf, 0
        for s in range(wide):
            value = work.value[at + s]
            if p >= 0:
                value += model.arc_cost[row + s]
            if value < best:
                best, chosen = value, s
        work.trial[k] = chosen


@part
def forest_cost(model: Model, work: Scratch, pick: Ints, size: int) -> tuple[float, float]:
    """Return what the forest's nodes and all their edges cost under `pick`, and what their memory is worth."""
    total = lean = 0.0
    for k in range(size):
        lean += work.lean[work.value_at[k] + pick[k]]
        total += work.base[work.value_at[k] + pick[k]]
        p = work.parent[k]
        if p >= 0:
            wide = model.size[work.forest[k]]
            total += model.arc_cost[model.arc_cost_at[work.parent_arc[k]] + pick[p] * wide + pick[k]]
    return total, lean


@part
def overfill(model: Model, work: Scratch, pick: Ints, size: int, begin: int, end: int) -> float:
    """Return the sum over times of the bytes over the limit under `pick`; `change` becomes what the forest holds."""
    for t in range(begin, end + 1):
        work.change[t] = 0.0
    for k in range(size):
        node = work.forest[k]
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            used = model.usage[model.seg_at[i] + pick[k]]
            work.change[model.seg_low[i]] += used
            work.change[model.seg_high[i]] -= used
    used = over = 0.0
    for t in range(begin, end):
        used += work.change[t]
        if used > work.local[t]:
            over += used - work.local[t]
    return over
