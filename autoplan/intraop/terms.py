"""The terms a strategy is priced in. A strategy's cost is a vector [NUM_TERMS]; sums of vectors price whole layers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoplan.workload import Recompute, Schedule

Array = NDArray[np.float64]


class Term(IntEnum):
    """One column of a cost vector: seconds a micro-batch, seconds a step, or bytes of one device."""

    FORWARD = 0  # seconds a micro-batch: kernels of the forward pass
    BACKWARD = 1  # kernels of the backward pass
    CORE = 2  # kernels that selective recompute runs again
    CONVERT_FORWARD = 3  # collectives between layouts in the forward pass
    CONVERT_BACKWARD = 4  # those of the gradients
    REGATHER = 5  # gathers in the backward pass of what is kept split
    GATHER = 6  # parameters gathered each micro-batch (ZeRO-3)
    REDUCE = 7  # gradients reduced each micro-batch (ZeRO-2, ZeRO-3)
    SYNC = 8  # seconds a step: gradients reduced once
    OPTIMIZER = 9  # the update
    GATHER_STEP = 10  # parameters gathered once (ZeRO-1, ZeRO-2)
    WEIGHTS = 11  # bytes held always
    GRADIENTS = 12
    STATES = 13  # optimizer state, fp32 master copy included
    SAVED = 14  # bytes a micro-batch in flight: tensors kept for the backward pass
    SCORES = 15  # attention probabilities of the unfused kernel
    BOUNDARY = 16  # the layer's input
    TRANSIENT = 17  # bytes alive while the layer runs; over layers the largest counts
    WORKSPACE = 18  # bytes alive while the operator runs; over operators the largest counts
    HOST_FORWARD = 19  # seconds a micro-batch that the host needs to launch the forward pass; the backward pass
    HOST_BACKWARD = 20
    WEIGHT_GRADIENT = 21  # of BACKWARD, the kernels that nothing in this micro-batch waits for
    EXCHANGE_FORWARD = 22  # of CONVERT_FORWARD, tokens on their way to experts and back, which all wait for
    EXCHANGE_BACKWARD = 23  # of CONVERT_BACKWARD, their gradients


NUM_TERMS = len(Term)


class Criterion(IntEnum):
    """What the terms come to under one recompute policy: the columns of a stage table's rows."""

    T_MICRO_BATCH = 0  # seconds
    T_STEP = 1
    STATE = 2  # bytes
    SAVED = 3
    TRANSIENT = 4
    WORKSPACE = 5


@dataclass(frozen=True)
class Policy:
    """What a layer runs again, and how long it keeps what it saves.

    at_once: its backward pass follows its forward pass, so that it never saves for more than one micro-batch.
    """

    recompute: Recompute
    at_once: bool = False


def layer_policies(recompute: Recompute, schedule: Schedule, *, all_again: bool) -> tuple[Policy, Policy, Policy]:
    """Return the policies of the chain's first layer, of a repeated one and of the last.

    Embedding and head are run again only if `all_again` (Megatron-LM recomputes transformer layers). The last layer's
    backward pass follows at once, unless all micro-batches go forward first (GPipe) or its weights' gradients wait
    (zero-bubble).
    """
    ends = Recompute.NONE if recompute is Recompute.FULL and not all_again else recompute
    at_once = schedule is not Schedule.GPIPE and not schedule.splits_backward
    return Policy(ends), Policy(recompute), Policy(ends, at_once)


@cache
def criteria(policy: Policy) -> Array:
    """Return the matrix [NUM_TERMS, 6] that turns summed terms into `(t_micro_batch, t_step, state, saved, transient,
    workspace)`.

    Full recompute keeps a layer's input and runs its forward pass again, collectives included, so that what the layer
    saves lives only while its backward pass runs. Selective recompute does so for the attention core.
    """
    recompute = policy.recompute
    matrix = np.zeros((NUM_TERMS, len(Criterion)))
    once = [Term.FORWARD, Term.BACKWARD, Term.CONVERT_FORWARD, Term.CONVERT_BACKWARD, Term.GATHER, Term.REDUCE]
    matrix[once, Criterion.T_MICRO_BATCH] = 1.0
    matrix[[Term.SYNC, Term.OPTIMIZER, Term.GATHER_STEP], Criterion.T_STEP] = 1.0
    matrix[[Term.WEIGHTS, Term.GRADIENTS, Term.STATES], Criterion.STATE] = 1.0
    long = Criterion.TRANSIENT if policy.at_once else Criterion.SAVED
    matrix[Term.BOUNDARY, long] = 1.0
    matrix[Term.TRANSIENT, Criterion.TRANSIENT] = 1.0
    matrix[Term.WORKSPACE, Criterion.WORKSPACE] = 1.0
    again = {
        Recompute.NONE: [Term.REGATHER],
        Recompute.SELECTIVE: [Term.REGATHER, Term.CORE],
        Recompute.FULL: [Term.FORWARD, Term.CONVERT_FORWARD],
    }[recompute]
    matrix[again, Criterion.T_MICRO_BATCH] += 1.0
    matrix[Term.SAVED, Criterion.TRANSIENT if recompute is Recompute.FULL else long] = 1.0
    matrix[Term.SCORES, long if recompute is Recompute.NONE else Criterion.TRANSIENT] = 1.0
    matrix.flags.writeable = False  # shared
    return matrix


def conversion_weights(recompute: Recompute) -> tuple[float, float]:
    """Return how often a layer's forward and its backward conversions run in one micro-batch."""
    return (2.0 if recompute is Recompute.FULL else 1.0), 1.0
