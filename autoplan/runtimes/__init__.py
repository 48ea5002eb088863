"""Runtimes: what a training framework overlaps, allows and reserves. Data, a file each; no code a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, nearest
from autoplan.model.ops.work import LossKernels
from autoplan.specs import read_yaml
from autoplan.workload import Precision, Schedule

FOLDER = Path(__file__).parent


class TensorOverlap(StrEnum):
    """Which collectives of tensor parallelism run beside matrix products: none; in the backward pass those beside the
    weight gradient; all but the first chunk of each, products and collectives being cut into a chunk a rank."""

    NONE = "none"
    BACKWARD = "backward"
    CHUNKED = "chunked"


@dataclass(frozen=True)
class Overlap:
    """What runs beside computing instead of after it.

    gradients: reductions, beside the backward pass that makes them. parameters: gathers, beside the forward pass
    (ZeRO-1, ZeRO-2) or the layer before (ZeRO-3). tensor: see `TensorOverlap`. sends: those between the stages of an
    interleaved pipeline. slowdown: seconds that computing loses for each second of a collective that runs beside it.
    """

    gradients: bool
    parameters: bool
    tensor: TensorOverlap
    sends: bool
    slowdown: float

    @property
    def nothing(self) -> bool:
        """Whether everything is waited for."""
        return not (self.gradients or self.parameters or self.tensor is not TensorOverlap.NONE or self.sends)


@dataclass(frozen=True)
class Reserve:
    """Memory a device loses to the framework: a constant, and a fraction of all that is allocated."""

    context_bytes: int
    allocator_slack: float


@dataclass(frozen=True)
class Runtime:
    """A runtime's rules.

    bucket_bytes: gradients and parameters travel in buckets of this size. low, likely, high: the memory reserve; a plan
    fits if it does with the high one. gathered_layers: layers whose parameters are whole at once under ZeRO-3.
    copies_gradients: whether the update holds an fp32 copy of 16-bit gradients. keeps_low_precision_gradients: whether
    16-bit gradients of a whole micro-batch are held beside the fp32 ones they are added to. extra_in_flight,
    keeps_outputs: micro-batches that 1F1B holds beyond its count, and whether a stage keeps what it has sent on.
    scatters_sends: whether each rank of a tensor-parallel group sends its part of a tensor that all hold, to be
    gathered on arrival. recomputes_ends: whether full recompute runs embedding and head again too. loss: how softmax
    and cross-entropy run. operation_seconds: the host's time to launch one operator's kernels, one way;
    blocking_launches: whether it waits for each before the next (CUDA_LAUNCH_BLOCKING). grad_dtype, reduce_dtype: of
    gradients as they accumulate and as they travel, unless the workload says (None: as the weights). zero,
    pipeline_zero: ZeRO stages it offers, without and with pipeline stages. free: whether it runs any sharding, not only
    named recipes. roles: what a mesh axis may do, role → loop dims in order of preference. free_splits: operator kind →
    loop dims that may be split where no role is fixed (all legal ones for a kind that isn't named).
    """

    name: str
    version: str
    source: str
    schedules: tuple[Schedule, ...]
    bucket_bytes: int
    low: Reserve
    likely: Reserve
    high: Reserve
    gathered_layers: int
    copies_gradients: bool
    keeps_low_precision_gradients: bool
    extra_in_flight: int
    keeps_outputs: bool
    scatters_sends: bool
    recomputes_ends: bool
    loss: LossKernels
    blocking_launches: bool
    overlap: Overlap
    operation_seconds: float
    grad_dtype: Precision | None
    reduce_dtype: Precision | None
    zero: tuple[int, ...]
    pipeline_zero: tuple[int, ...]
    free: bool
    roles: Mapping[str, tuple[str, ...]]
    free_splits: Mapping[str, tuple[str, ...]]

    def __hash__(self) -> int:
        return hash((self.name, self.version))

    @property
    def linear(self) -> bool:
        """Whether the seconds of a layer are the sum of its operators' seconds: nothing overlaps."""
        return self.overlap.nothing and self.operation_seconds == 0.0

    def zero_stages(self, stages: int | None) -> tuple[int, ...]:
        """Return the ZeRO stages it offers for so many pipeline stages, None: for some number of them."""
        return self.zero if stages in (None, 1) else self.pipeline_zero


def names() -> tuple[str, ...]:
    """Return the names of the known runtimes."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load(name: str) -> Runtime:
    """Return the runtime `name`. Raises InputError when there is none.

    A file says only what differs from `plain`, or from the runtime that its `like` names.
    """
    if name not in names():
        hint = nearest(str(name), names())
        allowed = ", ".join(names()) + (f"; {hint}" if hint else "")
        raise InputError(f"unknown runtime {name!r}", key="runtime", allowed=allowed)
    data = _merged(name)
    reserves = zip(data["memory"]["context_gib"], data["memory"]["allocator_slack"], strict=True)
    low, likely, high = (Reserve(int(context * 2**30), float(slack)) for context, slack in reserves)
    overlap, loss = data["overlap"], data["loss"]
    dtypes = (data[key] and Precision(data[key]) for key in ("grad_dtype", "reduce_dtype"))
    grad_dtype, reduce_dtype = dtypes
    return Runtime(
        name=data["name"], version=data["version"], source=data["source"],
        schedules=tuple(Schedule(value) for value in data["schedules"]),
        bucket_bytes=int(data["bucket_bytes"]), low=low, likely=likely, high=high,
        gathered_layers=int(data["memory"]["gathered_layers"]),
        copies_gradients=bool(data["memory"]["copies_gradients"]),
        keeps_low_precision_gradients=bool(data["memory"]["keeps_low_precision_gradients"]),
        extra_in_flight=int(data["memory"]["extra_in_flight"]), keeps_outputs=bool(data["memory"]["keeps_outputs"]),
        scatters_sends=bool(data["scatters_sends"]), recomputes_ends=bool(data["recomputes_ends"]),
        loss=LossKernels(float(loss["forward_bytes"]), float(loss["backward_bytes"]), bool(loss["in_place"])),
        blocking_launches=bool(data["blocking_launches"]),
        overlap=Overlap(gradients=overlap["gradients"], parameters=overlap["parameters"],
                        tensor=TensorOverlap(overlap["tensor"]), sends=overlap["sends"],
                        slowdown=float(overlap["slowdown"])),
        operation_seconds=float(data["operation_us"]) * 1e-6, grad_dtype=grad_dtype, reduce_dtype=reduce_dtype,
        zero=tuple(data["zero"]), pipeline_zero=tuple(data["pipeline_zero"]), free=bool(data["free"]),
        roles={role: tuple(dims) for role, dims in data["roles"].items()},
        free_splits={kind: tuple(dims) for kind, dims in data["free_splits"].items()},
    )


def _merged(name: str) -> dict[str, Any]:
    """Return what a file says, over what the runtime it is like says."""
    own = _read(name)
    if name == "plain":
        return own
    base = _merged(own.get("like", "plain"))
    return {**base, **own, "memory": {**base["memory"], **own.get("memory", {})}}


def _read(name: str) -> dict[str, Any]:
    data = read_yaml(FOLDER / f"{name}.yaml")
    assert isinstance(data, dict)
    return data
