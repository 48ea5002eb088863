"""All exact reductions to a fixpoint, and the way back from a solution of the core to one of the problem."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.arrays import ProblemArrays, offsets
from autoplan.intraop.problem import Conflict, FloatArray
from autoplan.intraop.solve.large.contract import FULL, PAUSED, propagate
from autoplan.intraop.solve.large.core import Core, Ints, Times, as_core
from autoplan.intraop.solve.large.dominate import dominate
from autoplan.intraop.solve.large.graph import (
    LOG,
    Graph,
    alive_edges,
    build,
    copy_blocks,
    grow,
    segment_owners,
    undo,
)
from autoplan.intraop.solve.large.memory import Limits, reduce_memory

_SLICE_S = 0.1
_MANY_PAIRS, _FEW = 1_000_000, 0.005  # pairs of strategies to compare, and the share of strategies that must go by it


@dataclass(frozen=True, eq=False)
class Reduced:
    """A core, the original index of its nodes, what its times stand for, and the log that undoes the reductions."""

    core: Core
    nodes: Ints
    times: Times
    log: npt.NDArray[np.int32]
    num_nodes: int

    def complete(self, choice: Ints) -> Ints:
        """Return the choice of all nodes of the problem that belongs to a choice of the core."""
        full = np.zeros(self.num_nodes, np.int64)
        full[self.nodes] = choice
        undo(self.log, self.log.size, full)
        return full

    def then(self, further: Reduced) -> Reduced:
        """Return the reduction of the same problem to the core of a further reduction of this core."""
        return _Twice(further.core, self.nodes[further.nodes], further.times, further.log, self.num_nodes, self,
                      further)


@dataclass(frozen=True, eq=False)
class _Twice(Reduced):
    first: Reduced
    second: Reduced

    def complete(self, choice: Ints) -> Ints:
        return self.first.complete(self.second.complete(choice))


class _Paused(Exception):
    """The deadline came before the fixpoint."""


class _Slices:
    """How many entries a kernel may look at before the clock is asked again: about `_SLICE_S` seconds' worth."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.budget, self.begin = deadline, 100_000, 0.0

    def start(self) -> int:
        """Return the budget of the next slice. Raises _Paused after the deadline."""
        self.begin = time.monotonic()
        if self.begin > self.deadline:
            raise _Paused
        return self.budget

    def stop(self, whole: bool) -> None:
        """Learn from the time the slice took, if it used its whole budget."""
        if not whole:
            return
        spent = max(time.monotonic() - self.begin, 1e-6)
        self.budget = int(min(4 * self.budget, max(1000, self.budget * _SLICE_S / spent), 1 << 40))


def reduce_problem(arrays: ProblemArrays, deadline: float) -> Reduced | Conflict:
    """Reduce a problem as `reduce_core` does."""
    return reduce_core(*as_core(arrays), deadline)


def reduce_core(core: Core, times: Times, deadline: float) -> Reduced | Conflict:
    """Apply all reductions until nothing changes or the monotonic clock passes `deadline`: either way the result is
    equivalent to the problem. Returns why there is no solution where that comes out.

    times: what the core's times stand for.
    """
    work = _Work(core, deadline)
    work.memory()  # every node waits already
    left, done = 2 * int(work.graph.size.sum()), False
    try:
        while work.limits.slack.min(initial=0.0) >= 0.0:
            work.propagate()
            if work.state[2] >= 0:
                return Conflict(None, None, 0.0)
            work.wake(work.memory())
            if work.state[1] == 0 and done:
                break
            before, left = left, int(work.graph.size.sum())
            pairs = int((work.graph.size[work.changed > 0]**2).sum())
            if not done:
                work.dominate()
            done = work.state[1] == 0 or (pairs > _MANY_PAIRS and before - left < _FEW * left)
    except _Paused:
        work.memory()
    return _conflict(work.limits, times) or _finish(work.graph, work.limits, times)


class _Work:
    """A graph on its way to the fixpoint; queue, waiting and state are `propagate`'s."""

    def __init__(self, core: Core, deadline: float) -> None:
        self.graph = build(core)
        self.limits = Limits(np.arange(core.slack.size), core.slack)
        n = core.num_nodes
        self.changed, self.queue, self.waiting = np.ones(n, np.int64), np.arange(n), np.ones(n, np.int64)
        self.state = np.array([0, n, -1])
        self.slices = _Slices(deadline)

    def memory(self) -> Ints:
        """Reduce the memory constraints and return the nodes to look at again."""
        self.graph, self.limits, nodes = reduce_memory(self.graph, self.limits, self.changed)
        return nodes

    def propagate(self) -> None:
        """Work the queue off, or until a node has no strategy left. Raises _Paused at the deadline."""
        code = PAUSED
        while code in (PAUSED, FULL):
            budget = self.slices.start()
            code = propagate(self.graph, self.queue, self.state, self.waiting, self.changed, budget)
            self.slices.stop(code == PAUSED)
            if code == FULL:
                self.graph = grow(self.graph)

    def dominate(self) -> None:
        """Look at all changed nodes once. Raises _Paused at the deadline."""
        first = 0
        while first < self.queue.size:
            budget = self.slices.start()
            first = dominate(self.graph, self.queue, self.state, self.waiting, self.changed, first, budget)
            self.slices.stop(first < self.queue.size)

    def wake(self, nodes: Ints) -> None:
        """Put nodes into the queue."""
        for node in nodes[self.waiting[nodes] == 0].tolist():
            self.waiting[node] = 1
            self.queue[(self.state[0] + self.state[1]) % self.queue.size] = node
            self.state[1] += 1


def _conflict(limits: Limits, times: Times) -> Conflict | None:
    """Return the first window in which even the least memory exceeds the limit most, and by how much."""
    if limits.slack.min(initial=0.0) >= 0.0:
        return None
    first = last = int(limits.slack.argmin())
    time, slack = limits.time, limits.slack
    while last + 1 < slack.size and time[last + 1] == time[last] + 1 and slack[last + 1] == slack[first]:
        last += 1
    return Conflict(int(times.start[time[first]]), int(times.end[time[last]]), -float(slack[first]))


def _finish(graph: Graph, limits: Limits, times: Times) -> Reduced:
    nodes = np.flatnonzero(graph.size > 0)
    number = np.full(graph.size.size, -1)
    number[nodes] = np.arange(nodes.size)
    sizes = graph.size[nodes]
    edges = np.flatnonzero(alive_edges(graph))
    owner = segment_owners(graph)
    segments = np.flatnonzero(owner >= 0)
    segments = segments[np.lexsort((graph.low[segments], owner[segments]))]
    node_cost, node_at = _gather(graph.cost, graph.cost_at[nodes], sizes)
    u, v = graph.end.reshape(-1, 2)[edges].T
    edge_cost, edge_at = _gather(graph.matrix, graph.matrix_at[edges], graph.size[u] * graph.size[v])
    usage, seg_at = _gather(graph.usage, graph.usage_at[segments], graph.size[owner[segments]])
    core = Core(node_at, node_cost, number[u], number[v], edge_at[:-1], edge_cost, number[owner[segments]],
                graph.low[segments], graph.high[segments], seg_at[:-1], usage, limits.slack, float(graph.constant[0]))
    kept = Times(times.start[limits.time], times.end[limits.time])
    return Reduced(core, nodes, kept, graph.log[:graph.top[LOG]].copy(), graph.size.size)


def _gather(pool: FloatArray, at: Ints, sizes: Ints) -> tuple[FloatArray, Ints]:
    place = offsets(sizes)
    packed = np.zeros(place[-1])
    copy_blocks(pool, at, sizes, packed, place)
    return packed, place
