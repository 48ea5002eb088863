"""Writes a solution down as a plan: predictions, stages, layouts of every operator, what was searched and proven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Cluster
from autoplan.cost.memory import StateBytes, itemised
from autoplan.intraop.layer_problem import LayerProblem, ParamNode
from autoplan.intraop.overlap import Passes, passes
from autoplan.intraop.strategies import OpStrategies
from autoplan.intraop.terms import NUM_TERMS, Criterion, Term
from autoplan.model.facts import forward_flops_per_token, parameters, unmasked_flops_per_token
from autoplan.plan import schema
from autoplan.search.naming import degrees
from autoplan.search.pricer import Pricer
from autoplan.search.solve import Solution, StageSolution
from autoplan.sharding import PARTIAL, spec
from autoplan.simulate import replay
from autoplan.simulate.plans import pipeline
from autoplan.version import __version__
from autoplan.workload import Recompute

Array = NDArray[np.float64]

MOST_REPLAYED = 100_000  # pieces of work of a plan's schedule, about 3 µs each
HOST_WAITS = ((Term.HOST_FORWARD, Term.FORWARD), (Term.HOST_BACKWARD, Term.BACKWARD))


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of a stage by cause: paid every micro-batch, and once a step. Keys are those of a plan's breakdown."""

    micro_batch: dict[str, float]
    step: dict[str, float]


def plan_of(pricer: Pricer, solution: Solution, *, search: schema.SearchInfo, timing: schema.Timing,
            alternatives: Sequence[Solution] = (), notes: Sequence[str] = ()) -> schema.Plan:
    """Return the plan file's content for a solution."""
    cluster, workload, model = pricer.cluster, pricer.workload, pricer.chain.model
    counted = parameters(model)
    placed = devices(cluster, [stage.mesh.num_devices for stage in solution.stages])
    stages = tuple(_stage(index, stage, placed[index], solution) for index, stage in enumerate(solution.stages))
    shown = _cluster(cluster)
    how = _parallelism(solution, stages)
    order = pipeline(stages, how, shown, pricer.runtime)
    simulated = replay(order).step_time if order.pieces <= MOST_REPLAYED else None
    return schema.Plan(
        autoplan_version=__version__,
        model=schema.ModelInfo(name=model.name, num_layers=model.num_layers,
                               parameters=schema.Parameters(total=counted["total"], active=counted["active"])),
        cluster=shown,
        workload=schema.WorkloadInfo(
            global_batch_size=workload.global_batch_size, seq_len=workload.seq_len, precision=workload.precision,
            optimizer=workload.optimizer, grad_dtype=workload.accumulated, reduce_dtype=workload.travelling,
            attention=pricer.attention, dropout=workload.dropout, frozen=workload.frozen),
        runtime=pricer.runtime.name,
        parallelism=how,
        predicted=_predicted(pricer, solution, stages, simulated),
        stages=stages,
        search=search,
        timing=timing,
        alternatives=tuple(_alternative(pricer, other) for other in alternatives),
        notes=tuple(notes),
    )


def _cluster(cluster: Cluster) -> schema.ClusterInfo:
    return schema.ClusterInfo(
        name=cluster.name, device=cluster.device.name, num_devices=cluster.num_devices, num_nodes=cluster.num_nodes,
        gpus_per_node=cluster.gpus_per_node, nics_per_node=cluster.node.nics,
        device_memory_bytes=cluster.device.memory_bytes)


def devices(cluster: Cluster, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Place stages on devices: whole nodes first, in order, then parts of nodes, larger ones first (Alpa's packing)."""
    per_node = cluster.gpus_per_node
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index] < per_node, -min(sizes[index], per_node)))
    placed: list[tuple[int, ...]] = [()] * len(sizes)
    start = 0
    for index in order:
        placed[index] = tuple(range(start, start + sizes[index]))
        start += sizes[index]
    return placed


def _parallelism(solution: Solution, stages: Sequence[schema.Stage]) -> schema.Parallelism:
    shared: dict[str, object] = {}
    for key in schema.StageParallelism.model_fields:
        values = [getattr(stage.parallelism, key) for stage in stages]
        shared[key] = values[0] if all(value == values[0] for value in values) else None
    return schema.Parallelism(
        pp=len(stages), num_micro_batches=solution.num_micro_batches, schedule=solution.schedule,
        virtual_stages=solution.virtual_stages, **shared)


def _predicted(pricer: Pricer, solution: Solution, stages: Sequence[schema.Stage],
               simulated: float | None) -> schema.Predicted:
    cluster, workload = pricer.cluster, pricer.workload
    time = solution.objective
    flops, peak = _flops_and_peak(pricer)
    breakdown = _breakdown(solution)
    return schema.Predicted(
        iteration_time_s=time,
        simulated_time_s=simulated,
        tokens_per_s=workload.tokens / time,
        tokens_per_s_per_device=workload.tokens / time / cluster.num_devices,
        model_tflops_per_device=flops / time / cluster.num_devices / 1e12,
        mfu=flops / time / peak,
        peak_memory_bytes=max(stage.memory.total_bytes for stage in stages),
        bubble_fraction=breakdown.bubble_s / time,
        breakdown=breakdown,
        physical_limit_s=(workload.passes * unmasked_flops_per_token(pricer.chain.model, workload.seq_len)
                          * workload.tokens / peak),
    )


def _flops_and_peak(pricer: Pricer) -> tuple[float, float]:
    """Return the model FLOPs of a step, and the peak FLOP/s of all devices."""
    workload = pricer.workload
    flops = workload.passes * forward_flops_per_token(pricer.chain.model, workload.seq_len) * workload.tokens
    return flops, pricer.costs.peak(workload.precision.value) * pricer.cluster.num_devices


def _breakdown(solution: Solution) -> schema.Breakdown:
    """Split the step time: the slowest stage's micro-batches, the bubble, the slowest once-a-step work."""
    m = solution.num_micro_batches
    slowest = max(solution.stages, key=lambda stage: stage.time)
    exposed = max(solution.stages, key=lambda stage: stage.step)
    parts = {key: m * value for key, value in stage_seconds(slowest, solution.virtual_stages).micro_batch.items()}
    for key, value in stage_seconds(exposed, solution.virtual_stages).step.items():
        parts[key] = parts.get(key, 0.0) + value
    return schema.Breakdown(bubble_s=max(0.0, solution.pipeline - m * slowest.time), **parts)


def _stage(index: int, stage: StageSolution, ids: tuple[int, ...], solution: Solution) -> schema.Stage:
    seconds = stage_seconds(stage, solution.virtual_stages)
    m = solution.num_micro_batches
    both = {key: m * value for key, value in seconds.micro_batch.items()}
    for key, value in seconds.step.items():
        both[key] = both.get(key, 0.0) + value
    named = degrees(stage)
    return schema.Stage(
        index=index,
        layers=stage.chunks[0],
        chunks=stage.chunks,
        devices=ids,
        mesh=schema.MeshInfo(shape=stage.mesh.shape, axes=stage.mesh.names),
        parallelism=schema.StageParallelism(
            dp=named and named.dp, tp=named and named.tp, cp=named and named.cp, ep=named and named.ep,
            etp=named and named.etp, sequence_parallel=named and named.sequence_parallel, zero=stage.zero,
            micro_batch_size=named and stage.micro_batch_size, recompute=stage.recompute,
            recipe=named and named.recipe),
        time=schema.StageTime(micro_batch_s=stage.time, forward_s=stage.forward, weight_gradient_s=stage.weight,
                              step_s=stage.step, breakdown=schema.StageBreakdown(**both)),
        memory=memory_of(stage),
        shardings={key: value for table, row in stage.used
                   for key, value in _shardings(table.problem, table.choice[row]).items()},
    )


def stage_terms(stage: StageSolution) -> Array:
    """Return the summed cost vector [NUM_TERMS] of all layers of a stage."""
    total = np.zeros(NUM_TERMS)
    for table, row in stage.used:
        times = stage.times(table)
        total += times * table.problem.terms(table.choice[row])
    return total


def stage_seconds(stage: StageSolution, virtual_stages: int) -> StageSeconds:
    """Return a stage's seconds by cause, of collectives what is waited for.

    Conversions are what the passes take beyond kernels and their launches; what the layers don't hold is sends, seams
    between layers, and the sum over both copies of tied embeddings.
    """
    terms, spent, launch, again = np.zeros(NUM_TERMS), Passes(*np.zeros(6)), 0.0, 0.0
    for table, row in stage.used:
        times = stage.times(table)
        layer = table.problem.terms(table.choice[row])
        setting = table.problem.setting
        terms += times * layer
        recompute = table.policy.recompute
        spent += times * passes(layer, recompute, setting.runtime, setting.tensor_ranks)
        waits = [layer[host] if setting.runtime.blocking_launches else max(0.0, layer[host] - layer[device])
                 for host, device in HOST_WAITS]
        launch += times * (sum(waits) + (waits[0] if recompute is Recompute.FULL else 0.0))
        again += times * {Recompute.NONE: 0.0, Recompute.SELECTIVE: float(layer[Term.CORE]),
                          Recompute.FULL: float(layer[Term.FORWARD])}[recompute]
    kernels = float(terms[Term.FORWARD] + terms[Term.BACKWARD]) + again
    sent, sent_once = stage.table.sent(stage.first, stage.last, stage.between, stage.row)
    rest = stage.time - kernels - launch - sent - float(spent.gather + spent.reduce)
    layers_step = float(spent.sync + spent.gather_step + terms[Term.OPTIMIZER]) + sent_once
    return StageSeconds(
        micro_batch={
            "forward_s": float(terms[Term.FORWARD]),
            "backward_s": float(terms[Term.BACKWARD]),
            "recompute_s": again,
            "launch_s": launch,
            "layout_conversion_s": _beyond_rounding(rest, stage.time),
            "parameter_gather_s": float(spent.gather),
            "gradient_sync_s": float(spent.reduce),
            "p2p_s": float(sent),
        },
        step={
            "gradient_sync_s": float(spent.sync) + _beyond_rounding(stage.step - layers_step, stage.step),
            "optimizer_s": float(terms[Term.OPTIMIZER]),
            "parameter_gather_s": float(spent.gather_step),
            "p2p_s": float(sent_once),
        },
    )


def _beyond_rounding(rest: float, total: float) -> float:
    """Return what is left of a sum, 0 where it is only rounding."""
    return rest if rest > 1e-12 * total else 0.0


def memory_of(stage: StageSolution) -> schema.StageMemory:
    """Return a stage's memory by cause."""
    setting = stage.table.setting
    terms = stage_terms(stage)
    rows = stage.table.combinations(stage.first, stage.last, stage.between)
    saved = float(rows.fixed[stage.row, Criterion.SAVED]
                  + np.array(stage.layers) @ rows.each[:, stage.row, Criterion.SAVED])
    transient = float(max(rows.transient_fixed[stage.row], rows.transient_each[:, stage.row].max()))
    state = StateBytes(*(float(terms[term]) for term in (Term.WEIGHTS, Term.GRADIENTS, Term.STATES)))
    held = asdict(itemised(state, saved, transient, stage.in_flight, setting.runtime))
    counted = {key: int(held[key]) for key in schema.MemoryBreakdown.model_fields}
    return schema.StageMemory(
        total_bytes=sum(counted.values()), low_bytes=int(held["low"]), high_bytes=math.ceil(held["high"]),
        capacity_bytes=setting.costs.cluster.device.memory_bytes,
        in_flight=stage.in_flight, breakdown=schema.MemoryBreakdown(**counted))


def _shardings(problem: LayerProblem, choice: NDArray[np.int16]) -> dict[str, schema.Sharding]:
    names = problem.setting.mesh.names
    stored = {(node.content.op.name, node.content.param.name): (node.content, int(k))
              for node, k in zip(problem.nodes, choice, strict=True) if isinstance(node.content, ParamNode)}
    result = {}
    for node, k in zip(problem.nodes, choice, strict=True):
        chosen = node.content
        if not isinstance(chosen, OpStrategies):
            continue
        op = chosen.op
        inputs = {operand.tensor: schema.Spec(**_spec(layout[k], operand.dims, names))
                  for operand, layout in zip(op.inputs, chosen.inputs, strict=True)}
        params = {param.name: _param_spec(*stored[op.name, param.name], names, problem) for param in op.params}
        output = schema.Spec(**_spec(chosen.output[k], op.output.dims, names))
        result[f"{problem.layer.name}.{op.name}"] = schema.Sharding(inputs=inputs, params=params, output=output)
    return result


def _spec(layout: NDArray[np.int64], dims: tuple[str, ...], names: tuple[str, ...]) -> dict[str, tuple[object, ...]]:
    axes, partial = spec(tuple(int(code) for code in layout), len(dims), names)
    return {"dims": dims, "axes": tuple(tuple(some) for some in axes), "partial": tuple(partial)}


def _param_spec(node: ParamNode, strategy: int, names: tuple[str, ...], problem: LayerProblem) -> schema.ParamSpec:
    layout = node.layouts[strategy]
    shape = np.array(problem.setting.mesh.shape)
    fields = _spec(np.where(layout == PARTIAL, -1, layout), node.param.dims, names)
    return schema.ParamSpec(**fields, zero=int(node.zero[strategy]),
                            shards=int(np.where(layout == PARTIAL, shape, 1).prod()))


def _alternative(pricer: Pricer, solution: Solution) -> schema.Alternative:
    placed = devices(pricer.cluster, [stage.mesh.num_devices for stage in solution.stages])
    stages = [_stage(index, stage, placed[index], solution) for index, stage in enumerate(solution.stages)]
    flops, peak = _flops_and_peak(pricer)
    return schema.Alternative(
        parallelism=_parallelism(solution, stages),
        predicted=schema.AlternativePrediction(
            iteration_time_s=solution.objective, mfu=flops / solution.objective / peak,
            peak_memory_bytes=max(stage.memory.total_bytes for stage in stages)))
