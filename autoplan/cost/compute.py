"""Seconds of a kernel on one device: matmul, attention and memory-bound operators.

Every function takes numbers or arrays that broadcast and returns an array of seconds. Each is non-decreasing in every
size and non-increasing in the peak and the memory bandwidth, by construction: sums, maxima and minima of such terms.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from autoplan.cost.kernels import Attention, Decode, Gemm, Memory

Array = NDArray[np.float64]

# Output tiles (rows, columns) that a library chooses between, and how many sizes each is below (or above) 128×128.
_ROWS, _COLUMNS = np.array([(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)], dtype=np.float64).T
_STEP = np.array([1, 1, 0, -1, -1, -2], dtype=np.float64)
_HEAD_DIMS = 32.0  # fused attention is compiled for head_dims in such steps (FlashAttention-2); others are padded
_BLOCK = 128.0  # query rows of a block of fused attention (FlashAttention-2 and -3 at head_dim 128)

# Passes over the 16-bit score matrix when attention isn't fused. Forward: a fused scale-mask-softmax (Megatron-LM's)
# reads and writes it; backward it reads gradient and probabilities and writes.
_SOFTMAX_FORWARD, _SOFTMAX_BACKWARD = 2.0, 3.0
# Dropout reads and writes it, and writes or reads a mask of one byte a score.
_DROPOUT = 2.5
# Without the fused kernel (PyTorch's operators one by one), further: scaling and masking each read and write it (4
# either way), and softmax reads and writes fp32, to which the scores are converted and back (forward 6, backward 5.5).
_NAIVE_FORWARD, _NAIVE_BACKWARD = 10.0, 9.5

# Matmuls of the attention core: forward QKᵀ and PV; backward also recomputes QKᵀ: 5 against 2 (FlashAttention-2,
# arXiv:2307.08691, section 2.3 and algorithm 2), hence 2.5 × the forward FLOPs.
_BACKWARD_FLOPS = 2.5

# Depth of the backward pass relative to the forward pass: how FlashAttention-3's speed falls from 16,384 to 1,024 keys
# and 512 keys (figures 5 and 6, head_dim 128, not causal): as 1/(1 + depth/keys) with a depth of 150 and 198 keys
# forward and of 330 and 397 backward.
_BACKWARD_DEPTH = 2.0


def matmul_time(fit: Gemm, units: float, peak: float, bandwidth: float, m: ArrayLike, n: ArrayLike, k: ArrayLike,
                batch: ArrayLike = 1, itemsize: float = 2, result_bytes: float | None = None) -> Array:
    """Seconds of `batch` products C[m,n] = A[m,k]·B[k,n].

    The output is cut into tiles; `units` multiprocessors work on a wave of tiles at once, each at peak/units times the
    tile's efficiency, and a tile of depth k costs as much as k + depth. The library takes the fastest tile size:
        waves(t)   = max(1, (1 − q)·w + q·⌈w⌉),  w = batch·⌈m/rows⌉·⌈n/columns⌉ / units
        compute    = min over t of  waves(t) · 2·rows·columns·(k + depth) / (efficiency(t)·peak/units)
        memory     = bytes of A, B and C / (fraction · bandwidth)
        cast       = bytes that a conversion of A to the operand dtype moves
        time       = launch + (compute^p + memory^p)^(1/p) + cast/(fraction · bandwidth)
    peak in FLOP/s, bandwidth in bytes/s, itemsize in bytes of an operand's element; result_bytes: moved an element of C
    (None: itemsize; 8 where an fp32 gradient is read and written to accumulate).
    """
    m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    w = (batch / units)[..., None] * np.ceil(m[..., None] / _ROWS) * np.ceil(n[..., None] / _COLUMNS)
    q = fit.quantisation
    waves = np.maximum(1.0, (1 - q) * w + q * np.ceil(w))
    per_depth = (waves * _tile_work(fit)).min(axis=-1) * (units / peak)
    compute = per_depth * (k + fit.depth)
    moved = itemsize * (m * k + k * n) + (itemsize if result_bytes is None else result_bytes) * m * n
    memory = batch * moved / (fit.memory * bandwidth)
    time = fit.launch + _norm(compute, memory, fit.sharpness)
    return time + batch * m * k * fit.cast / (fit.memory * bandwidth) if fit.cast else time


@functools.cache
def _tile_work(fit: Gemm) -> Array:
    """FLOPs of a tile, one element deep, over the efficiency that it reaches."""
    relative = np.where(_STEP > 0, fit.large, fit.small ** -_STEP)
    work: Array = 2 * _ROWS * _COLUMNS / (fit.efficiency * relative)
    return work


def _norm(a: Array, b: Array, p: float) -> Array:
    """Return (a^p + b^p)^(1/p), free of overflow."""
    top = np.maximum(a, b)
    out: Array = top * (1 + (np.minimum(a, b) / np.maximum(top, 1e-300)) ** p) ** (1 / p)
    return out


def visible_scores(q_len: ArrayLike, kv_len: ArrayLike, causal: bool) -> Array:
    """Scores that count of a q_len × kv_len matrix; causal: the last query sees every key, earlier ones fewer."""
    q, kv = np.asarray(q_len, dtype=np.float64), np.asarray(kv_len, dtype=np.float64)
    rows = np.minimum(q, kv)
    scores: Array = rows * (kv - rows) + rows * (rows + 1) / 2 if causal else q * kv
    return scores


def flash_time(fit: Attention, units: float, peak: float, bandwidth: float, batch: ArrayLike, heads: ArrayLike,
               kv_heads: ArrayLike, q_len: ArrayLike, kv_len: ArrayLike, head_dim: ArrayLike, *, causal: bool = True,
               backward: bool = False, itemsize: float = 2) -> Array:
    """Seconds of fused attention, forward or backward.

    A block of 128 queries walks over its keys, and the blocks of all heads and sequences fill the multiprocessors. The
    makespan of such a list of jobs is its mean load plus part of its longest job, and at least its longest job:
        score  = 4·(head_dim, padded to 32s, + softmax) FLOP-equivalents
        work   = batch·heads·(visible scores + depth·q_len) · score / (efficiency·peak)
        block  = 128·(kv_len + depth) · score / (efficiency·peak/units)
        memory = bytes of Q, K, V and O / (fraction·bandwidth)
        time   = launch + max(work + tail·block, block, memory)
    Backward: 2.5 × the FLOPs at `fit.backward` of the forward efficiency, twice the depth, and twice the bytes (it
    reads Q, K, V, O and dO and writes dQ, dK and dV).
    """
    b, h, g, q, kv, d = (np.asarray(x, dtype=np.float64) for x in (batch, heads, kv_heads, q_len, kv_len, head_dim))
    rate = fit.efficiency * peak
    nbytes = itemsize * b * d * (2 * h * q + 2 * g * kv)
    score, depth = 4 * (_HEAD_DIMS * np.ceil(d / _HEAD_DIMS) + fit.softmax), fit.depth
    if backward:
        depth = depth * _BACKWARD_DEPTH
        rate = rate * fit.backward
        score = score * _BACKWARD_FLOPS
        nbytes = 2 * nbytes
    work = b * h * (visible_scores(q, kv, causal) + depth * q) * score / rate
    block = np.minimum(_BLOCK, q) * (kv + depth) * score / rate * units
    memory = nbytes / (fit.memory * bandwidth)
    return fit.launch + np.maximum(np.maximum(work + fit.tail * block, block), memory)


def decode_time(fit: Decode, bandwidth: float, batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike,
                kv_len: ArrayLike, head_dim: ArrayLike, kv_itemsize: float = 2) -> Array:
    """Seconds of attention from one query a sequence to kv_len cached keys and values: the time to read them.

    time = launch + bytes of K and V / (fraction·bandwidth) + per_head·batch·heads; kv_itemsize in bytes of a cached
    element (1: fp8). The keys of a sequence are split over the multiprocessors (flash decoding), so few sequences are
    no slower a byte.
    """
    b, h, g, kv, d = (np.asarray(x, dtype=np.float64) for x in (batch, heads, kv_heads, kv_len, head_dim))
    return fit.launch + 2 * kv_itemsize * b * g * kv * d / (fit.fraction * bandwidth) + fit.per_head * b * h


def generations_behind(newest: int, used: int) -> float:
    """Return how much slower fused attention of generation `used` is than that of generation `newest`.

    FlashAttention-3 is 1.5 to 2 times as fast as FlashAttention-2 (arXiv:2407.08608), that twice as fast as the first
    (arXiv:2307.08691).
    """
    steps = {3: 1.75, 2: 2.0}
    return math.prod(steps[one] for one in range(used + 1, newest + 1))


def unfused_time(gemm: Gemm, memory: Memory, units: float, peak: float, bandwidth: float, batch: ArrayLike,
                 heads: ArrayLike, q_len: ArrayLike, kv_len: ArrayLike, head_dim: ArrayLike, *,
                 backward: bool = False, itemsize: float = 2, fused_softmax: bool = True,
                 dropout: bool = False) -> Array:
    """Seconds of attention as batched matmuls and memory-bound passes over the whole score matrix (masked or not).

    fused_softmax: scaling, mask and softmax are one kernel; else one after the other. dropout: of the probabilities.
    """
    b, h, q, kv = (np.asarray(x, dtype=np.float64) for x in (batch, heads, q_len, kv_len))
    rows = b * h
    scores = rows * q * kv * itemsize
    qk = matmul_time(gemm, units, peak, bandwidth, q, kv, head_dim, rows, itemsize)
    pv = matmul_time(gemm, units, peak, bandwidth, q, head_dim, kv, rows, itemsize)
    if not backward:
        passes = _SOFTMAX_FORWARD + _DROPOUT * dropout + _NAIVE_FORWARD * (not fused_softmax)
        return qk + pv + memory_time(memory, units, bandwidth, passes * scores)
    dkv = matmul_time(gemm, units, peak, bandwidth, kv, head_dim, q, rows, itemsize)
    # dP = dO·Vᵀ has the shape of QKᵀ, dQ = dS·K that of PV, dV = Pᵀ·dO and dK = dSᵀ·Q the transposed one.
    passes = _SOFTMAX_BACKWARD + _DROPOUT * dropout + _NAIVE_BACKWARD * (not fused_softmax)
    return qk + pv + 2 * dkv + memory_time(memory, units, bandwidth, passes * scores)


def memory_time(fit: Memory, units: float, bandwidth: float, nbytes: ArrayLike) -> Array:
    """Seconds of an operator that reads and writes `nbytes` in all.

    time = launch + nbytes/(fraction·bandwidth) + work·nbytes/units: plain streams have no `work`; reductions and
    transcendental functions are bound by instructions too, the more the faster the memory of a multiprocessor is.
    """
    per_byte = 1 / (fit.fraction * bandwidth) + fit.work / units
    return fit.launch + np.asarray(nbytes, dtype=np.float64) * per_byte
