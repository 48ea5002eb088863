"""Asks the compiler about a plan: every distinct layer of every stage, predicted beside compiled, and a small run."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from autoplan.errors import InputError
from autoplan.export.placement import Naming, PlacedLayer, Program, place, strategies_of
from autoplan.export.planned import PlannedLayer, PlannedStage
from autoplan.intraop.layer_problem import LayerProblem, layer_problem
from autoplan.intraop.terms import Term
from autoplan.judge.hlo import Sent
from autoplan.judge.known import habit
from autoplan.judge.predicted import BytePrices, byte_setting, find_choice, flat_mesh, flops, predicted
from autoplan.judge.reduced import padded, reduced
from autoplan.judge.worker import Compiled, compiled, compiler, difference
from autoplan.sharding import Collective
from autoplan.workload import OPTIMIZER_STATE_BYTES

Scale = Literal["full", "small"]

ELEMENT_BYTES = 4  # all is judged in fp32: XLA on CPU sends 16-bit numbers as fp32 ones
MOST_COMPILED, MOST_RUN = 512, 64  # devices of a stage that are compiled for, and that are run
SAME = 1e-3  # results that differ by less than this part of their largest number are equal, in fp32


@dataclass(frozen=True)
class Figures:
    """What one micro-batch and one update of a layer take on a device: bytes sent, bytes of arguments, FLOPs."""

    sent: Sent
    argument_bytes: float
    flops: float


@dataclass(frozen=True)
class LayerVerdict:
    """Equal layers of a stage, of which one was compiled."""

    stage: int
    layer: str
    count: int
    predicted: Figures
    compiled: Figures

    @property
    def relative_error(self) -> float:
        """Largest error of the bytes sent by one kind of collective, as a part of all bytes sent by the layer."""
        total = max(sum(self.predicted.sent.values()), sum(self.compiled.sent.values()))
        return max((abs(a - b) for a, b in self.by_kind.values()), default=0.0) / (total or 1.0)

    @property
    def by_kind(self) -> dict[Collective, tuple[float, float]]:
        """Bytes sent, predicted and compiled, by kind of collective."""
        both = (self.predicted.sent, self.compiled.sent)
        kinds = {kind for sent in both for kind, _ in sent}
        first, second = ({kind: sum(n for (other, _), n in sent.items() if other is kind) for kind in kinds}
                         for sent in both)
        return {kind: (first[kind], second[kind]) for kind in sorted(kinds)}


@dataclass(frozen=True)
class Verdict:
    """What the compiler says of a plan. largest_difference: see `loss_matches`; None where nothing was run."""

    layers: tuple[LayerVerdict, ...]
    largest_difference: float | None
    notes: tuple[str, ...]

    @property
    def max_relative_error(self) -> float:
        """The largest of the layers' relative errors of bytes sent."""
        return max(layer.relative_error for layer in self.layers)

    @property
    def loss_matches(self) -> bool | None:
        """Whether outputs, gradients and updated parameters equal those of the unsharded model."""
        return None if self.largest_difference is None else self.largest_difference < SAME


def verify(stages: Sequence[PlannedStage], optimizer: str, scale: Scale = "full") -> Verdict:
    """Compile each distinct layer of each stage under its planned shardings, and run small copies of the stages.

    optimizer: tells how much state a parameter has. scale: of the sizes that are compiled, as planned or in small; the
    mesh is the plan's in both. Raises InputError without JAX, and for what can't be compiled here.
    """
    _check(stages)
    moments = OPTIMIZER_STATE_BYTES[optimizer] // ELEMENT_BYTES
    notes = [f"fp32; a micro-batch and an update of one of each stage's equal layers; {scale} sizes, the plan's meshes"]
    if any(stage.recomputes for stage in stages):
        notes.append("without recompute, which sends once more what the forward pass that it runs again sends")
    judged = [(stage, _judged(stage, optimizer)) for stage in map(reduced if scale == "small" else padded, stages)]
    worst: float | None = None
    notes += dict.fromkeys(f"XLA otherwise: {what}" for _, layers in judged for one in layers for what in one.habits)
    with compiler(max(math.prod(stage.shape) for stage in stages)) as pool:
        jobs = _Jobs(pool)
        waiting = [(stage.index, one, jobs.submit(compiled, Program((one.placed,), moments)))
                   for stage, layers in judged for one in layers]
        runs = []
        for stage in map(reduced, stages):
            if math.prod(stage.shape) <= MOST_RUN:
                chain = tuple(one.placed for one in _judged(stage, optimizer))
                runs.append(jobs.submit(difference, Program(chain, moments)))
            else:
                notes.append(f"stage {stage.index} was not run: more than {MOST_RUN} devices")
        rows = tuple(LayerVerdict(index, one.planned.layer.name, one.planned.count, one.figures, _figures(_result(job)))
                     for index, one, job in waiting)
        for run in runs:
            worst = max(worst or 0.0, _result(run))
    return Verdict(rows, worst, tuple(notes))


@dataclass(frozen=True)
class _Judged:
    """A layer, where it lies, what our prices say of it, and what XLA is known to do otherwise."""

    planned: PlannedLayer
    placed: PlacedLayer
    figures: Figures
    habits: tuple[str, ...]


class _Jobs:
    """Work given to the compiler's process, each piece once."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.given: dict[str, Future[Any]] = {}

    def submit(self, work: Callable[[Program], Any], program: Program) -> Future[Any]:
        """Give a piece of work, unless an equal one has been given."""
        key = f"{work.__name__} {program}"
        if key not in self.given:
            self.given[key] = self.pool.submit(work, program)
        return self.given[key]


def _result(job: Future[Any]) -> Any:
    try:
        return job.result()
    except BrokenProcessPool:
        raise InputError("XLA's process ended while it compiled or ran the plan; it may need more memory") from None


def _figures(got: Compiled) -> Figures:
    return Figures(got.sent, got.argument_bytes, got.flops)


def _check(stages: Sequence[PlannedStage]) -> None:
    """Raise InputError where JAX is missing, or a stage is too large or reads more than its neighbour's output."""
    if importlib.util.find_spec("jax") is None:
        raise InputError("needs JAX, which isn't installed", where="verify", key="extra jax",
                         allowed="pip install 'autoplan-parallel[jax]'")
    for stage in stages:
        if math.prod(stage.shape) > MOST_COMPILED:
            raise InputError("too many devices in a stage to compile for here", key=f"stages[{stage.index}].mesh.shape",
                             found=stage.shape, allowed=f"at most {MOST_COMPILED} devices")
        for layer in stage.layers:
            if layer.layer.carried:
                raise InputError("a layer that reads more than the residual stream can't be judged yet",
                                 key=layer.layer.name, found=[operand.tensor for operand in layer.layer.carried])


def _judged(stage: PlannedStage, optimizer: str) -> list[_Judged]:
    """Return a stage's layers, placed, and what our prices say of them.

    All meet in the residual layout of the layer that repeats, which has the same on both its sides.
    """
    setting = partial(byte_setting, flat_mesh(stage.shape, stage.names), stage.micro_batch, stage.seq_len, optimizer)
    boundary: tuple[int, ...] | None = None
    chosen: dict[str, tuple[LayerProblem, list[int], tuple[int, ...]]] = {}
    for planned in sorted(stage.layers, key=lambda one: one.layer.input is None or one.layer.output is None):
        zero = tuple(sorted(set(planned.zero.values()) or {0}))
        problem = layer_problem(planned.layer, setting(BytePrices()), zero=zero)
        assert problem is not None
        choice = find_choice(problem, planned.assign, planned.zero, boundary)
        boundary = boundary or problem.boundary(choice)
        chosen[planned.layer.name] = (problem, choice, zero)
    naming = Naming.of(stage.names, stage.shape, [
        one for problem, choice, _ in chosen.values() for one in strategies_of(problem, choice)])
    judged = []
    for planned in stage.layers:
        problem, choice, zero = chosen[planned.layer.name]
        placed = place(problem, choice, naming)
        terms = problem.terms(np.array(choice, np.int16))
        held = float(terms[[Term.WEIGHTS, Term.STATES]].sum()) + ELEMENT_BYTES * placed.local_elements
        figures = Figures(predicted(planned.layer, setting, choice, zero), held, flops(problem, choice))
        habits = (habit(one, k, stage.shape, max(zero)) for one, k in strategies_of(problem, choice))
        judged.append(_Judged(planned, placed, figures, tuple(what for what in habits if what is not None)))
    return judged
