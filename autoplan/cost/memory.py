"""Bytes of parameters, gradients and optimizer state, and of a stage at its peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.runtimes import Runtime
from autoplan.workload import Workload

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StateBytes:
    """Bytes one device holds always for a parameter."""

    weights: Array
    gradients: Array
    states: Array


def state_bytes(numel: Array, workload: Workload, zero: Ints, shards: Array) -> StateBytes:
    """Return the bytes of parameters of `numel` local elements at ZeRO stages `zero`, data parallel over `shards`.

    ZeRO-1 splits the optimizer state over the group, ZeRO-2 the gradient too, ZeRO-3 the weight too (Rajbhandari et
    al., arXiv:1910.02054, §5). The arguments broadcast.
    """
    return StateBytes(
        weights=numel * workload.weight_bytes / np.where(zero >= 3, shards, 1.0),
        gradients=numel * workload.grad_bytes / np.where(zero >= 2, shards, 1.0),
        states=numel * workload.optimizer_bytes / np.where(zero >= 1, shards, 1.0),
    )


def update_bytes(numel: Array, workload: Workload, zero: Ints, shards: Array) -> Array:
    """Return the bytes an optimizer step moves: reads gradient and state, writes state and weight."""
    touched = numel / np.where(zero >= 1, shards, 1.0)
    return touched * (workload.grad_bytes + 2.0 * workload.optimizer_bytes + workload.weight_bytes)


def communication_bytes(runtime: Runtime) -> float:
    """Return the bytes of the buffers that buckets travel in: one being filled, one being sent."""
    return 2.0 * runtime.bucket_bytes


def peak_bytes(state: Array, saved: Array, transient: Array, in_flight: Array | float, runtime: Runtime) -> Array:
    """Return a device's peak: state, the activations of all micro-batches in flight, transient bytes, the reserve.

    (state + in_flight · saved + transient + communication buffers) · (1 + allocator's slack) + the framework's context.
    """
    allocated = state + in_flight * saved + transient + communication_bytes(runtime)
    return allocated * (1.0 + runtime.allocator_slack) + runtime.context_bytes


def usable_bytes(memory_bytes: float, runtime: Runtime) -> float:
    """Return what a device of `memory_bytes` leaves for state, activations and transient bytes."""
    return ((memory_bytes - runtime.context_bytes) / (1.0 + runtime.allocator_slack)) - communication_bytes(runtime)
