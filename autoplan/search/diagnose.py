"""Why nothing fits: the configuration that comes nearest, the stage that binds, the smallest change that would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.cluster import Cluster
from autoplan.cost.model import CostModel
from autoplan.errors import NoPlanError
from autoplan.search.assemble import memory_of
from autoplan.search.drive import Limits, policies, search, zero_stages
from autoplan.search.pricer import Pricer
from autoplan.search.solve import Solution, StageSolution, fallback
from autoplan.search.space import Pins, candidates
from autoplan.workload import Recompute

GIB = 2.0**30
MOST_TIMES_LARGER = 64


def no_plan(pricer: Pricer, pins: Pins, *, timed_out: bool) -> NoPlanError:
    """Return the error that tells why nothing fits."""
    nearest = _nearest(pricer, pins)
    if nearest is None:
        return NoPlanError("no configuration divides the model, the batch and the cluster under what was fixed",
                           {"reason": "indivisible", "timed_out": timed_out})
    solution, zero = nearest
    stage = max(solution.stages, key=lambda one: one.memory)
    held = memory_of(stage)
    over = (held.total_bytes - held.capacity_bytes) / GIB
    parts = sorted(held.breakdown.model_dump().items(), key=lambda item: -item[1])
    filled = ", ".join(f"{name} {value / GIB:.1f} GiB" for name, value in parts if value > 0)
    change = next(_changes(pricer, pins), None)
    advice = f"the nearest change that fits: {change}" if change else \
        f"nothing up to {MOST_TIMES_LARGER} times the devices fits either"
    index = solution.stages.index(stage)
    message = (
        f"nothing fits: the configuration that needs least memory ({_describe(stage, solution, zero)}) needs "
        f"{held.total_bytes / GIB:.1f} GiB of {held.capacity_bytes / GIB:.1f} GiB on stage {index} "
        f"(layers {stage.chunks[0][0]}–{stage.chunks[-1][1]}), {over:.1f} GiB over; it holds {filled}; {advice}")
    return NoPlanError(message, {
        "reason": "memory", "stage": index, "layers": [list(chunk) for chunk in stage.chunks],
        "needed_bytes": held.total_bytes, "capacity_bytes": held.capacity_bytes,
        "over_bytes": held.total_bytes - held.capacity_bytes, "breakdown": held.breakdown.model_dump(),
        "nearest_change": change, "timed_out": timed_out})


def _describe(stage: StageSolution, solution: Solution, zero: int) -> str:
    shape = " × ".join(f"{name} {size}" for name, size in zip(stage.mesh.names, stage.mesh.shape, strict=True))
    return (f"{len(solution.stages)} stages of {shape}, micro-batch {stage.micro_batch_size}, ZeRO-{zero}, "
            f"recompute {stage.recompute.value}")


def _nearest(pricer: Pricer, pins: Pins) -> tuple[Solution, int] | None:
    """Return the named configuration with the least peak memory, and its ZeRO stage."""
    best: tuple[float, Solution, int] | None = None
    for candidate in candidates(pricer.chain, pricer.cluster, pricer.workload, pins, named=True):
        smallest = pins.micro_batch_size or pins.num_micro_batches or candidate.micro_batch_size == 1
        if not smallest and best is not None:
            continue
        recompute = policies(pricer, pins.recompute)[-1]
        zero = zero_stages(candidate, pins.zero)[-1]
        found = fallback(pricer, candidate, recompute, zero)
        if found is None:
            continue
        peak = max(stage.memory for stage in found.stages)
        if best is None or peak < best[0]:
            best = (peak, found, zero)
    return None if best is None else best[1:]


def _changes(pricer: Pricer, pins: Pins) -> Iterator[str]:
    """Yield, smallest first, the changes after which something fits."""
    for words, relaxed in _relaxations(pins):
        if _fits(pricer, relaxed):
            yield words
    factor = 2
    while factor <= MOST_TIMES_LARGER:
        larger = _enlarged(pricer, factor)
        if larger is not None and _fits(larger, replace(pins, dp=None)):
            yield f"{larger.cluster.num_devices} devices instead of {pricer.cluster.num_devices}"
            return
        factor *= 2


def _relaxations(pins: Pins) -> Iterator[tuple[str, Pins]]:
    """Yield what the user fixed, let go one by one and then all together."""
    free: list[tuple[str, dict[str, object]]] = []
    if pins.micro_batch_size not in (None, 1):
        free.append(("a micro-batch of 1", {"micro_batch_size": 1}))
    if pins.num_micro_batches is not None:
        free.append(("another micro-batch count", {"num_micro_batches": None}))
    if pins.recompute not in (None, Recompute.FULL):
        free.append(("full recompute", {"recompute": Recompute.FULL}))
    if pins.zero not in (None, 3):
        free.append(("a higher ZeRO stage", {"zero": None}))
    for key, words in (("tp", "another tp"), ("pp", "another pp"), ("dp", "another dp"), ("cp", "another cp")):
        if getattr(pins, key) is not None:
            free.append((words, {key: None}))
    for words, change in free:
        yield words, replace(pins, **change)  # type: ignore[arg-type]
    if len(free) > 1:
        yield "everything but the batch and the model left to the search", Pins()


def _enlarged(pricer: Pricer, factor: int) -> Pricer | None:
    """Return the same question on `factor` times the devices: the rest of the node first, then more nodes."""
    cluster = pricer.cluster
    group = cluster.groups[0]
    wanted = cluster.num_devices * factor
    if wanted <= group.node.gpus:
        larger = Cluster(cluster.name, cluster.groups, wanted, cluster.oversubscription)
    elif wanted % group.node.gpus == 0:
        nodes = replace(group, count=wanted // group.node.gpus)
        larger = Cluster(cluster.name, (nodes,), group.node.gpus, cluster.oversubscription)
    else:
        return None
    return Pricer(pricer.chain, larger, CostModel(larger, pricer.runtime), pricer.runtime, pricer.workload,
                  pricer.solver)


def _fits(pricer: Pricer, pins: Pins) -> bool:
    """Whether any named configuration fits."""
    limits = Limits(top=1, gap=1.0)
    return search(pricer, pins, limits).best is not None
