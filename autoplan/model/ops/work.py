"""What one operator makes a device do: kernels, and the bytes it keeps. All sizes may be numpy arrays of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Sizes = Mapping[str, Array]  # loop dim → local size of each strategy, [K]
Counts = Mapping[str, int]  # loop dim → its whole size
# "mixed": like none of the measured kinds
StreamKind = Literal["norm", "activation", "elementwise", "rotary", "embedding", "mixed"]


@dataclass(frozen=True)
class Gemm:
    """`batch` products C[m, n] = A[m, k] · B[k, n]. gradient: C is added to a weight's accumulated gradient."""

    m: Array
    n: Array
    k: Array
    batch: Array | float = 1.0
    gradient: bool = False


@dataclass(frozen=True)
class AttentionCore:
    """softmax(Q·Kᵀ)·V over local sizes. causal: the last query sees all `kv_len` keys, each earlier one a key less."""

    batch: Array
    heads: Array
    kv_heads: Array
    q_len: Array
    kv_len: Array
    head_dim: int
    causal: bool


@dataclass(frozen=True)
class Stream:
    """An operator bound by memory: bytes read and written, and the kind of measured kernel whose speed it has.

    gradient: all it does is add to a weight's accumulated gradient.
    """

    nbytes: Array
    kind: StreamKind
    gradient: bool = False


Kernel = Gemm | AttentionCore | Stream


@dataclass(frozen=True)
class Work:
    """The work of one operator on one device for one micro-batch.

    forward, backward: kernels. keeps_inputs / keeps_output: whether the backward pass reads them. extra_saved: bytes
    kept besides tensors of the graph (softmax statistics). scores: bytes kept that selective recompute runs again.
    workspace: bytes alive only while the operator runs.
    """

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    keeps_inputs: bool
    keeps_output: bool = False
    extra_saved: Array | float = 0.0
    scores: Array | float = 0.0
    workspace: Array | float = 0.0


@dataclass(frozen=True)
class LossKernels:
    """How softmax and cross-entropy run: bytes moved forward and backward a logit, and whether one kernel keeps the
    logits as they are and writes their gradient in place (else probabilities are kept in fp32)."""

    forward_bytes: float
    backward_bytes: float
    in_place: bool


# PyTorch's cross_entropy of a float copy: the copy reads 2 and writes 4 bytes, log_softmax reads them twice and writes
# them; backward reads two and writes one, and casts back.
EAGER_LOSS = LossKernels(18.0, 18.0, in_place=False)


@dataclass(frozen=True)
class Numerics:
    """What an operator's bytes depend on besides its sizes: bytes an element, whether attention is fused, whether
    dropout keeps its masks (a byte an element), how the loss runs, and whether weights are frozen."""

    element_bytes: int
    flash: bool
    dropout: bool = False
    loss: LossKernels = EAGER_LOSS
    frozen: bool = False


def volume(sizes: Sizes, dims: tuple[str, ...]) -> Array:
    """Return the product of the local sizes of `dims`, [K]."""
    result: Array = np.ones(1)
    for name in dims:
        result = result * sizes[name]
    return result
