"""Why nothing fits: the configuration that comes nearest, the stage that binds, the smallest change that would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.cluster import Cluster
from autoplan.cluster.mesh import divisors
from autoplan.cost.memory import usable_bytes
from autoplan.cost.model import CostModel
from autoplan.errors import NoPlanError
from autoplan.runtimes import Runtime
from autoplan.search.assemble import memory_of
from autoplan.search.drive import policies, zero_stages
from autoplan.search.pricer import Pricer
from autoplan.search.probe import bounds
from autoplan.search.solve import Solution, StageSolution, fallback, solve
from autoplan.search.space import Candidate, Pins, candidates
from autoplan.workload import Recompute, Schedule

GIB = 2.0**30
LEFT_OPEN = "everything but the batch and the model left to the search"
MOST_TIMES_LARGER = 64
ROUND_COUNTS = sorted((1, *(part << power for part in (2, 3) for power in range(20))))  # 1, 2, 3, 4, 6, 8, 12 …


def no_plan(pricer: Pricer, pins: Pins, *, timed_out: bool) -> NoPlanError:
    """Return the error that tells why nothing fits."""
    found = nearest(pricer, pins)
    if found is None:
        return NoPlanError("no configuration divides the model, the batch and the cluster under what was fixed",
                           {"reason": "indivisible", "timed_out": timed_out})
    solution, zero = found
    stage = max(solution.stages, key=lambda one: one.memory)
    held = memory_of(stage)
    over = (held.high_bytes - held.capacity_bytes) / GIB
    parts = sorted(held.breakdown.model_dump().items(), key=lambda item: -item[1])
    filled = ", ".join(f"{name} {value / GIB:.1f} GiB" for name, value in parts if value > 0)
    change = next(changes(pricer, pins), None)
    advice = f"the nearest change that fits: {change}" if change else \
        f"nothing up to {MOST_TIMES_LARGER} times the devices fits either"
    index = solution.stages.index(stage)
    message = (
        f"nothing fits: the configuration that needs least memory ({_describe(stage, solution, zero)}) may need "
        f"{held.high_bytes / GIB:.1f} GiB of {held.capacity_bytes / GIB:.1f} GiB on stage {index} "
        f"(layers {stage.chunks[0][0]}–{stage.chunks[-1][1]}), {over:.1f} GiB over; it likely holds "
        f"{held.total_bytes / GIB:.1f} GiB: {filled}; {advice}")
    return NoPlanError(message, {
        "reason": "memory", "stage": index, "layers": [list(chunk) for chunk in stage.chunks],
        "needed_bytes": held.high_bytes, "likely_bytes": held.total_bytes, "capacity_bytes": held.capacity_bytes,
        "over_bytes": held.high_bytes - held.capacity_bytes, "breakdown": held.breakdown.model_dump(),
        "nearest_change": change, "timed_out": timed_out})


def _describe(stage: StageSolution, solution: Solution, zero: int) -> str:
    shape = " × ".join(f"{name} {size}" for name, size in zip(stage.mesh.names, stage.mesh.shape, strict=True))
    count = len(solution.stages)
    return (f"{count} stage{'s' * (count > 1)} of {shape}, micro-batch {stage.micro_batch_size}, ZeRO-{zero}, "
            f"recompute {stage.recompute.value}")


def nearest(pricer: Pricer, pins: Pins) -> tuple[Solution, int] | None:
    """Return the named configuration with the least peak memory, and its ZeRO stage."""
    best: tuple[float, Solution, int] | None = None
    for candidate in _named(pricer, pins):
        smallest = pins.micro_batch_size or pins.num_micro_batches or candidate.micro_batch_size == 1
        if not smallest and best is not None:
            continue
        recompute = policies(pricer, pins.recompute, pins.schedule)[-1]
        zeros = zero_stages(pricer, candidate, pins.zero)
        found = fallback(pricer, candidate, recompute, zeros[-1]) if zeros else None
        if found is None:
            continue
        peak = max(stage.memory for stage in found.stages)
        if best is None or peak < best[0]:
            best = (peak, found, zeros[-1])
    return None if best is None else best[1:]


def changes(pricer: Pricer, pins: Pins) -> Iterator[str]:
    """Yield, smallest first, the changes after which something fits."""
    for words, relaxed in _relaxations(pricer.runtime, pins):
        if _fits(pricer, relaxed):
            yield words
    left = {replace(pins, dp=None): "" if pins.dp is None else ", and another dp"}
    left.setdefault(Pins(), f", and {LEFT_OPEN}")
    for fixed, words in left.items():
        larger = [one for one in _enlarged(pricer) if next(_named(one, fixed), None) is not None]
        if not larger or not _fits(larger[-1], fixed):  # what doesn't fit on the most devices fits on no fewer
            continue
        one = next(one for one in larger if _fits(one, fixed))
        yield f"{one.cluster.num_devices} devices instead of {pricer.cluster.num_devices}{words}"
        return


def _relaxations(runtime: Runtime, pins: Pins) -> Iterator[tuple[str, Pins]]:
    """Yield what the user fixed, let go one by one and then all together."""
    offered = runtime.zero_stages(pins.pp)
    free: list[tuple[str, dict[str, object]]] = []
    if pins.micro_batch_size is not None:
        smaller = divisors(pins.micro_batch_size)[-2::-1]
        free += [(f"a micro-batch of {size}", {"micro_batch_size": size}) for size in smaller]
    if pins.num_micro_batches is not None:
        free.append(("another micro-batch count", {"num_micro_batches": None}))
    split = pins.schedule is not None and pins.schedule.splits_backward
    if split:
        free.append(("schedule 1f1b", {"schedule": Schedule.ONE_F_ONE_B, "virtual_stages": None}))
    if pins.recompute not in (None, Recompute.FULL) and not split:
        free.append(("full recompute", {"recompute": Recompute.FULL}))
    if pins.zero is not None:
        free += [(f"ZeRO stage {stage}", {"zero": stage}) for stage in offered if stage > pins.zero]
    least: dict[str, object] = {"micro_batch_size": 1, "recompute": pins.recompute if split else Recompute.FULL,
                                "zero": max(offered)}
    together = {key: value for key, value in least.items() if getattr(pins, key) not in (None, value)}
    if len(together) > 1:
        said = {"micro_batch_size": "a micro-batch of 1", "recompute": "full recompute",
                "zero": f"ZeRO stage {max(offered)}"}
        free.append((" and ".join(said[key] for key in together), together))
    if pins.layers is not None:
        free.append(("another cut of the layers", {"layers": None}))
    for key, words in (("tp", "another tp"), ("pp", "another pp"), ("dp", "another dp"), ("cp", "another cp")):
        if getattr(pins, key) is not None:
            free.append((words, {"pp": None, "layers": None} if key == "pp" else {key: None}))
    for words, change in free:
        yield words, replace(pins, **change)  # type: ignore[arg-type]
    if len(free) > 1:
        yield LEFT_OPEN, Pins()


def _enlarged(pricer: Pricer) -> Iterator[Pricer]:
    """Yield the same question on more devices, fewest first: the rest of the node, then round counts of nodes
    (powers of two and three times those), which batches and layers divide over.

    Counts whose devices together can't hold the model's state are left out.
    """
    cluster, node = pricer.cluster, pricer.cluster.node
    least = _state_bytes(pricer) / usable_bytes(cluster.device.memory_bytes, pricer.runtime)
    for devices in divisors(node.gpus):
        if cluster.num_devices < devices < node.gpus and devices >= least:
            yield _resized(pricer, Cluster(cluster.name, cluster.groups, devices, cluster.oversubscription))
    for nodes in ROUND_COUNTS:
        devices = nodes * node.gpus
        if max(cluster.num_devices + 1, least) <= devices <= MOST_TIMES_LARGER * cluster.num_devices:
            group = replace(cluster.groups[0], count=nodes)
            yield _resized(pricer, Cluster(cluster.name, (group,), node.gpus, cluster.oversubscription))


def _state_bytes(pricer: Pricer) -> float:
    """Return the bytes that the model's state takes on all devices together, each parameter held once."""
    workload = pricer.workload
    each = workload.weight_bytes + workload.grad_bytes + workload.optimizer_bytes
    return float(pricer.chain.model.num_params * each)


def _resized(pricer: Pricer, cluster: Cluster) -> Pricer:
    costs = CostModel(cluster, pricer.runtime, pricer.costs.profile)
    return Pricer(pricer.chain, cluster, costs, pricer.runtime, pricer.workload, shard=pricer.shard)


def _named(pricer: Pricer, pins: Pins) -> Iterator[Candidate]:
    return candidates(pricer.chain, pricer.cluster, pricer.workload, pricer.runtime, pins, named=True)


def _fits(pricer: Pricer, pins: Pins) -> bool:
    """Whether any named configuration fits, what is left open being what needs least memory."""
    free = pins.micro_batch_size is None and pins.num_micro_batches is None
    smallest = replace(pins, micro_batch_size=1) if free else pins
    kinds = policies(pricer, pins.recompute, pins.schedule)[-1:]
    for candidate in _named(pricer, smallest):
        for variant in bounds(pricer, candidate, kinds, zero_stages(pricer, candidate, pins.zero)[-1:]):
            if solve(pricer, variant.candidate, variant.recompute, variant.zero) is not None:
                return True
    return False
