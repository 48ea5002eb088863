"""Bytes of parameters, gradients and optimizer state, and of a stage at its peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.runtimes import Runtime
from autoplan.workload import Workload

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StateBytes:
    """Bytes one device holds always for a parameter."""

    weights: float
    gradients: float
    states: float


def state_bytes(numel: float, workload: Workload, zero: int, shards: float) -> StateBytes:
    """Return the bytes of a parameter of `numel` local elements whose data-parallel group has `shards` devices.

    ZeRO-1 splits the optimizer state over the group, ZeRO-2 the gradient too, ZeRO-3 the weight too (Rajbhandari et
    al., arXiv:1910.02054, §5).
    """
    return StateBytes(
        weights=numel * workload.weight_bytes / (shards if zero >= 3 else 1.0),
        gradients=numel * workload.grad_bytes / (shards if zero >= 2 else 1.0),
        states=numel * workload.optimizer_bytes / (shards if zero >= 1 else 1.0),
    )


def update_bytes(numel: float, workload: Workload, zero: int, shards: float) -> float:
    """Return the bytes an optimizer step moves: reads gradient and state, writes state and weight."""
    touched = numel / (shards if zero >= 1 else 1.0)
    return touched * (workload.grad_bytes + 2.0 * workload.optimizer_bytes + workload.weight_bytes)


def peak_bytes(state: Array, saved: Array, transient: Array, in_flight: Array | float, runtime: Runtime) -> Array:
    """Return a device's peak: state, the activations of all micro-batches in flight, transient bytes, the reserve.

    state + in_flight · saved + transient, times one plus the allocator's slack, plus the framework's context.
    """
    return (state + in_flight * saved + transient) * (1.0 + runtime.allocator_slack) + runtime.context_bytes
