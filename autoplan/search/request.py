"""From what a user asks to what is searched: the workload with its defaults, and the pins, each checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from operator import index
from typing import SupportsIndex, TypeVar

from autoplan.cluster import Cluster
from autoplan.cluster.mesh import divisors
from autoplan.cost.schedules import V_CHUNKS, legal
from autoplan.errors import InputError
from autoplan.model.facts import default_seq_len
from autoplan.model.graph import ModelGraph
from autoplan.runtimes import Runtime
from autoplan.search.space import Chain, Pins, interleaved_slots
from autoplan.workload import OPTIMIZER_STATE_BYTES, Attention, Precision, Recompute, Schedule, Workload

E = TypeVar("E", Attention, Precision, Recompute, Schedule)

MOST = 10**9  # of everything that is counted; the search enumerates divisors
DEFAULT_TOKENS = 2**22  # tokens of a step where neither the user nor the model says: 4 Mi, as Llama 2 was trained
MODEL_NOTES = {"assumed": "assumed of the model", "left_out": "not in the model as read",
               "unpriced": "not in its time"}  # facts of imported graphs → words


@dataclass(frozen=True)
class Asked:
    """The workload, and what was assumed in it (a sentence each)."""

    workload: Workload
    notes: tuple[str, ...]


def workload_of(model: ModelGraph, cluster: Cluster, *, global_batch_size: int | None, seq_len: int | None,
                precision: str | None, optimizer: str, grad_dtype: str | None, reduce_dtype: str | None,
                attention: str | None, dropout: bool, frozen: bool, runtime: Runtime) -> Asked:
    """Return the workload. Raises InputError for values that are not allowed or that the device doesn't support.

    Dtypes of gradients that aren't given are the runtime's.
    """
    notes = [f"{words}: {model.facts[key]}" for key, words in MODEL_NOTES.items() if key in model.facts]
    if global_batch_size is not None:
        global_batch_size = whole("global_batch_size", global_batch_size)
    if seq_len is not None:
        seq_len = whole("seq_len", seq_len)
    own = model.facts.get("seq_len")
    tokens = any(op.kind == "embedding" for layer in model.classes for op in layer.ops)
    if isinstance(own, int) and not tokens and seq_len not in (None, own):
        raise InputError("images make sequences of one length", key="seq_len", found=seq_len, allowed=str(own))
    if seq_len is None:
        seq_len = default_seq_len(model)
        notes.append(f"sequences of {seq_len:,} tokens were assumed (--seq-len)")
    longest = model.facts.get("max_positions")
    if "position" in {param.name for layer in model.classes for _, param in layer.params()} \
            and isinstance(longest, int) and seq_len > longest:
        raise InputError("longer than the model's learned positions", key="seq_len", found=seq_len,
                         allowed=f"at most {longest}")
    if global_batch_size is None:
        known = model.facts.get("global_batch_size")
        global_batch_size = known if isinstance(known, int) else max(1, DEFAULT_TOKENS // seq_len)
        notes.append(f"a global batch of {global_batch_size:,} sequences was assumed (--global-batch-size)")
    supported = [one.value for one in Precision if one.value in cluster.device.peak_flops]
    if precision is None:
        precision = supported[0] if supported else "fp32"
        if precision != "bf16":
            notes.append(f"{precision} was assumed: {cluster.device.name} has no bf16 (--precision)")
    if precision not in supported:
        raise InputError(f"{cluster.device.name} doesn't support it", key="precision", found=precision,
                         allowed=", ".join(supported))
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise InputError("unknown optimizer", key="optimizer", found=optimizer,
                         allowed=", ".join(sorted(OPTIMIZER_STATE_BYTES)))
    dtypes = [_member(Precision, key, given) or default for key, given, default in (
        ("grad_dtype", grad_dtype, runtime.grad_dtype), ("reduce_dtype", reduce_dtype, runtime.reduce_dtype))]
    for key, dtype in zip(("grad_dtype", "reduce_dtype"), dtypes, strict=True):
        if dtype is not None and dtype is not dtype.stored:
            raise InputError("gradients are kept and sent in 16 or 32 bits", key=key, found=dtype.value,
                             allowed="bf16, fp16, fp32")
    kernel = _member(Attention, "attention", attention)
    if kernel is not None and kernel.fused and not cluster.device.flash_attention:
        raise InputError(f"{cluster.device.name} has no fused attention kernels", key="attention", found=attention,
                         allowed="fused_softmax, unfused")
    for key, flag in (("dropout", dropout), ("frozen", frozen)):
        if not isinstance(flag, bool):
            raise InputError("must be true or false", key=key, found=flag)
    return Asked(Workload(global_batch_size, seq_len, Precision(precision), optimizer, dtypes[0], dtypes[1], kernel,
                          dropout, frozen), tuple(notes))


def whole(key: str, value: object, least: int = 1, most: int = MOST) -> int:
    """Return a whole number of any integer type. Raises InputError for anything else, and for one out of range."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and least <= index(value) <= most:
        return index(value)
    raise InputError(f"must be a whole number from {least} to {most:,}", key=key, found=value)


def check_limits(top: object, gap: object, time_limit: object) -> None:
    """Raise InputError for limits of a search that make no sense."""
    whole("top", top)
    for key, value, words, most in (("gap", gap, "at least 0 and at most 1", 1.0),
                                    ("time_limit", time_limit, "at least 0", float("inf"))):
        if value is None and key == "time_limit":
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
            raise InputError(f"must be a number of {words}", key=key, found=value)


def merged(fix: object, options: Mapping[str, object]) -> dict[str, object]:
    """Return what `fix` and the options of their own fix together. Raises InputError where they contradict."""
    if fix is not None and not isinstance(fix, Mapping):
        raise InputError("must be a mapping of keys to values", key="fix", found=fix)
    result = dict(fix or {})
    for key, value in options.items():
        if value is not None and result.setdefault(key, value) != value:
            raise InputError(f"is fixed to two values, {result[key]!r} and {value!r}", key=key)
    return result


def _member(kind: type[E], key: str, value: object) -> E | None:
    if value is None:
        return None
    try:
        return kind(str(value))
    except ValueError:
        raise InputError("unknown value", key=key, found=value, allowed=", ".join(kind)) from None


def pins_of(fixed: Mapping[str, object]) -> Pins:
    """Return the pins of a mapping with the keys of `Pins`. Raises InputError."""
    known = {one.name for one in fields(Pins)}
    values: dict[str, object] = {}
    for key, value in fixed.items():
        if value is None:
            continue
        if key not in known:
            raise InputError("unknown key", key=str(key), allowed=", ".join(sorted(known)))
        values[key] = value
    for key in ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch_size", "num_micro_batches", "virtual_stages",
                "shard"):
        if key in values:
            values[key] = whole(key, values[key])
    if "layers" in values:
        values["layers"] = layers = _layers(values["layers"])
        values.setdefault("pp", len(layers))
    if "zero" in values:
        values["zero"] = whole("zero", values["zero"], 0, 3)
    if not isinstance(values.get("sequence_parallel", True), bool):
        raise InputError("must be true or false", key="sequence_parallel", found=values["sequence_parallel"])
    values["recompute"] = _member(Recompute, "recompute", values.get("recompute"))
    values["schedule"] = _member(Schedule, "schedule", values.get("schedule"))
    if values["schedule"] is Schedule.ZB_V and values.get("virtual_stages", 1) == 1:
        values["virtual_stages"] = V_CHUNKS  # it has no other number
    return Pins(**values)  # type: ignore[arg-type]


def _layers(value: object) -> tuple[int, ...]:
    """Return how many equal layers each stage holds."""
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError("must be a list: the equal layers of each stage", key="layers", found=value)
    return tuple(whole("layers", one, least=0) for one in value)


def all_pins(fixed: Mapping[str, object]) -> Pins:
    """Return the pins of a mapping that leaves nothing open. Raises InputError."""
    for key, value in fixed.items():
        if value is None and key not in ("layers", "etp", "shard"):
            raise InputError("must be given", key=key)
    return pins_of(fixed)


def check_pins(pins: Pins, chain: Chain, cluster: Cluster, workload: Workload, runtime: Runtime) -> None:
    """Raise InputError where the pins can't be met whatever else is chosen."""
    total = cluster.num_devices
    degrees = {key: value for key in ("tp", "pp", "dp", "cp") if (value := getattr(pins, key)) is not None}
    product = 1
    for key, value in degrees.items():
        product *= value
        if total % value:
            raise InputError(f"doesn't divide the {total} devices", key=key, found=value)
    if total % product or (len(degrees.keys() - {"cp"}) == 3 and product != total):
        said = " · ".join(f"{key} {value}" for key, value in degrees.items())
        raise InputError(f"{said} = {product} devices, but the cluster has {total}", key=", ".join(degrees))
    _check_model(pins, chain)
    _check_experts(pins, chain)
    batch = workload.global_batch_size
    for key in ("dp", "micro_batch_size", "num_micro_batches"):
        value = getattr(pins, key)
        if value is not None and batch % value:
            raise InputError(f"doesn't divide the global batch of {batch}", key=key, found=value)
    _check_batch(pins, batch)
    if pins.cp is not None and workload.seq_len % pins.cp:
        raise InputError(f"doesn't divide the sequence of {workload.seq_len}", key="cp", found=pins.cp)
    if pins.sequence_parallel and pins.tp is not None and workload.seq_len % pins.tp:
        raise InputError(f"sequence parallelism splits the sequence of {workload.seq_len} over tp", key="tp",
                         found=pins.tp)
    if pins.schedule is not None and pins.schedule not in runtime.schedules:
        raise InputError(f"runtime {runtime.name} doesn't offer it", key="schedule", found=pins.schedule.value,
                         allowed=", ".join(runtime.schedules))
    offered = runtime.zero_stages(pins.pp)
    if pins.zero is not None and pins.zero not in offered:
        where = " with pipeline stages" if pins.zero in runtime.zero else ""
        raise InputError(f"runtime {runtime.name} doesn't offer it{where}", key="zero", found=pins.zero,
                         allowed=", ".join(map(str, offered)))
    if pins.sequence_parallel and pins.tp == 1:
        raise InputError("needs a tp of at least 2", key="sequence_parallel", found=True)
    _check_schedule(pins, chain, workload)
    _check_layers(pins, chain)
    _check_shard(pins)


def _check_shard(pins: Pins) -> None:
    """ZeRO splits over a part of dp, which must be known."""
    if pins.shard is None:
        return
    if pins.dp is None or pins.dp % pins.shard:
        allowed = "divisors of a dp that is fixed too" if pins.dp is None else ", ".join(map(str, divisors(pins.dp)))
        raise InputError("ZeRO splits over a part of dp", key="shard", found=pins.shard, allowed=allowed)
    if pins.zero == 0 and pins.shard > 1:
        raise InputError("without ZeRO (zero 0) nothing is split", key="shard", found=pins.shard,
                         allowed="1, or a zero of 1, 2 or 3")


def _check_layers(pins: Pins, chain: Chain) -> None:
    if pins.layers is None:
        return
    if sum(pins.layers) != chain.count:
        raise InputError(f"add up to {sum(pins.layers)}, but the model has {chain.count} equal layers", key="layers",
                         found=list(pins.layers))
    if pins.pp != len(pins.layers):
        raise InputError(f"{len(pins.layers)} stages, but pp is {pins.pp}", key="layers", found=list(pins.layers))
    if 0 in pins.layers[1:-1]:
        raise InputError("a stage between the first and the last needs a layer", key="layers",
                         found=list(pins.layers))
    if (pins.schedule is not None and pins.schedule.chunked) or (pins.virtual_stages or 1) > 1:
        raise InputError("interleaving cuts equal chunks", key="layers", found=list(pins.layers))


def _check_batch(pins: Pins, batch: int) -> None:
    words = {"dp": "dp", "micro_batch_size": "micro-batch", "num_micro_batches": "micro-batches"}
    factors = {key: value for key in words if (value := getattr(pins, key)) is not None}
    product = prod(factors.values())
    if batch % product or (len(factors) == len(words) and product != batch):
        said = " · ".join(f"{words[key]} {value}" for key, value in factors.items())
        verb = "isn't" if len(factors) == len(words) else "is no multiple of"
        raise InputError(f"the global batch of {batch} {verb} {said} = {product}", key="global_batch_size")


def _check_model(pins: Pins, chain: Chain) -> None:
    if pins.pp is not None and pins.pp > chain.count:
        raise InputError(f"more stages than the model's {chain.count} layers", key="pp", found=pins.pp,
                         allowed=f"at most {chain.count}")
    if pins.tp is None:
        return
    for op in (op for layer in chain.layers for op in layer.ops):
        if op.kind == "experts" and pins.etp == 1:
            continue
        for name, what in (("heads", "attention heads"), ("ffn", "MLP width")):
            size = op.static_sizes.get(name)
            if size is not None and size % pins.tp:
                raise InputError(f"doesn't divide the model's {what} ({size})", key="tp", found=pins.tp)
        shared = op.static_sizes.get("kv_heads")
        if shared is not None and shared % pins.tp and pins.tp % shared:
            raise InputError(f"neither divides the model's {shared} key and value heads nor is a multiple of them",
                             key="tp", found=pins.tp)


def _check_experts(pins: Pins, chain: Chain) -> None:
    """ep is the size of an axis within dp, times tp where the devices of a tensor-parallel group hold whole experts."""
    if pins.ep is not None and pins.ep > 1:
        if not chain.experts:
            raise InputError("dense models have no experts to spread", key="ep", found=pins.ep, allowed="1")
        if chain.experts % pins.ep:
            raise InputError(f"doesn't divide the model's {chain.experts} experts", key="ep", found=pins.ep)
    if not chain.experts and pins.etp not in (None, 1, pins.tp):
        raise InputError("dense models have no experts to share", key="etp", found=pins.etp, allowed="1")
    if pins.etp is not None and pins.tp is not None and chain.experts and pins.etp not in (1, pins.tp):
        raise InputError("an expert is on one device or shared by all of a tensor-parallel group", key="etp",
                         found=pins.etp, allowed=f"1, {pins.tp}")
    if pins.ep is None or pins.etp is None or pins.tp is None or not chain.experts:
        return
    axis, rest = divmod(pins.ep, pins.tp // pins.etp)
    if rest:
        raise InputError(f"no multiple of tp {pins.tp}, whose devices hold whole experts (etp {pins.etp})", key="ep",
                         found=pins.ep)
    if pins.dp is not None and pins.dp % axis:
        beside, odd = divmod(pins.ep, pins.tp)
        wider = pins.etp > 1 and not odd and not pins.dp % beside
        hint = f"; with etp 1 they are spread over the devices of tp {pins.tp} too" if wider else ""
        raise InputError(f"experts are spread over replicas, and {axis} doesn't divide dp {pins.dp}{hint}", key="ep",
                         found=pins.ep)


def _check_schedule(pins: Pins, chain: Chain, workload: Workload) -> None:
    schedule = pins.schedule or (Schedule.INTERLEAVED if (pins.virtual_stages or 1) > 1 else Schedule.ONE_F_ONE_B)
    if schedule.splits_backward and pins.recompute is Recompute.FULL:
        raise InputError("full recompute would bring back what a zero-bubble schedule must then hold for the weights' "
                         "gradients", key="recompute", found="full", allowed="none, selective")
    if not schedule.chunked:
        if (pins.virtual_stages or 1) > 1:
            raise InputError(f"only interleaved 1F1B has virtual stages, not {schedule.value}", key="virtual_stages",
                             found=pins.virtual_stages)
        return
    name = "zero-bubble V" if schedule is Schedule.ZB_V else "interleaved 1F1B"
    if pins.pp == 1:
        raise InputError(f"{name} needs at least 2 stages", key="pp", found=1)
    if schedule is Schedule.ZB_V and pins.virtual_stages != V_CHUNKS:
        raise InputError(f"{name} has {V_CHUNKS} virtual stages", key="virtual_stages", found=pins.virtual_stages)
    if pins.virtual_stages == 1:
        raise InputError(f"{name} needs at least 2 virtual stages", key="virtual_stages", found=1)
    if pins.pp is None:
        return
    v = pins.virtual_stages or 1
    if v > 1 and not interleaved_slots(chain, pins.pp, v):
        raise InputError(f"{name} needs equal chunks; {chain.count} layers ({chain.length} with both ends) don't "
                         f"divide into {pins.pp} stages of {v}", key="virtual_stages", found=v)
    m = pins.num_micro_batches
    if m is None and pins.dp is not None and pins.micro_batch_size is not None:
        m = workload.global_batch_size // (pins.dp * pins.micro_batch_size)
    if m is not None and pins.virtual_stages is not None:
        reason = legal(schedule, pins.pp, m, v, v)
        if reason:
            raise InputError(reason, key="schedule")


def check_solver(solver: object, runtime: Runtime) -> None:
    """Raise InputError for a solver that isn't there, or that can't solve every stage under the runtime."""
    if solver == "auto":
        return
    if not runtime.linear:
        raise InputError(f"runtime {runtime.name} overlaps communication, which no linear programme prices",
                         key="solver", found=solver, allowed="auto")
    if not isinstance(solver, str) or (solver != "highs" and not solver.startswith("pulp:")):
        raise InputError("unknown solver", key="solver", found=solver, allowed="auto, highs, pulp:NAME")
    import numpy as np

    from autoplan.intraop.problem import IntraOpProblem
    from autoplan.intraop.solve import solve

    solve(IntraOpProblem(("probe",), (np.zeros(1),), (), ()), solver)  # raises if PuLP doesn't have it
