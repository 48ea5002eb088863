"""From a candidate to a solution: layers cut into stages, and the rows each stage uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Axis, Cluster, Mesh, boundary
from autoplan.cost.schedules import in_flight, pipeline_time, position, weight_relief
from autoplan.interop import partition
from autoplan.intraop.overlap import passes
from autoplan.intraop.tables import LayerTable, StageTable
from autoplan.intraop.terms import Criterion, Term
from autoplan.runtimes import Runtime
from autoplan.search.pricer import Pricer
from autoplan.search.space import Candidate, interleaved_slots
from autoplan.workload import Recompute, Schedule

Array = NDArray[np.float64]
Chunk = tuple[int, int]


@dataclass(frozen=True)
class StageSolution:
    """One stage: its chunks of the chain (first and last layer, inclusive), its mesh, and the rows it uses.

    layers: the layers in between that it holds, by kind. time: seconds a micro-batch, step: seconds a step, memory:
    bytes at the peak. zero, recompute, roles, micro_batch_size: how it runs.
    """

    chunks: tuple[Chunk, ...]
    mesh: Mesh
    table: StageTable
    zero: int
    roles: tuple[str, ...] | None
    micro_batch_size: int
    layers: tuple[int, ...]
    in_flight: float
    row: int
    time: float
    step: float
    memory: float

    @property
    def recompute(self) -> Recompute:
        """The stage's recompute policy."""
        return self.table.recompute

    @property
    def first(self) -> bool:
        """Whether it holds the chain's first layer."""
        return self.chunks[0][0] == 0

    @property
    def last(self) -> bool:
        """Whether it holds the chain's last layer."""
        return sum(b - a + 1 for a, b in self.chunks) > sum(self.layers) + self.first

    @property
    def between(self) -> tuple[bool, ...]:
        """Which kinds of layers in between it holds."""
        return tuple(count > 0 for count in self.layers)

    @cached_property
    def used(self) -> tuple[tuple[LayerTable, int], ...]:
        """The tables the stage uses, first layer to last, with the row it uses of each."""
        return tuple(self.table.used(self.first, self.last, self.between, self.row))

    @cached_property
    def forward(self) -> float:
        """Of `time`, the seconds of the forward pass with its collectives and half of the parameters' gathers; what
        is waited for between layers that are laid out differently counts as backward."""
        seconds = 0.0
        for table, row in self.used:
            setting = table.problem.setting
            spent = passes(table.problem.terms(table.choice[row]), table.policy.recompute, setting.runtime,
                           setting.tensor_ranks)
            seconds += self.times(table) * float(spent.forward + spent.gather / 2)
        return seconds

    @cached_property
    def weight(self) -> float:
        """Of `time`, the seconds of the weights' gradients."""
        return sum(self.times(table) * float(table.problem.terms(table.choice[row])[Term.WEIGHT_GRADIENT])
                   for table, row in self.used)

    def times(self, table: LayerTable) -> int:
        """Return how many layers of the stage a table stands for."""
        return next((count for one, count in zip(self.table.layers, self.layers, strict=True) if one is table), 1)


@dataclass(frozen=True)
class Solution:
    """A whole pipeline. `objective`: seconds of one step."""

    stages: tuple[StageSolution, ...]
    num_micro_batches: int
    schedule: Schedule
    virtual_stages: int

    @cached_property
    def pipeline(self) -> float:
        """Seconds of a step's micro-batches."""
        times = [stage.time for stage in self.stages]
        if not self.schedule.splits_backward:
            return pipeline_time(self.schedule, times, self.num_micro_batches, self.virtual_stages)
        return pipeline_time(self.schedule, times, self.num_micro_batches, self.virtual_stages,
                             forward=[stage.forward for stage in self.stages],
                             weight=[stage.weight for stage in self.stages])

    @cached_property
    def objective(self) -> float:
        """Seconds of one step: the pipeline's time and the slowest stage's once-a-step work."""
        return self.pipeline + max(stage.step for stage in self.stages)

    @cached_property
    def least(self) -> float:
        """Seconds below which no other cut of the same recipe goes: the objective, unless the cut is that of another
        objective. Under zero-bubble H1 and H2 it's the best of 1F1B, so all cuts take no less than that one takes
        under 1F1B, less what weights' gradients may fill of the bubble."""
        if not self.schedule.splits_backward or self.schedule.chunked:
            return self.objective
        times, m = [stage.time for stage in self.stages], self.num_micro_batches
        relief = weight_relief(self.schedule, len(times), m) * sum(stage.weight for stage in self.stages)
        return pipeline_time(Schedule.ONE_F_ONE_B, times, m) + max(stage.step for stage in self.stages) - relief

    @property
    def fits(self) -> bool:
        """Whether every stage fits its devices' memory."""
        return all(stage.memory <= stage.table.setting.costs.cluster.device.memory_bytes for stage in self.stages)


@dataclass(frozen=True)
class Variant:
    """A candidate with everything chosen but the cut: recompute policy and ZeRO stage. bound: seconds."""

    candidate: Candidate
    recompute: Recompute
    zero: int
    bound: float


def neighbour(cluster: Cluster, num_devices: int) -> Axis:
    """Return the link between stages of `num_devices` devices: the slowest that any of them sends over."""
    inside = boundary(cluster, num_devices)
    if inside.size == 1 or cluster.num_nodes == 1 or not inside.is_local:
        return inside
    per_node = cluster.gpus_per_node // num_devices
    return boundary(cluster, num_devices, per_node - 1)


def _held(candidate: Candidate, s: int, runtime: Runtime) -> float:
    return in_flight(candidate.schedule, candidate.num_stages - s, candidate.num_stages, candidate.num_micro_batches,
                     candidate.virtual_stages, runtime.extra_in_flight)


def inside(values: Array) -> Array:
    """Spread values by number of layers, [..., count], over the stages within the chain, [..., count, count + 2].

    Entry [i, j] is for a stage that begins with layer i + 1 of the chain and ends before layer j, inf where it's empty.
    """
    padded = np.concatenate([values, np.full((*values.shape[:-1], 1), np.inf)], axis=-1)
    result: Array = padded[..., _layers_inside(values.shape[-1])]
    return result


@cache
def _layers_inside(count: int) -> NDArray[np.int64]:
    """Return for each stage within the chain its number of layers less one, `count` where it is empty."""
    layers = np.arange(count + 2)[None, :] - np.arange(1, count + 1)[:, None]
    return np.where((layers >= 1) & (layers <= count), layers - 1, count)


class UniformCosts:
    """The costs of a uniform candidate's stages, as the partitioner asks for them (`interop.StageCosts`)."""

    def __init__(self, pricer: Pricer, candidate: Candidate, table: StageTable) -> None:
        self.chain, self.candidate, self.table = pricer.chain, candidate, table
        self.num_layers = pricer.chain.length
        self.sizes = (1,)

    def at(self, s: int) -> tuple[Array, Array]:
        """Return time and step of the s-th stage from the end, [N, N+1, 1]."""
        n, p = self.num_layers, self.candidate.num_stages
        time = np.full((n, n + 1, 1), np.inf)
        step = np.full((n, n + 1, 1), np.inf)
        if s > p:
            return time, step
        first, last, count = s == p, s == 1, self.chain.count
        begin, end = np.indices((count + 1, count + 1)).reshape(2, -1)  # of the layers in between
        kept = (begin <= end) if first or last else (begin < end)
        kept &= (begin == 0) | (not first)
        kept &= (end == count) | (not last)
        begin, end = begin[kept], end[kept]
        layers, same = np.unique(self.chain.before[end] - self.chain.before[begin], axis=0, return_inverse=True)
        held = np.array([_held(self.candidate, s, self.table.setting.runtime)])
        best = self.table.best(first=first, last=last, layers=layers, in_flight=held)
        at = (begin + 1 - first, end + 1 + last, 0)
        time[at], step[at] = best.time[0, same.reshape(-1)], best.step[0, same.reshape(-1)]
        return time, step


def solve(pricer: Pricer, candidate: Candidate, recompute: Recompute, zero: int, *,
          upper_bound: float = float("inf")) -> Solution | None:
    """Cut the chain into the candidate's stages; None where nothing fits or is below `upper_bound` seconds.

    Zero-bubble H1 and H2 take the cut that is best under 1F1B with their memory, which needn't be their own best, and
    whatever it takes (see `Solution.least`).
    """
    link = neighbour(pricer.cluster, candidate.mesh.num_devices)
    table = pricer.stage_table(candidate, recompute, zero, link)
    if table is None:
        return None
    if candidate.schedule.chunked or candidate.layers is not None:
        found = _cut_as_given(pricer, candidate, table, zero)
        return found if found.fits and found.objective < upper_bound else None
    p, exact = candidate.num_stages, not candidate.schedule.splits_backward
    cut = partition(UniformCosts(pricer, candidate, table), num_micro_batches=candidate.num_micro_batches, num_quanta=p,
                    max_stages=p, num_stages=p, upper_bound=upper_bound if exact else float("inf"))
    if cut is None:
        return None
    return assemble(pricer, candidate, table, zero, [((stage.first, stage.last),) for stage in cut.stages])


def fallback(pricer: Pricer, candidate: Candidate, recompute: Recompute, zero: int) -> Solution | None:
    """Return the candidate with equally cut layers (or those given) and the rows that need least memory, though it
    doesn't fit."""
    table = pricer.stage_table(candidate, recompute, zero, neighbour(pricer.cluster, candidate.mesh.num_devices))
    if table is None:
        return None
    return _cut_as_given(pricer, candidate, table, zero)


def _cut_as_given(pricer: Pricer, candidate: Candidate, table: StageTable, zero: int) -> Solution:
    """Cut the chain as the candidate says: into chunks, into the layers it gives, or else equally."""
    if candidate.schedule.chunked:
        return chunked(pricer, candidate, table, zero)
    count, p = pricer.chain.count, candidate.num_stages
    equal = [count // p + (index < count % p) for index in range(p)]
    return assemble(pricer, candidate, table, zero, given_cut(candidate.layers or equal))


def given_cut(layers: Sequence[int]) -> list[tuple[Chunk, ...]]:
    """Cut a chain into stages of so many equal layers; the first and the last hold the chain's ends too."""
    ends = 1 + np.cumsum(layers)
    starts = np.concatenate([[0], ends[:-1]])
    ends[-1] += 1
    return [((int(a), int(b) - 1),) for a, b in zip(starts, ends, strict=True)]


def chunked(pricer: Pricer, candidate: Candidate, table: StageTable, zero: int) -> Solution:
    """Give every stage v equal chunks, where its schedule places them (see `space.interleaved_slots`)."""
    p, v, n = candidate.num_stages, candidate.virtual_stages, pricer.chain.length
    each = interleaved_slots(pricer.chain, p, v)
    ends_on_top = pricer.chain.count == each * p * v
    sizes = np.full(p * v, each)
    if ends_on_top:
        sizes[[0, -1]] += 1
    stops = np.cumsum(sizes)
    starts = np.concatenate([[0], stops[:-1]])
    assert stops[-1] == n
    held = [[position(candidate.schedule, stage, chunk, p) for chunk in range(v)] for stage in range(p)]
    cuts = [tuple((int(starts[at]), int(stops[at]) - 1) for at in places) for places in held]
    return assemble(pricer, candidate, table, zero, cuts)


def assemble(pricer: Pricer, candidate: Candidate, table: StageTable, zero: int,
             cuts: Sequence[tuple[Chunk, ...]]) -> Solution:
    """Return the solution with these chunks a stage, fit or not (rows: the fastest that fit, else the smallest)."""
    p, n = candidate.num_stages, pricer.chain.length
    stages = []
    for index, chunks in enumerate(cuts):
        first, last = chunks[0][0] == 0, chunks[-1][1] == n - 1
        layers = pricer.chain.held(chunks)
        held = in_flight(candidate.schedule, index, p, candidate.num_micro_batches, candidate.virtual_stages,
                         pricer.runtime.extra_in_flight)
        stages.append(stage_solution(candidate, table, zero, chunks, first, last, layers, held))
    return Solution(tuple(stages), candidate.num_micro_batches, candidate.schedule, candidate.virtual_stages)


def stage_solution(candidate: Candidate, table: StageTable, zero: int, chunks: tuple[Chunk, ...], first: bool,
                   last: bool, layers: tuple[int, ...], held: float) -> StageSolution:
    """Return one stage with its best rows."""
    best = table.best(first=first, last=last, layers=np.array([layers]), in_flight=np.array([held]))
    row = int(best.row[0, 0])
    rows = table.combinations(first, last, tuple(count > 0 for count in layers))
    total = rows.fixed[row] + np.array(layers) @ rows.each[:, row]
    return StageSolution(chunks, candidate.mesh, table, zero, candidate.roles, candidate.micro_batch_size, layers, held,
                         row, float(total[Criterion.T_MICRO_BATCH]), float(total[Criterion.T_STEP]),
                         float(best.memory[0, 0]))


