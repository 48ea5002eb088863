"""The discrete-event replay of a pipeline: when each piece of work runs, and each tensor travels.

An event is the end of a piece of work. A stage's devices are one stream that does its work in the schedule's order; a
piece begins when the stream is free and its input is there. A link carries one tensor at a time, first come first
served, which moves as much in a given time as if all tensors under way shared its bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from autoplan.cost.schedules import position
from autoplan.simulate.orders import Kind, Order, order
from autoplan.simulate.pipeline import Pipeline

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

NONE = -1


@dataclass(frozen=True)
class Lane:
    """What one stage did: its order, and for each piece of work, [n], the second at which the stage took it up, began
    to compute it and ended it; and at which its input left another stage and arrived (nan: it came from no other)."""

    order: Order
    start: Array
    compute: Array
    end: Array
    leaves: Array
    arrives: Array


@dataclass(frozen=True)
class Timeline:
    """A replayed step."""

    pipeline: Pipeline
    lanes: tuple[Lane, ...]

    @cached_property
    def step_time(self) -> float:
        """Seconds from a stage's first forward pass to the end of its once-a-step work, at most over the stages.

        Where no stage waits for the others before it updates its weights, steps follow each other so.
        """
        return max(float(lane.end[-1] - lane.start[0]) + stage.step
                   for lane, stage in zip(self.lanes, self.pipeline.stages, strict=True))

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first forward pass to the last once-a-step work, as where stages wait for each other."""
        return max(float(lane.end[-1]) + stage.step
                   for lane, stage in zip(self.lanes, self.pipeline.stages, strict=True))

    def busy(self, stage: int) -> float:
        """Seconds that a stage computes, once-a-step work left out."""
        lane = self.lanes[stage]
        return float((lane.end - lane.compute).sum())

    def memory(self, stage: int) -> tuple[Array, Array]:
        """Return the seconds at which a stage's memory changes, [c], and the bytes it holds from then on, [c]."""
        lane, work = self.lanes[stage], self.pipeline.stages[stage]
        held = lane.order.held
        grows = np.diff(held, prepend=0)
        changes = grows != 0
        when = np.where(grows > 0, lane.start, lane.end)  # taken when work begins, free when it ends
        return when[changes], work.fixed + work.saved * held[changes] / self.pipeline.virtual_stages

    def peak(self, stage: int) -> float:
        """Return the most bytes that a stage holds."""
        return float(self.memory(stage)[1].max())


@dataclass(frozen=True)
class _Script:
    """A stage's pieces of work as the replay reads them, [n]: seconds; the input that must be there, and the input of
    another piece that its end gives (indices of all inputs, NONE: none); the link over which the input comes or the
    result goes (NONE: it's there at once), and the seconds that takes."""

    seconds: list[float]
    needs: list[int]
    gives: list[int]
    link: list[int]
    travel: list[float]


def replay(pipeline: Pipeline) -> Timeline:
    """Return when everything happens. ValueError where the schedule can't run with such counts."""
    p = len(pipeline.stages)
    orders = [order(pipeline.schedule, stage, p, pipeline.num_micro_batches, pipeline.virtual_stages)
              for stage in range(p)]
    scripts = [_script(pipeline, stage, orders[stage]) for stage in range(p)]
    start, compute, end = ([[0.0] * len(one.kind) for one in orders] for _ in range(3))
    inputs = 2 * p * pipeline.virtual_stages * pipeline.num_micro_batches
    ready = [-1.0] * inputs + [0.0]  # the last one, NONE, is always there
    leaves, arrives = [np.nan] * (inputs + 1), [np.nan] * (inputs + 1)
    waiting: dict[int, int] = {}
    free = [0.0] * (1 + max(max(script.link) for script in scripts))
    done = [0] * p  # pieces that a stage has begun
    events: list[tuple[float, int]] = []

    def send(tensor: int, link: int, travel: float, now: float) -> float:
        """Return when a tensor has arrived that may leave now."""
        leaves[tensor] = leave = max(now, free[link])
        arrives[tensor] = free[link] = leave + travel
        return arrives[tensor]

    def take_up(stage: int, now: float) -> None:
        """Let a free stage begin its next piece of work, or wait for its input."""
        piece, script = done[stage], scripts[stage]
        if piece == len(script.needs):
            return
        need = script.needs[piece]
        if ready[need] < 0.0:
            waiting[need] = stage
            return
        begin = start[stage][piece] = max(now, ready[need])
        if waits and script.link[piece] != NONE:
            begin = send(need, script.link[piece], script.travel[piece], begin)
        compute[stage][piece] = begin
        end[stage][piece] = over = begin + script.seconds[piece]
        heappush(events, (over, stage))
        done[stage] = piece + 1

    waits = pipeline.waits
    for stage in range(p):
        take_up(stage, 0.0)
    while events:
        now, stage = heappop(events)
        piece, script = done[stage] - 1, scripts[stage]
        gives = script.gives[piece]
        if gives != NONE:
            sent = not waits and script.link[piece] != NONE
            ready[gives] = send(gives, script.link[piece], script.travel[piece], now) if sent else now
            if gives in waiting:
                take_up(waiting.pop(gives), now)
        take_up(stage, now)
    left, came = np.array(leaves), np.array(arrives)
    needs = [np.array(script.needs) for script in scripts]
    return Timeline(pipeline, tuple(
        Lane(orders[stage], np.array(start[stage]), np.array(compute[stage]), np.array(end[stage]),
             left[needs[stage]], came[needs[stage]]) for stage in range(p)))


def _script(pipeline: Pipeline, stage: int, todo: Order) -> _Script:
    """Return a stage's script. Inputs count through kinds, places in the model's row of chunks, and micro-batches."""
    p, v, m = len(pipeline.stages), pipeline.virtual_stages, pipeline.num_micro_batches
    work = pipeline.stages[stage]
    split = pipeline.schedule.splits_backward
    each = np.array([work.forward, work.backward + (0.0 if split else work.weight), work.weight]) / v
    place = np.array([position(pipeline.schedule, stage, chunk, p) for chunk in range(v)])
    owner = {position(pipeline.schedule, i, chunk, p): i for i in range(p) for chunk in range(v)}
    links = {link: number for number, link in enumerate(dict.fromkeys(one.link for one in pipeline.sends.values()))}
    needs, gives = np.full((2, v), NONE), np.full((2, v), NONE)  # of micro-batch 0, by kind and chunk
    link, travel = np.full((3, v), NONE), np.zeros((3, v))
    for kind, step in ((Kind.FORWARD, 1), (Kind.BACKWARD, -1)):
        for chunk, here in enumerate(place.tolist()):
            if here - step in owner:
                needs[kind, chunk] = (kind * p * v + here) * m
            if here + step in owner:
                gives[kind, chunk] = (kind * p * v + here + step) * m
            source, target = (here - step, here) if pipeline.waits else (here, here + step)
            sent = pipeline.sends.get((owner.get(source, stage), owner.get(target, stage)))
            if sent is not None and {source, target} <= owner.keys():
                link[kind, chunk], travel[kind, chunk] = links[sent.link], sent.seconds
    kinds, chunks = todo.kind, todo.chunk
    passes = kinds != Kind.WEIGHT

    def index(first: Ints) -> list[int]:
        of = first[np.where(passes, kinds, 0), chunks]
        found: list[int] = np.where(passes & (of != NONE), of + todo.micro_batch, NONE).tolist()
        return found

    return _Script(each[kinds].tolist(), index(needs), index(gives), link[kinds, chunks].tolist(),
                   travel[kinds, chunks].tolist())
