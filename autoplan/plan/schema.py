"""The plan file: what `autoplan plan` writes and every other command reads (`schema_version` 1).

Units: seconds, bytes, tokens, FLOP/s. Layers are zero-based positions in the model's chain (the embedding is layer 0,
the head the last), devices are zero-based ids that count through the nodes in order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoplan.errors import InputError, kind_of
from autoplan.specs import unparsed
from autoplan.workload import Attention, Precision, Recompute, Schedule

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SCHEMA_VERSION: Final = 1

Count = Annotated[int, Field(ge=0)]
Degree = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
ZeroStage = Annotated[int, Field(ge=0, le=3)]
LayerRange = tuple[Count, Count]  # first and last layer, both included


class _Part(BaseModel):
    """What every part of a plan has in common: no unknown keys, no NaN or infinity, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class Parameters(_Part):
    """Parameter counts, each tied parameter once. `active`: those one token passes through."""

    total: Degree
    active: Degree


class ModelInfo(_Part):
    """The model that was planned. `num_layers` counts the chain: embedding and head included."""

    name: str
    num_layers: Degree
    parameters: Parameters


class ClusterInfo(_Part):
    """The cluster that was planned for."""

    name: str
    device: str
    num_devices: Degree
    num_nodes: Degree
    gpus_per_node: Degree
    nics_per_node: Degree
    device_memory_bytes: Degree


class WorkloadInfo(_Part):
    """What was asked: one optimizer step over `global_batch_size` sequences of `seq_len` tokens."""

    global_batch_size: Degree
    seq_len: Degree
    precision: Precision
    optimizer: str
    grad_dtype: Precision
    reduce_dtype: Precision
    attention: Attention
    dropout: bool
    frozen: bool


class StageParallelism(_Part):
    """How one stage is parallel. A value is null where the stage's shardings have no such name.

    ep: devices that the experts of a layer are spread over. etp: devices that share one expert, null without experts.
    micro_batch_size: sequences one data-parallel replica runs at a time.
    """

    dp: Degree | None
    tp: Degree | None
    cp: Degree | None
    ep: Degree | None
    etp: Degree | None
    sequence_parallel: bool | None
    zero: ZeroStage | None
    micro_batch_size: Degree | None
    recompute: Recompute | None
    recipe: str | None


class Parallelism(_Part):
    """How the whole plan is parallel. A value is null where stages differ or where it is null in a stage."""

    dp: Degree | None
    tp: Degree | None
    pp: Degree
    cp: Degree | None
    ep: Degree | None
    etp: Degree | None
    sequence_parallel: bool | None
    zero: ZeroStage | None
    micro_batch_size: Degree | None
    num_micro_batches: Degree
    schedule: Schedule
    virtual_stages: Degree
    recompute: Recompute | None
    recipe: str | None


class StageBreakdown(_Part):
    """Seconds of one iteration that a stage's devices are busy.

    They add up to `micro_batch_s` · num_micro_batches + `step_s` of the stage. Of collectives, what is waited for.
    launch_s: what the device waits for the host to launch kernels.
    """

    forward_s: Seconds
    backward_s: Seconds
    recompute_s: Seconds
    launch_s: Seconds
    layout_conversion_s: Seconds
    parameter_gather_s: Seconds
    p2p_s: Seconds
    gradient_sync_s: Seconds
    optimizer_s: Seconds


class Breakdown(_Part):
    """Seconds of one iteration by cause; they add up to `iteration_time_s`."""

    forward_s: Seconds
    backward_s: Seconds
    recompute_s: Seconds
    launch_s: Seconds
    layout_conversion_s: Seconds
    parameter_gather_s: Seconds
    p2p_s: Seconds
    bubble_s: Seconds
    gradient_sync_s: Seconds
    optimizer_s: Seconds


class Predicted(_Part):
    """What the cost model predicts for the plan.

    Per device: of the cluster's devices, used or not. mfu: model FLOPs (without recompute) over these devices' dense
    peak at the plan's precision, a fraction. By the field's convention (PaLM, appendix B) it counts attention in full,
    so on very long causal sequences it may pass 1. simulated_time_s: the iteration replayed event by event, which
    iteration_time_s gives in closed form; null where that is long (`autoplan simulate` replays it). physical_limit_s:
    the FLOPs that a causal mask leaves, at that peak on all devices. peak_memory_bytes: of the fullest stage.
    """

    iteration_time_s: Annotated[float, Field(gt=0)]
    simulated_time_s: Annotated[float, Field(gt=0)] | None
    tokens_per_s: Seconds
    tokens_per_s_per_device: Seconds
    model_tflops_per_device: Seconds
    mfu: Annotated[float, Field(ge=0)]
    peak_memory_bytes: Bytes
    bubble_fraction: Annotated[float, Field(ge=0, le=1)]
    breakdown: Breakdown
    physical_limit_s: Seconds


class Spec(_Part):
    """A tensor's layout: for each of its dims the mesh axes that split it; and the axes it is a partial sum over."""

    dims: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()


class ParamSpec(Spec):
    """The layout of a parameter as its operator reads it, and how it is stored.

    zero: 1 splits the optimizer state, 2 the gradient too, 3 the weight too. shards: over how many devices.
    """

    zero: ZeroStage = 0
    shards: Degree = 1


class Sharding(_Part):
    """The layouts around one operator."""

    inputs: dict[str, Spec]
    params: dict[str, ParamSpec]
    output: Spec


class MeshInfo(_Part):
    """A stage's logical mesh: row-major over its devices."""

    shape: tuple[Degree, ...]
    axes: tuple[str, ...]


class StageTime(_Part):
    """Seconds of one micro-batch (forward and backward), and of what happens once a step.

    Of micro_batch_s, forward_s is the forward pass and weight_gradient_s what zero-bubble schedules put off.
    """

    micro_batch_s: Seconds
    forward_s: Seconds
    weight_gradient_s: Seconds
    step_s: Seconds
    breakdown: StageBreakdown


class MemoryBreakdown(_Part):
    """Bytes of one device by cause; `activations` counts every micro-batch in flight."""

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    transient: Bytes
    communication: Bytes
    reserve: Bytes


class StageMemory(_Part):
    """Bytes of one device of the stage at its peak. `in_flight`: micro-batches whose activations are kept.

    total_bytes: the likely peak, of which `breakdown` is the sum; low_bytes, high_bytes: what it lies between, as the
    runtime's reserve is not known better. It fits if high_bytes ≤ capacity_bytes.
    """

    total_bytes: Bytes
    low_bytes: Bytes
    high_bytes: Bytes
    capacity_bytes: Bytes
    in_flight: Annotated[float, Field(ge=0)]
    breakdown: MemoryBreakdown


class Stage(_Part):
    """A pipeline stage: some layers on some devices.

    chunks: the layer ranges the stage holds, one unless the schedule has virtual stages. layers: the first chunk.
    shardings: layouts by `<layer class>.<operator>`.
    """

    index: Count
    layers: LayerRange
    chunks: tuple[LayerRange, ...] = Field(min_length=1)
    devices: tuple[Count, ...] = Field(min_length=1)
    mesh: MeshInfo
    parallelism: StageParallelism
    time: StageTime
    memory: StageMemory
    shardings: dict[str, Sharding]


class SearchInfo(_Part):
    """What was searched and what is proven.

    lower_bound_s: no plan in the searched space is faster. gap: (iteration time − bound) / iteration time. Both are
    null for an estimate, which proves nothing. status `optimal`: the gap asked for was reached; `feasible`: more
    than that gap is left between plan and bound. solves: tables of layers (or, with a solver of the user's, stages)
    solved as integer programs; cache_hits: tables that another candidate had left.
    """

    lower_bound_s: Seconds | None
    gap: Annotated[float, Field(ge=0, le=1)] | None
    candidates: Count
    pruned: Count
    solves: Count
    cache_hits: Count
    solver: str
    status: Literal["optimal", "feasible", "time_limit", "estimate"]


class Timing(_Part):
    """How long planning took: the only part of a plan that differs from run to run. solve_s: in all `solves`."""

    wall_s: Seconds
    solve_s: Seconds
    phases: dict[str, Seconds] = Field(default_factory=dict)


class AlternativePrediction(_Part):
    """The summary of a runner-up."""

    iteration_time_s: Annotated[float, Field(gt=0)]
    mfu: Annotated[float, Field(ge=0)]
    peak_memory_bytes: Bytes


class Alternative(_Part):
    """A runner-up."""

    parallelism: Parallelism
    predicted: AlternativePrediction


class Plan(_Part):
    """A parallel plan. See the module's docstring for units and numbering."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["training"] = "training"
    autoplan_version: str
    model: ModelInfo
    cluster: ClusterInfo
    workload: WorkloadInfo
    runtime: str
    parallelism: Parallelism
    predicted: Predicted
    stages: tuple[Stage, ...] = Field(min_length=1)
    search: SearchInfo
    timing: Timing
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file. Raises InputError where it can't be read or isn't a plan."""
        plan, found = parse(read_text(path), str(path))
        if plan is None:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise InputError(f"not a valid plan: {found[0]}{more}", where=str(path))
        return plan

    def to_json(self) -> str:
        """Return the plan as JSON text, ending in a newline; equal plans give equal text, and floats round-trip."""
        return _render(self.model_dump(mode="json"), "") + "\n"


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a plan file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema(mode="serialization")}
    return schema | {"title": "autoplan plan"}


def read_text(path: str | Path) -> str:
    """Return the text of the file `path`. Raises InputError where it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", where=str(path)) from None
    except (UnicodeDecodeError, ValueError):
        raise InputError("not a UTF-8 text file", where=str(path)) from None


def parse(text: str, where: str) -> tuple[Plan | None, tuple[str, ...]]:
    """Return the plan in a JSON text, or None and what the schema has against it, a sentence each.

    Raises InputError where the text isn't JSON or of another schema version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})", where=where) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; an integer of thousands of digits
        raise InputError(f"not a plan: {unparsed(error)}", where=where) from None
    if not isinstance(data, dict):
        raise InputError("not a plan: the file holds no JSON object", where=where, found=kind_of(data),
                         allowed="a mapping")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise InputError("this version of autoplan can't read it", where=where, key="schema_version",
                         found=version, allowed=str(SCHEMA_VERSION))
    try:
        return Plan.model_validate_json(text, strict=True), ()
    except ValidationError as error:
        return None, tuple(_sentence(detail) for detail in error.errors(include_url=False))


def _sentence(detail: ErrorDetails) -> str:
    """Return a validation error as `path: what (found …)`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    found = repr(detail["input"])
    shown = "" if detail["type"] == "missing" else f" (found {found if len(found) <= 60 else found[:57] + '…'})"
    return f"{path or 'plan'}: {message}{shown}"


def _render(value: Any, indent: str) -> str:
    """Return JSON with objects and lists of objects on many lines, and lists of plain values on one."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        body = ",\n".join(f"{inner}{json.dumps(key)}: {_render(item, inner)}" for key, item in value.items())
        return f"{{\n{body}\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        body = ",\n".join(inner + _render(item, inner) for item in value)
        return f"[\n{body}\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
