"""Is a plan sound? Everything here can be proven from the plan file alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from autoplan.errors import InputError
from autoplan.plan.schema import ParamSpec, Plan, Sharding, Spec, Stage
from autoplan.workload import Schedule

TOLERANCE = 1e-6  # relative, of sums of times
# The mesh axes whose sizes make up each degree of a named recipe.
AXES = {"dp": ("data", "expert"), "cp": ("context",), "tp": ("model",)}
FIRST, LAST = "embedding", "head"  # the classes of the chain's first and last layer


def problems(plan: Plan) -> list[str]:
    """Return what is wrong with the plan, a sentence each that starts with the path; empty if nothing is."""
    checks = (_cluster, _devices, _layers, _degrees, _summary, _times, _memory, _capacity, _operators, _shardings,
              _search, _alternatives)
    return list(chain.from_iterable(check(plan) for check in checks))


def load_consistent(path: str | Path) -> Plan:
    """Read a plan to go by. InputError where it can't be read or is unsound; it may need more memory than there is."""
    plan = Plan.load(path)
    too_full = set(_capacity(plan))
    found = [problem for problem in problems(plan) if problem not in too_full]
    if found:
        more = f" (and {len(found) - 1} more: see autoplan check)" if len(found) > 1 else ""
        raise InputError(f"not a sound plan: {found[0]}{more}", where=str(path))
    return plan


def over_capacity(plan: Plan) -> list[Stage]:
    """Return the stages that need more memory than their devices have."""
    return [stage for stage in plan.stages if stage.memory.high_bytes > stage.memory.capacity_bytes]


def by_class(shardings: Mapping[str, Sharding]) -> dict[str, dict[str, Sharding]]:
    """Return a stage's shardings by layer class, then by operator."""
    groups: dict[str, dict[str, Sharding]] = {}
    for name, sharding in shardings.items():
        layer, _, operator = name.rpartition(".")
        groups.setdefault(layer, {})[operator] = sharding
    return groups


def _cluster(plan: Plan) -> Iterator[str]:
    cluster = plan.cluster
    if cluster.num_devices != cluster.num_nodes * cluster.gpus_per_node:
        yield (f"cluster.num_devices: {cluster.num_devices} is not {cluster.num_nodes} nodes × "
               f"{cluster.gpus_per_node} GPUs")
    if plan.model.parameters.active > plan.model.parameters.total:
        yield "model.parameters.active: more parameters are active than there are"


def _devices(plan: Plan) -> Iterator[str]:
    uses = Counter(device for stage in plan.stages for device in stage.devices)
    twice = sorted(device for device, times in uses.items() if times > 1)
    outside = sorted(device for device in uses if device >= plan.cluster.num_devices)
    if twice:
        yield f"stages: {_listed('device', twice)} used more than once"
    if outside:
        yield f"stages: {_listed('device', outside)} outside the cluster of {plan.cluster.num_devices} devices"
    for position, stage in enumerate(plan.stages):
        if stage.index != position:
            yield f"stages[{position}].index: is {stage.index}, not {position}"


def _layers(plan: Plan) -> Iterator[str]:
    whole = True
    for stage in plan.stages:
        path = f"stages[{stage.index}]"
        if stage.layers != stage.chunks[0]:
            yield f"{path}.layers: is {list(stage.layers)}, but the first chunk is {list(stage.chunks[0])}"
        if len(stage.chunks) != plan.parallelism.virtual_stages:
            whole = False
            yield (f"{path}.chunks: has {len(stage.chunks)} chunks, but parallelism.virtual_stages is "
                   f"{plan.parallelism.virtual_stages}")
        for number, (first, last) in enumerate(stage.chunks):
            if last < first:
                whole = False
                yield f"{path}.chunks[{number}]: ends at layer {last}, before its first layer {first}"
    if not whole:
        return
    expected = 0
    there_and_back = plan.parallelism.schedule is Schedule.ZB_V
    for number in range(plan.parallelism.virtual_stages):
        for stage in reversed(plan.stages) if there_and_back and number == 1 else plan.stages:
            first, last = stage.chunks[number]
            if first != expected:
                what = "is covered twice" if first < expected else "is covered by no stage"
                yield (f"stages[{stage.index}].chunks[{number}]: starts at layer {first} where layer {expected} is "
                       f"next: layer {min(first, expected)} {what}")
                return
            expected = last + 1
    if expected != plan.model.num_layers:
        yield f"stages: cover layers 0 to {expected - 1}, but the model has {plan.model.num_layers} layers"


def _degrees(plan: Plan) -> Iterator[str]:
    if plan.parallelism.pp != len(plan.stages):
        yield f"parallelism.pp: is {plan.parallelism.pp}, but there are {len(plan.stages)} stages"
    if (plan.parallelism.virtual_stages > 1) != plan.parallelism.schedule.chunked:
        yield (f"parallelism.virtual_stages: {plan.parallelism.virtual_stages} doesn't go with the schedule "
               f"{plan.parallelism.schedule.value}")
    for stage in plan.stages:
        path, own = f"stages[{stage.index}]", stage.parallelism
        if len(stage.mesh.shape) != len(stage.mesh.axes) or len(set(stage.mesh.axes)) != len(stage.mesh.axes):
            yield f"{path}.mesh.axes: needs one distinct name for each of the {len(stage.mesh.shape)} axes"
        if math.prod(stage.mesh.shape) != len(stage.devices):
            yield (f"{path}.mesh.shape: {' × '.join(map(str, stage.mesh.shape))} = {math.prod(stage.mesh.shape)} "
                   f"is not the number of its devices, {len(stage.devices)}")
        if own.dp and own.tp and own.cp and own.dp * own.tp * own.cp != len(stage.devices):
            yield (f"{path}.parallelism: dp {own.dp} × tp {own.tp} × cp {own.cp} is not the number of its devices, "
                   f"{len(stage.devices)}")
        yield from _axes(path, stage)
        yield from _batch(f"{path}.parallelism", own.dp, own.micro_batch_size, plan)
        if stage.memory.in_flight > plan.parallelism.num_micro_batches:
            yield (f"{path}.memory.in_flight: keeps {stage.memory.in_flight:g} micro-batches of "
                   f"{plan.parallelism.num_micro_batches}")


def _axes(path: str, stage: Stage) -> Iterator[str]:
    """A stage with a named recipe has the degrees of its mesh's axes."""
    if stage.parallelism.recipe is None:
        return
    sizes = dict(zip(stage.mesh.axes, stage.mesh.shape, strict=False))
    for degree, axes in AXES.items():
        found, size = getattr(stage.parallelism, degree), math.prod(sizes.get(axis, 1) for axis in axes)
        if found is not None and found != size:
            named = " and ".join(repr(axis) for axis in axes if axis in sizes) or repr(axes[0])
            yield f"{path}.parallelism.{degree}: is {found}, but the mesh's axis {named} has {size}"


def _batch(path: str, dp: int | None, micro_batch_size: int | None, plan: Plan) -> Iterator[str]:
    total, number = plan.workload.global_batch_size, plan.parallelism.num_micro_batches
    if dp and micro_batch_size and dp * micro_batch_size * number != total:
        yield (f"{path}: dp {dp} × micro_batch_size {micro_batch_size} × num_micro_batches {number} is not the global "
               f"batch size, {total}")


def _summary(plan: Plan) -> Iterator[str]:
    """The top level says what the stages say where they agree, and null where they differ."""
    for name in type(plan.stages[0].parallelism).model_fields:
        values = {getattr(stage.parallelism, name) for stage in plan.stages}
        expected = values.pop() if len(values) == 1 else None
        found = getattr(plan.parallelism, name)
        if found != expected:
            yield f"parallelism.{name}: is {_value(found)}, but the stages' values give {_value(expected)}"


def _times(plan: Plan) -> Iterator[str]:
    predicted, tokens = plan.predicted, plan.workload.global_batch_size * plan.workload.seq_len
    yield from _sum("predicted.breakdown", predicted.breakdown.model_dump().values(), predicted.iteration_time_s,
                    "predicted.iteration_time_s")
    if not _close(predicted.tokens_per_s * predicted.iteration_time_s, tokens):
        yield f"predicted.tokens_per_s: is not {tokens} tokens / {predicted.iteration_time_s:g} s"
    if not _close(predicted.tokens_per_s_per_device * plan.cluster.num_devices, predicted.tokens_per_s):
        yield f"predicted.tokens_per_s_per_device: is not predicted.tokens_per_s / {plan.cluster.num_devices} devices"
    if not _close(predicted.bubble_fraction * predicted.iteration_time_s, predicted.breakdown.bubble_s):
        yield "predicted.bubble_fraction: is not breakdown.bubble_s / iteration_time_s"
    if predicted.physical_limit_s > predicted.iteration_time_s * (1 + TOLERANCE):
        yield (f"predicted.physical_limit_s: {predicted.physical_limit_s:g} s is more than the iteration time, "
               f"{predicted.iteration_time_s:g} s")
    if predicted.physical_limit_s > predicted.mfu * predicted.iteration_time_s * (1 + TOLERANCE):
        yield (f"predicted.mfu: {predicted.mfu:g} is less than physical_limit_s / iteration_time_s, "
               f"{predicted.physical_limit_s / predicted.iteration_time_s:g}")
    if (predicted.mfu > 0) != (predicted.model_tflops_per_device > 0):
        yield "predicted.mfu: goes with model_tflops_per_device, both zero or neither"
    for stage in plan.stages:
        time = stage.time
        busy = time.micro_batch_s * plan.parallelism.num_micro_batches + time.step_s
        yield from _sum(f"stages[{stage.index}].time.breakdown", time.breakdown.model_dump().values(), busy,
                        "micro_batch_s × num_micro_batches + step_s")
        if time.forward_s + time.weight_gradient_s > time.micro_batch_s * (1 + TOLERANCE):
            yield (f"stages[{stage.index}].time: forward_s and weight_gradient_s are more than micro_batch_s, "
                   f"{time.micro_batch_s:g} s")
        alone = busy - time.breakdown.p2p_s
        simulated = predicted.simulated_time_s
        if simulated is not None and simulated < alone * (1 - TOLERANCE):
            yield f"predicted.simulated_time_s: {simulated:g} s is less than stage {stage.index} works, {alone:g} s"


def _memory(plan: Plan) -> Iterator[str]:
    for stage in plan.stages:
        path, memory = f"stages[{stage.index}].memory", stage.memory
        parts = sum(memory.breakdown.model_dump().values())
        if parts != memory.total_bytes:
            yield f"{path}.breakdown: adds up to {parts} bytes, but total_bytes is {memory.total_bytes}"
        if not memory.low_bytes <= memory.total_bytes <= memory.high_bytes:
            yield (f"{path}.total_bytes: {memory.total_bytes} is not between low_bytes, {memory.low_bytes}, and "
                   f"high_bytes, {memory.high_bytes}")
        if memory.capacity_bytes > plan.cluster.device_memory_bytes:
            yield (f"{path}.capacity_bytes: {memory.capacity_bytes} is more than cluster.device_memory_bytes, "
                   f"{plan.cluster.device_memory_bytes}")
    peak = max(stage.memory.total_bytes for stage in plan.stages)
    if plan.predicted.peak_memory_bytes != peak:
        yield f"predicted.peak_memory_bytes: is {plan.predicted.peak_memory_bytes}, but the fullest stage has {peak}"


def _capacity(plan: Plan) -> Iterator[str]:
    for stage in over_capacity(plan):
        yield (f"stages[{stage.index}].memory.high_bytes: {stage.memory.high_bytes} bytes don't fit into "
               f"capacity_bytes, {stage.memory.capacity_bytes}")


def _operators(plan: Plan) -> Iterator[str]:
    """Each stage lists every operator of the classes of its layers, and of no others."""
    held = [by_class(stage.shardings) for stage in plan.stages]
    every: dict[str, set[str]] = {}
    for classes in held:
        for name, operators in classes.items():
            every.setdefault(name, set()).update(operators)
    final = plan.model.num_layers - 1
    for stage, classes in zip(plan.stages, held, strict=True):
        path = f"stages[{stage.index}].shardings"
        inner = sorted(set(every) - {FIRST, LAST})
        first = any(chunk[0] == 0 for chunk in stage.chunks)
        last = any(chunk[1] == final for chunk in stage.chunks)
        between = any(max(low, 1) <= min(high, final - 1) for low, high in stage.chunks)
        for name, layer, holds in ((FIRST, 0, first), (LAST, final, last)):
            if holds and name not in classes:
                yield f"{path}: lists no operator of {name!r}, but the stage holds layer {layer}"
            if not holds and name in classes:
                yield f"{path}: lists operators of {name!r}, but the stage doesn't hold layer {layer}"
        if between != any(name in classes for name in inner):
            yield (f"{path}: lists no operator of the layers between {FIRST} and {LAST}, but the stage holds some"
                   if between else f"{path}: lists operators of layers between {FIRST} and {LAST}, but holds none")
        for name, operators in classes.items():
            missing = sorted(every[name] - operators.keys())
            if missing:
                yield f"{path}: lacks {', '.join(f'{name}.{op}' for op in missing)}, which other stages list"
            sources = {source for sharding in operators.values() for source in sharding.inputs}
            unknown = sorted(sources - operators.keys() - every[name])
            if len(unknown) > (name != FIRST):  # one is the layer's own input
                yield f"{path}: lists no operator of {name!r} that gives {' or '.join(unknown)}"


def _shardings(plan: Plan) -> Iterator[str]:
    for stage in plan.stages:
        for operator, sharding in stage.shardings.items():
            path = f"stages[{stage.index}].shardings[{operator!r}]"
            for name, tensor in sharding.inputs.items():
                yield from _spec(f"{path}.inputs[{name!r}]", tensor, stage)
            for name, param in sharding.params.items():
                yield from _spec(f"{path}.params[{name!r}]", param, stage)
            yield from _spec(f"{path}.output", sharding.output, stage)


def _spec(path: str, spec: Spec, stage: Stage) -> Iterator[str]:
    if len(spec.axes) != len(spec.dims):
        yield f"{path}.axes: has {len(spec.axes)} entries for {len(spec.dims)} dims"
    used = Counter((*chain.from_iterable(spec.axes), *spec.partial))
    for axis, times in used.items():
        if axis not in stage.mesh.axes:
            yield f"{path}: uses the axis {axis!r}, which the stage's mesh lacks (it has {', '.join(stage.mesh.axes)})"
        if times > 1:
            yield f"{path}: uses the axis {axis!r} {times} times"
    if isinstance(spec, ParamSpec):
        if len(stage.devices) % spec.shards:
            yield f"{path}.shards: {spec.shards} doesn't divide the stage's {len(stage.devices)} devices"
        if spec.partial:
            yield f"{path}.partial: a stored parameter is no partial sum"


def _search(plan: Plan) -> Iterator[str]:
    search, time = plan.search, plan.predicted.iteration_time_s
    if (search.lower_bound_s is None) != (search.gap is None):
        yield "search.gap: goes with lower_bound_s, both null or neither"
    if search.lower_bound_s is None or search.gap is None:
        if search.status != "estimate":
            yield f"search.lower_bound_s: is null, but the status is {search.status}"
        return
    if search.lower_bound_s > time * (1 + TOLERANCE):
        yield (f"search.lower_bound_s: {search.lower_bound_s:g} s is more than the iteration time it bounds, "
               f"{time:g} s")
    elif not math.isclose(search.gap, max(0.0, 1 - search.lower_bound_s / time), abs_tol=TOLERANCE):
        yield (f"search.gap: is {search.gap:g}, but 1 − lower_bound_s / iteration_time_s = "
               f"{1 - search.lower_bound_s / time:g}")
    if search.pruned > search.candidates:
        yield f"search.pruned: {search.pruned} is more than the {search.candidates} candidates"


def _alternatives(plan: Plan) -> Iterator[str]:
    """Runner-ups are no faster than the plan, do the same FLOPs and fit a device."""
    own = plan.predicted
    for number, other in enumerate(plan.alternatives):
        path, found = f"alternatives[{number}].predicted", other.predicted
        if found.iteration_time_s < own.iteration_time_s * (1 - TOLERANCE):
            yield (f"{path}.iteration_time_s: {found.iteration_time_s:g} s is faster than the plan itself, "
                   f"{own.iteration_time_s:g} s")
        if not _close(found.mfu * found.iteration_time_s, own.mfu * own.iteration_time_s):
            yield (f"{path}.mfu: {found.mfu:g} in {found.iteration_time_s:g} s is other work than the plan's, "
                   f"{own.mfu:g} in {own.iteration_time_s:g} s")
        if found.peak_memory_bytes > plan.cluster.device_memory_bytes:
            yield (f"{path}.peak_memory_bytes: {found.peak_memory_bytes} is more than cluster.device_memory_bytes, "
                   f"{plan.cluster.device_memory_bytes}")


def _sum(path: str, parts: Iterable[float], total: float, what: str) -> Iterator[str]:
    found = math.fsum(parts)
    if not _close(found, total):
        yield f"{path}: adds up to {found:g} s, but {what} is {total:g} s"


def _close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=1e-12)


def _listed(noun: str, ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:8])) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return f"{noun}s {shown} are" if len(ids) > 1 else f"{noun} {shown} is"


def _value(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
