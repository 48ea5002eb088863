"""Pipelines of unequal submeshes: Alpa's partition over a menu of stage options, one micro-batch count at a time.

The menu holds, for each submesh size, the named ways of running a stage on it. On big clusters sizes are multiples of
a quantum of devices. A uniform pipeline is a point of this space too, but the uniform search covers those finer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Cluster, Mesh, meshes, submesh_sizes
from autoplan.cluster.mesh import divisors
from autoplan.cost.memory import usable_bytes
from autoplan.interop import Partition, StageCosts, partition
from autoplan.intraop.tables import StageTable
from autoplan.intraop.terms import Criterion, Policy, criteria
from autoplan.search.pricer import Pricer
from autoplan.search.probe import layer_bounds, probe
from autoplan.search.recipes import replicas
from autoplan.search.solve import Solution, inside, neighbour, stage_solution
from autoplan.search.space import LARGEST_MICRO_BATCH, Candidate, Pins, roles_of
from autoplan.workload import Recompute, Schedule

Array = NDArray[np.float64]

MOST_QUANTA = 32
MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # submesh sizes in quanta


@dataclass(frozen=True)
class Menu:
    """The options at one micro-batch count: candidates by submesh size. bound: no pipeline of them is faster."""

    num_micro_batches: int
    quantum: int
    options: tuple[tuple[int, tuple[Candidate, ...]], ...]
    bound: float


def sizes_of(cluster: Cluster) -> tuple[int, tuple[int, ...]]:
    """Return the quantum of devices, and the submesh sizes that are tried."""
    total = cluster.num_devices
    legal = submesh_sizes(cluster)
    quantum = next(size for size in legal if total % size == 0 and total // size <= MOST_QUANTA)
    return quantum, tuple(size for size in legal if size % quantum == 0 and size // quantum in MULTIPLES)


def menus(pricer: Pricer, pins: Pins) -> Iterator[Menu]:
    """Yield a menu for each micro-batch count that the pins allow."""
    batch, total = pricer.workload.global_batch_size, pricer.cluster.num_devices
    quantum, sizes = sizes_of(pricer.cluster)
    for m in divisors(batch):
        if pins.num_micro_batches not in (None, m):
            continue
        options = tuple((size, tuple(_candidates(pricer, size, batch // m, m, pins))) for size in sizes)
        options = tuple(option for option in options if option[1])
        seconds = [(size, _least(pricer, some)) for size, some in options]
        seconds = [(size, least) for size, least in seconds if np.isfinite(least)]
        if not seconds:
            continue
        work = min(size * least for size, least in seconds)  # device-seconds of one micro-batch
        largest = max(size for size, _ in seconds)
        yield Menu(m, quantum, options, work / largest + (m - 1) * work / total)


def _candidates(pricer: Pricer, size: int, micro_batch: int, m: int, pins: Pins) -> Iterator[Candidate]:
    stages = pins.pp or min(pricer.chain.count, pricer.cluster.num_devices)
    for shape in meshes(pricer.cluster, size):
        each, rest = divmod(micro_batch, replicas(shape))
        if rest or each > LARGEST_MICRO_BATCH or pins.micro_batch_size not in (None, each):
            continue
        for roles in roles_of(shape, pricer.chain, pins):
            yield Candidate(shape, max(2, stages), each, m, roles)


def _least(pricer: Pricer, options: Sequence[Candidate]) -> float:
    """Return the least seconds a micro-batch that the whole chain takes under any of the options."""
    weights = criteria(Policy(Recompute.NONE))[:, Criterion.T_MICRO_BATCH]
    chain = np.array([1.0, pricer.chain.count, 1.0])
    found = [probe(pricer, candidate) for candidate in options]
    return min((float(chain @ (one.terms @ weights)) for one in found if one is not None), default=float("inf"))


@dataclass(frozen=True)
class _Way:
    """One way of running a stage: its table, and what it was made from."""

    candidate: Candidate
    zero: int
    table: StageTable


class _MenuCosts:
    """The costs of a menu's stages, as the partitioner asks for them (`interop.StageCosts`): an option a way."""

    def __init__(self, pricer: Pricer, menu: Menu, ways: Sequence[_Way]) -> None:
        self.count, self.m, self.ways = pricer.chain.count, menu.num_micro_batches, ways
        self.num_layers = pricer.chain.length
        self.sizes = tuple(way.candidate.mesh.num_devices // menu.quantum for way in ways)
        self.layers = np.arange(self.count + 1)
        held = np.arange(1.0, min(self.m, self.num_layers) + 1)  # the counts that occur
        self.head = _both(ways, True, False, self.layers, held)
        self.inner = _both(ways, False, False, self.layers[1:], held)
        self.tail = _both(ways, False, True, self.layers, held[:1])

    def at(self, s: int) -> tuple[Array, Array]:
        """Return time and step of the s-th stage from the end, [N, N+1, O]; a stage never holds the whole chain."""
        n, held = self.num_layers, min(self.m, s) - 1
        both = np.full((2, len(self.ways), n, n + 1), np.inf)  # time, step
        if s == 1:
            both[:, :, n - 1 - self.layers, n] = self.tail[:, :, 0]
        else:
            both[:, :, 0, 1 + self.layers] = self.head[:, :, held]
            both[:, :, 1:n - 1, :n] = inside(self.inner[:, :, held])
        time, step = np.ascontiguousarray(np.moveaxis(both, 1, -1))
        return time, step


def _both(ways: Sequence[_Way], first: bool, last: bool, layers: NDArray[np.int64], held: Array) -> Array:
    """Return time and step of the best stage of each way, [2, O, in-flight counts, layers]."""
    best = [way.table.best(first=first, last=last, layers=layers[:, None], in_flight=held) for way in ways]
    return np.array([[one.time for one in best], [one.step for one in best]])


class _BoundCosts:
    """Lower bounds of a menu's stages, from the probes alone: what the partitioner needs to rule a menu out."""

    def __init__(self, pricer: Pricer, menu: Menu, variants: Sequence[tuple[Recompute, int]]) -> None:
        self.count, self.m, self.menu = pricer.chain.count, menu.num_micro_batches, menu
        self.num_layers = pricer.chain.length
        self.sizes = tuple(size // menu.quantum for size, _ in menu.options)
        self.room = usable_bytes(pricer.cluster.device.memory_bytes, pricer.runtime)
        self.bounds = [_undominated(pricer, options, variants) for _, options in menu.options]

    def at(self, s: int) -> tuple[Array, Array]:
        """Return lower bounds of time and step of the s-th stage from the end, [N, N+1, O]."""
        n, held = self.num_layers, float(min(self.m, s))
        both = np.full((2, len(self.sizes), n, n + 1), np.inf)  # time, step
        layers = np.arange(self.count + 1)
        for option, bounds in enumerate(self.bounds):
            if s == 1:
                both[:, option, n - 1 - layers, n] = self._least(bounds, 2, layers, held)
            else:
                both[:, option, 0, 1 + layers] = self._least(bounds, 0, layers, held)
                both[:, option, 1:n - 1, :n] = inside(self._least(bounds, None, layers[1:], held))
        time, step = np.ascontiguousarray(np.moveaxis(both, 1, -1))
        return time, step

    def _least(self, bounds: Array, end: int | None, layers: NDArray[np.int64], held: float) -> Array:
        """Return least seconds a micro-batch and a step, [2, n], of a stage with `layers` [n] layers, and the chain's
        first (0) or last (2) one if given; each over all ways that may fit."""
        time, step, state, saved = (bounds[:, at:at + 3] for at in (0, 3, 6, 9))
        seconds = layers * time[:, [1]] + bounds[:, 12:] * (2 if end is None else 1)
        once = layers * step[:, [1]]
        nbytes = layers * (state[:, [1]] + held * saved[:, [1]])
        if end is not None:
            seconds, once = seconds + time[:, [end]], once + step[:, [end]]
            nbytes = nbytes + state[:, [end]] + held * saved[:, [end]]
        fits = nbytes <= self.room
        return np.array([np.where(fits, value, np.inf).min(axis=0, initial=np.inf) for value in (seconds, once)])


def _undominated(pricer: Pricer, options: Sequence[Candidate], variants: Sequence[tuple[Recompute, int]]) -> Array:
    """Return the bounds of the ways of running a stage that no other beats: time, step, state, saved (3 each), send."""
    rows = []
    for candidate in options:
        found = probe(pricer, candidate)
        if found is not None:
            one = layer_bounds(pricer, candidate, found, variants)
            send = np.full((len(variants), 1), one.send)
            rows.append(np.concatenate([one.time, one.step, one.state, one.saved, send], axis=1))
    every = np.unique(np.concatenate(rows), axis=0) if rows else np.zeros((0, 13))
    no_worse = (every[:, None, :] <= every[None, :, :]).all(axis=2)
    result: Array = every[no_worse.sum(axis=0) == 1]
    return result


def rule_out(pricer: Pricer, menu: Menu, policies: Sequence[Recompute], zeros: Sequence[int], pins: Pins,
             upper_bound: float, gap: float) -> float:
    """Return a lower bound of every pipeline of a menu, `upper_bound` if none can be below it."""
    variants = [(policy, zero) for policy in policies for zero in zeros]
    cut = _cut(pricer, menu, _BoundCosts(pricer, menu, variants), pins, upper_bound, gap)
    return upper_bound if cut is None else cut.lower_bound


def _cut(pricer: Pricer, menu: Menu, costs: StageCosts, pins: Pins, upper_bound: float, gap: float) -> Partition | None:
    quanta = pricer.cluster.num_devices // menu.quantum
    return partition(costs, num_micro_batches=menu.num_micro_batches, num_quanta=quanta,
                     max_stages=min(pricer.chain.count, quanta), num_stages=pins.pp, upper_bound=upper_bound, gap=gap)


def solve_menu(pricer: Pricer, menu: Menu, policies: Sequence[Recompute], zeros: Sequence[int], pins: Pins,
               upper_bound: float, gap: float) -> tuple[Solution | None, float]:
    """Return the best pipeline of a menu below `upper_bound` seconds, and a lower bound of all of them."""
    longest = upper_bound / menu.num_micro_batches  # of a stage's micro-batch
    ways = [way for _, options in menu.options for way in _ways(pricer, options, policies, zeros, longest)]
    if not ways:
        return None, float("inf")
    cut = _cut(pricer, menu, _MenuCosts(pricer, menu, ways), pins, upper_bound, gap)
    return (None, upper_bound) if cut is None else (_solution(pricer, menu, ways, cut), cut.lower_bound)


def _ways(pricer: Pricer, options: Sequence[Candidate], policies: Sequence[Recompute], zeros: Sequence[int],
          longest: float) -> list[_Way]:
    """Return the ways of running a stage on one submesh size that no other beats.

    One beats another if every one of its layers is no worse in time, step, state, saved and transient bytes. Ways that
    can't hold one layer, or take more than `longest` seconds for it, are left out before they are priced.
    """
    room = usable_bytes(pricer.cluster.device.memory_bytes, pricer.runtime)
    ways, scores = [], []
    for candidate in options:
        link = neighbour(pricer.cluster, candidate.mesh.num_devices)
        found = probe(pricer, candidate)
        if found is None:
            continue
        some = zeros if candidate.mesh.shape[0] > 1 else zeros[:1]
        variants = [(policy, zero) for policy in policies for zero in some]
        least = layer_bounds(pricer, candidate, found, variants)
        possible = (least.state[:, 1] + least.saved[:, 1] <= room) & (least.time[:, 1] <= longest)
        for policy, zero in itertools.compress(variants, possible):
            table = pricer.stage_table(candidate, policy, zero, link)
            assert table is not None
            ways.append(_Way(candidate, zero, table))
            parts = (table.first, *table.layers, table.last)
            scores.append([np.concatenate([part.values.min(axis=0) for part in parts]),
                           np.concatenate([part.values.max(axis=0) for part in parts])])
    beaten = [any(np.all(other[1] <= score[0]) and np.any(other[1] < score[0]) for other in scores) for score in scores]
    return [way for way, is_beaten in zip(ways, beaten, strict=True) if not is_beaten]


def _solution(pricer: Pricer, menu: Menu, ways: Sequence[_Way], cut: Partition) -> Solution | None:
    stages, m = [], menu.num_micro_batches
    for stage in cut.stages:
        first, last = stage.first == 0, stage.last == pricer.chain.length - 1
        layers = pricer.chain.held([(stage.first, stage.last)])
        way = ways[stage.option]
        stages.append(stage_solution(way.candidate, way.table, way.zero, ((stage.first, stage.last),), first, last,
                                     layers, float(min(m, stage.from_end))))
    if not packs(pricer.cluster, [stage.mesh for stage in stages]):
        return None
    return Solution(tuple(stages), m, Schedule.ONE_F_ONE_B, 1)


def packs(cluster: Cluster, shapes: Sequence[Mesh]) -> bool:
    """Whether parts of nodes, packed larger ones first, never straddle two nodes."""
    used = 0
    parts = (shape.num_devices for shape in shapes if shape.num_devices < cluster.gpus_per_node)
    for size in sorted(parts, reverse=True):
        if used % cluster.gpus_per_node + size > cluster.gpus_per_node:
            return False
        used += size
    return True
