"""Bytes of parameters, gradients and optimizer state, and of a stage at its peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.runtimes import Reserve, Runtime
from autoplan.workload import Workload

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StateBytes:
    """Bytes one device holds always for a parameter, or for all of a stage."""

    weights: Array | float
    gradients: Array | float
    states: Array | float


def state_bytes(numel: Array | float, workload: Workload, zero: Ints | int, shards: Array | float,
                runtime: Runtime) -> StateBytes:
    """Return the bytes of parameters of `numel` local elements at ZeRO stages `zero`, data parallel over `shards`.

    ZeRO-1 splits the optimizer state over the group, ZeRO-2 the gradient too, ZeRO-3 the weight too (Rajbhandari et
    al., arXiv:1910.02054, §5). A runtime that copies 16-bit gradients to fp32 for the update holds the copy with the
    state; one that adds a micro-batch's gradients to fp32 ones may hold both. The arguments broadcast.
    """
    copied = 4.0 if runtime.copies_gradients and workload.grad_bytes < 4 else 0.0
    both = runtime.keeps_low_precision_gradients and workload.grad_bytes > workload.precision.bytes
    beside = float(workload.precision.bytes) if both else 0.0
    return StateBytes(
        weights=numel * workload.weight_bytes / np.where(zero >= 3, shards, 1.0),
        gradients=numel * workload.grad_bytes / np.where(zero >= 2, shards, 1.0) + numel * beside,
        states=numel * (workload.optimizer_bytes + copied) / np.where(zero >= 1, shards, 1.0),
    )


def update_bytes(numel: Array, workload: Workload, zero: Ints, shards: Array) -> Array:
    """Return the bytes an optimizer step moves: reads gradient and state, writes state and weight."""
    touched = numel / np.where(zero >= 1, shards, 1.0)
    return touched * (workload.grad_bytes + 2.0 * workload.optimizer_bytes + workload.weight_bytes)


def communication_bytes(runtime: Runtime) -> float:
    """Return the bytes of the buffers that buckets travel in: one being filled, one being sent."""
    return 2.0 * runtime.bucket_bytes


def peak_bytes(state: Array | float, saved: Array | float, transient: Array | float, in_flight: Array | float,
               runtime: Runtime) -> Array:
    """Return the most a device may hold at its peak: what must fit.

    (state + in_flight · saved + transient + communication buffers) · (1 + allocator's slack) + the framework's context,
    with the high end of the runtime's reserve.
    """
    return _with(runtime.high, np.asarray(state + in_flight * saved + transient + communication_bytes(runtime)))


def _with(reserve: Reserve, allocated: Array) -> Array:
    return allocated * (1.0 + reserve.allocator_slack) + reserve.context_bytes


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one device of a stage at its likely peak, by cause.

    weights, gradients, optimizer: held always (optimizer: moments and fp32 master copy). activations: saved for the
    backward passes of all micro-batches in flight. transient: alive only while a layer runs. communication: buckets of
    collectives. reserve: the framework's context and what the allocator loses. total: the sum. low, high: what the peak
    lies between; `high` is `peak_bytes`.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    communication: float
    reserve: float
    total: float
    low: float
    high: float


def itemised(state: StateBytes, saved: float, transient: float, in_flight: float, runtime: Runtime) -> StageBytes:
    """Return what `peak_bytes` adds up, item by item, for one stage: `state`'s arrays hold one element each."""
    weights, gradients, optimizer = (float(held) for held in (state.weights, state.gradients, state.states))
    activations, buckets = in_flight * saved, communication_bytes(runtime)
    allocated = np.asarray(weights + gradients + optimizer + activations + transient + buckets)
    low, likely = (float(_with(reserve, allocated)) for reserve in (runtime.low, runtime.likely))
    return StageBytes(
        weights=weights, gradients=gradients, optimizer=optimizer, activations=activations, transient=transient,
        communication=buckets, reserve=likely - float(allocated), total=likely, low=low,
        high=float(peak_bytes(weights + gradients + optimizer, saved, transient, in_flight, runtime)))


def usable_bytes(memory_bytes: float, runtime: Runtime) -> float:
    """Return what a device of `memory_bytes` surely leaves for state, activations and transient bytes."""
    return ((memory_bytes - runtime.high.context_bytes) / (1.0 + runtime.high.allocator_slack)
            - communication_bytes(runtime))
