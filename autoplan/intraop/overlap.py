"""What a layer's summed terms come to under one recompute policy, with what the runtime runs side by side.

Where nothing overlaps this is the matrix `terms.criteria`. A collective beside computing takes

    beside(work, wire) = max(work, wire) + slowdown · min(work, wire)

seconds for both, since its blocks take multiprocessors away. What is paid once a step runs beside what a pass leaves
free of its own collectives, so a longer pass makes the seconds a step fewer, but never m of them and a step's together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from autoplan.intraop.terms import Criterion, Policy, Term, criteria
from autoplan.runtimes import Runtime, TensorOverlap
from autoplan.workload import Recompute

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Passes:
    """Seconds of a layer by pass, each [...]: forward and backward with their collectives (what is run again counts as
    backward), what of gathers and reductions a micro-batch waits for, and what of each once-a-step collective."""

    forward: Array
    backward: Array
    gather: Array
    reduce: Array
    sync: Array
    gather_step: Array

    def __add__(self, other: Passes) -> Passes:
        return Passes(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Passes)))

    def __rmul__(self, times: float) -> Passes:
        return Passes(*(times * getattr(self, one.name) for one in fields(Passes)))


def passes(terms: Array, recompute: Recompute, runtime: Runtime, tensor_ranks: int) -> Passes:
    """Return the seconds of terms [..., NUM_TERMS]. tensor_ranks: devices that share a layer's products."""
    at = {term: terms[..., term] for term in Term}
    lap = runtime.overlap
    chunked = lap.tensor is TensorOverlap.CHUNKED and tensor_ranks > 1
    share = 1.0 - 1.0 / tensor_ranks if chunked else 0.0

    def hidden(work: Array, wire: Array) -> Array:
        """Seconds saved by running `wire` beside `work`."""
        result: Array = (1.0 - lap.slowdown) * np.minimum(work, wire)
        return result

    launched = np.add if runtime.blocking_launches else np.maximum
    ahead = launched(at[Term.FORWARD], at[Term.HOST_FORWARD])
    back = launched(at[Term.BACKWARD], at[Term.HOST_BACKWARD])
    tensor_forward = np.maximum(at[Term.CONVERT_FORWARD] - at[Term.EXCHANGE_FORWARD], 0.0)
    tensor_backward = np.maximum(at[Term.CONVERT_BACKWARD] - at[Term.EXCHANGE_BACKWARD], 0.0)
    forward = ahead + at[Term.CONVERT_FORWARD] - hidden(ahead, share * tensor_forward)
    regather = 0.0 if recompute is Recompute.FULL else at[Term.REGATHER]
    wire = at[Term.CONVERT_BACKWARD] + regather
    beside = tensor_backward if lap.tensor is TensorOverlap.BACKWARD else share * (tensor_backward + regather)
    backward = back + wire - hidden(back, beside)
    if recompute is Recompute.FULL:
        backward = backward + forward
    elif recompute is Recompute.SELECTIVE:
        backward = backward + at[Term.CORE]
    none = np.zeros(terms.shape[:-1])
    once, scattered = at[Term.GATHER] / 2, at[Term.REDUCE]  # one of the two gathers
    ahead_of_use = once if lap.parameters else none
    wires = ahead_of_use + (scattered if lap.gradients else none)
    in_forward, in_backward = hidden(forward, ahead_of_use), hidden(backward, wires)
    gathers = np.divide(ahead_of_use, wires, out=np.zeros_like(wires), where=wires > 0)
    sync = at[Term.SYNC] if lap.gradients else none
    gather_step = at[Term.GATHER_STEP] if lap.parameters else none
    return Passes(
        forward=forward, backward=backward,
        gather=2 * once - in_forward - in_backward * gathers, reduce=scattered - in_backward * (1.0 - gathers),
        sync=at[Term.SYNC] - hidden(np.maximum(backward - wires, 0.0), sync),
        gather_step=at[Term.GATHER_STEP] - hidden(np.maximum(forward - ahead_of_use, 0.0), gather_step))


def evaluate(terms: Array, policy: Policy, runtime: Runtime, tensor_ranks: int) -> Array:
    """Return the columns of `Criterion` [..., 6] of a layer's summed terms [..., NUM_TERMS]."""
    values: Array = terms @ criteria(policy)
    if runtime.linear:
        return values
    found = passes(terms, policy.recompute, runtime, tensor_ranks)
    values[..., Criterion.T_MICRO_BATCH] = found.forward + found.backward + found.gather + found.reduce
    values[..., Criterion.T_STEP] = found.sync + found.gather_step + terms[..., Term.OPTIMIZER]
    return values
