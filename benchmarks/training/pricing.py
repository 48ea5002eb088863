"""From a row to its price: what `autoplan.estimate` says of the run that the row records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import autoplan
from autoplan.cluster import Cluster
from autoplan.errors import InputError, NoPlanError
from autoplan.model import ModelGraph
from autoplan.model.facts import forward_flops_per_token
from autoplan.plan.schema import Plan, StageMemory
from autoplan.runtimes import load as load_runtime
from autoplan.workload import Precision

from . import clusters, models
from .assumptions import Assumed, assumed
from .models import Unpriced
from .rows import Row

GIB = 2**30
GB = 10**9
_PRECISIONS = (("fp4", "fp4"), ("fp8", "fp8"), ("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"),
               ("float16", "fp16"), ("tf32", "tf32"), ("fp32", "fp32"))


@dataclass(frozen=True)
class Price:
    """What is predicted for a row, beside what was measured.

    seconds: of a step. memory, measured_memory: bytes, of the stages and the kinds of memory that the source counts.
    fits: whether every stage fits its devices. ideal: seconds of the step's FLOPs (recompute included) at the peak.
    terms: seconds of a step by cause. held: bytes of the fullest stage by cause.
    """

    row: Row
    assumed: Assumed
    precision: str
    seconds: float
    memory: float
    measured_memory: float | None
    fits: bool
    ideal: float
    terms: Mapping[str, float]
    held: Mapping[str, float]
    parameters: int


Plans = dict[tuple[int, int, str], Plan]  # by graph, cluster and arguments


def price(row: Row, plans: Plans) -> Price:
    """Price a row. plans: those of earlier rows, added to. Raises Unpriced, with the reason, where it can't be done."""
    if row.step_time_norm_s is None and row.mem_gib is None and row.oom is None:
        raise Unpriced("nothing measured: neither step time nor memory")
    given = assumed(row)
    if given.skip is not None:
        raise Unpriced(given.skip)
    try:
        graph, cluster = models.graph_of(row, given), clusters.on(row, given)
        arguments = arguments_of(row, given, cluster)
        cuts = cuts_of(row, given, graph.num_layers - 2, arguments)
        plan = _fastest(graph, cluster, arguments, cuts, plans)
    except (InputError, NoPlanError) as error:
        raise Unpriced(" ".join(str(error).split())) from None
    return _price(row, given, graph, cluster, plan, arguments)


def arguments_of(row: Row, given: Assumed, cluster: Cluster) -> dict[str, object]:
    """Return the arguments of `estimate` for a row, but for the cut. Raises Unpriced where a degree isn't recorded."""
    tp, pp, cp = row.tp or given.tp, row.pp or given.pp, row.cp or given.cp or 1
    if tp is None or pp is None:
        raise Unpriced("plan not recorded: tp or pp")
    dp, rest = divmod(cluster.num_devices, tp * pp * cp)
    if rest:
        raise Unpriced(f"tp {tp} · pp {pp} · cp {cp} don't divide {cluster.num_devices} GPUs")
    batch = row.global_batch
    if batch is None:
        raise Unpriced("global batch not recorded")
    seq_len = row.seq_len or given.seq_len
    if seq_len is None:
        raise Unpriced("sequence length not recorded")
    precision = precision_of(row.precision) or given.precision
    if precision is None:
        raise Unpriced("precision not recorded")
    if precision not in {one.value for one in Precision}:
        raise Unpriced(f"precision {precision} isn't modelled")
    recompute = recompute_of(row.recompute) or given.recompute or "none"
    chunks = row.vpp or given.virtual_stages or 1
    interleaved = chunks > 1 and pp > 1
    schedule = "interleaved" if interleaved else "gpipe" if "gpipe" in row.schedule.lower() else "1f1b"
    if "interleaved" in row.schedule.lower() and not interleaved:
        raise Unpriced("interleaved: virtual stages not recorded")
    zero = row.zero_stage if row.zero_stage is not None else given.zero
    found: dict[str, object] = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "micro_batch_size": micro_batch_of(row, given, dp),
        "global_batch_size": batch, "seq_len": seq_len, "precision": precision, "optimizer": given.optimizer,
        "grad_dtype": given.grad_dtype if precision != "fp32" else None, "zero": zero, "recompute": recompute,
        "sequence_parallel": bool(row.seq_parallel) if row.seq_parallel is not None else given.sequence_parallel,
        "schedule": schedule, "virtual_stages": chunks if interleaved else 1, "runtime": given.runtime,
        "attention": attention_of(row, given), "dropout": given.dropout, "frozen": given.frozen,
        "reduce_dtype": given.reduce_dtype if precision != "fp32" else None,
        "ep": row.ep or 1, "etp": given.etp, "shard": _shard(row, given, dp * cp),
    }
    return {key: value for key, value in found.items() if value is not None}


def precision_of(text: str) -> str | None:
    """Return the precision that a source's words mean, None where they name none."""
    lowered = text.lower()
    return next((name for part, name in _PRECISIONS if part in lowered), None)


def recompute_of(text: str) -> str | None:
    """Return the recompute policy that a source's words mean."""
    return next((name for name in ("full", "selective", "none") if text.lower().startswith(name)), None)


def attention_of(row: Row, given: Assumed) -> str | None:
    """Return the attention kernel: what is assumed (a source says the generation), else the row's if it is fused."""
    if given.attention is None and ("flash" in row.attn_impl or "cuDNN" in row.attn_impl):
        return "flash"
    return given.attention


def micro_batch_of(row: Row, given: Assumed, dp: int) -> int:
    """Return sequences of a micro-batch. Raises Unpriced where neither it nor the accumulation steps are recorded."""
    if row.micro_batch is not None:
        return row.micro_batch
    steps = row.grad_accum or (1 if given.micro_batch == "one" else None)
    if steps is not None and row.global_batch is not None and row.global_batch % (dp * steps) == 0:
        return row.global_batch // (dp * steps)
    if isinstance(given.micro_batch, int):
        return given.micro_batch
    raise Unpriced("micro-batch not recorded")


def cuts_of(row: Row, given: Assumed, count: int, arguments: Mapping[str, object]) -> list[list[int] | None]:
    """Return how `count` layers may be cut into stages (see `Assumed.cut`); None: as well as they can be."""
    pp = int(str(arguments["pp"]))
    if given.cut == "best" or pp == 1 or arguments["schedule"] == "interleaved":
        return [None]
    if given.cut == "items":
        if not row.plan_json:
            raise Unpriced("layers of each stage not recorded")
        edges = [min(max(edge - given.items_before, 0), count) for edge in json.loads(row.plan_json)["layer_partition"]]
        return [[b - a for a, b in pairwise(edges)]]
    if given.cut == "last":
        return [[*reversed(_spread(count - last, pp - 1)), last] for last in range(count // pp + 1)]
    if given.cut == "ends" and (count + 2) % pp == 0:
        each = (count + 2) // pp
        return [[each - (index in (0, pp - 1)) for index in range(pp)]]
    if given.cut == "ceil":
        each = -(-count // pp)
        return [[max(0, min(each, count - index * each)) for index in range(pp)]]
    return [_spread(count, pp)]


def _spread(count: int, stages: int) -> list[int]:
    """Return `count` layers over stages as evenly as can be, the first ones taking one more."""
    return [count // stages + (index < count % stages) for index in range(stages)]


def _shard(row: Row, given: Assumed, replicas: int) -> int | None:
    shard = row.fsdp_shard or given.shard
    return shard if shard is not None and shard < replicas else None


def _estimate(graph: ModelGraph, cluster: Cluster, arguments: Mapping[str, Any], plans: Plans) -> Plan:
    """Estimate, each configuration once."""
    key = (id(graph), id(cluster), json.dumps(arguments, sort_keys=True))
    if key not in plans:
        plans[key] = autoplan.estimate(graph, cluster, **arguments)
    return plans[key]


def _fastest(graph: ModelGraph, cluster: Cluster, arguments: Mapping[str, object], cuts: Sequence[list[int] | None],
             plans: Plans) -> Plan:
    """Estimate with each cut, and return the fastest."""
    found = [_estimate(graph, cluster, {**arguments, "layers": cut} if cut else arguments, plans) for cut in cuts]
    return min(found, key=lambda plan: plan.predicted.iteration_time_s)


def _price(row: Row, given: Assumed, graph: ModelGraph, cluster: Cluster, plan: Plan,
           arguments: Mapping[str, object]) -> Price:
    stages = (plan.stages[0], plan.stages[-1]) if given.memory_stages == "ends" else plan.stages
    fullest = max((stage.memory for stage in stages), key=lambda memory: memory.total_bytes)
    unit = GB if given.memory_unit == "gb" else GIB
    breakdown = plan.predicted.breakdown.model_dump()
    passes = 3 - bool(arguments["frozen"]) + (arguments["recompute"] == "full")  # forward, backward (two), again
    tokens = int(str(arguments["global_batch_size"])) * int(str(arguments["seq_len"]))
    flops = passes * tokens * forward_flops_per_token(graph, int(str(arguments["seq_len"])))
    precision = str(arguments["precision"])
    return Price(
        row=row, assumed=given, precision=precision, seconds=plan.predicted.iteration_time_s,
        memory=counted(fullest, given.memory_counts, load_runtime(plan.runtime).likely.context_bytes),
        measured_memory=None if row.mem_gib is None else row.mem_gib * unit,
        fits=all(stage.memory.high_bytes <= stage.memory.capacity_bytes for stage in plan.stages),
        ideal=flops / cluster.num_devices / cluster.device.peak_flops[precision],
        terms={key.removesuffix("_s"): value for key, value in breakdown.items()},
        held=fullest.breakdown.model_dump(), parameters=plan.model.parameters.total,
    )


def counted(memory: StageMemory, counts: str, context: float) -> float:
    """Return the bytes of a stage's peak that a source counts: all, without the context, or without any reserve."""
    if counts == "allocated":
        return memory.total_bytes - memory.breakdown.reserve
    return memory.total_bytes - (context if counts == "reserved" else 0.0)
