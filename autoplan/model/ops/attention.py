"""The attention core, softmax(Q·Kᵀ/√d)·V, with grouped key/value heads.

Attributes: `causal`; `window` (the most keys that a query sees) or `chunk` (queries see the keys of their own chunk);
`kv_heads`; `cached` (elements of the cache a token, where it isn't keys and values that are kept).

Batch and query heads split freely. A split of `seq` splits the queries and leaves every device all keys and values
(an all-gather of K and V forward, a reduce-scatter of their gradients backward: both follow from the layouts). `kv_seq`
and `head_dim` are never split: their partial softmax would need a second exchange, which no runtime here offers.
"""

from __future__ import annotations

import numpy as np

from autoplan.model.graph import BATCH, KV_SEQ, SEQ, Op
from autoplan.model.ops.work import Array, AttentionCore, Counts, Numerics, Sizes, Work


def splittable(op: Op) -> tuple[str, ...]:
    """Batch, query heads, query positions."""
    return (BATCH, SEQ, "heads")


def window(op: Op) -> int:
    """Return the most keys that a query sees, 0 where all are seen."""
    return int(op.attr("window") or 0)


def flops(op: Op, sizes: Counts) -> int:
    """Return forward FLOPs without the causal mask's saving: 2·heads·q·keys·(head_dim + value_dim).

    keys: all, or at most a window or chunk of them.
    """
    keys = min(sizes[KV_SEQ], window(op) or chunk(op) or sizes[KV_SEQ])
    return 2 * sizes[BATCH] * sizes["heads"] * _widths(op) * sizes[SEQ] * keys


def chunk(op: Op) -> int:
    """Return the tokens of a chunk outside which a query sees nothing, 0 where there are no chunks."""
    return int(op.attr("chunk") or 0)


def _widths(op: Op) -> int:
    """Return the width of a query head and of a value head, added."""
    head_dim = op.static_sizes["head_dim"]
    return head_dim + op.static_sizes.get("value_dim", head_dim)


def attended(op: Op, kv_len: Array, numerics: Numerics) -> tuple[Array, bool]:
    """Return the keys that the kernel meets for each query, [K], and whether a causal mask hides part of them.

    A fused kernel skips the blocks outside a window, which leaves q × window scores; the triangle of a causal mask is
    fewer from a window of half the keys on. An unfused kernel computes all scores, masked or not.
    """
    causal, most = bool(op.attr("causal", True)), window(op)
    if numerics.flash and 0 < most < float(kv_len.max()) / (2 if causal else 1):
        return np.minimum(kv_len, float(most)), False
    return kv_len, causal


def local_kv_heads(op: Op, heads: Array) -> Array:
    """Return the key/value heads that `heads` local query heads read: at least one."""
    group = max(1, op.static_sizes["heads"] // int(op.attr("kv_heads") or 1))
    return np.maximum(1.0, np.ceil(heads / group))


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Flash attention keeps Q, K, V, the output and a log-sum-exp; the unfused one keeps the probabilities too, and
    with dropout its masks and what they leave (Korthikanti et al., arXiv:2205.05198, §4.1).

    Heads whose values are narrower than their keys are priced as heads of the mean width.
    """
    batch, heads, q_len, kv_len = sizes[BATCH], sizes["heads"], sizes[SEQ], sizes[KV_SEQ]
    keys, causal = attended(op, kv_len, numerics)
    width = _widths(op) // 2
    if numerics.flash and 0 < chunk(op) < float(kv_len.max()):  # chunks are sequences of their own
        length = np.minimum(q_len, float(chunk(op)))
        core = AttentionCore(batch * q_len / length, heads, local_kv_heads(op, heads), length, length,
                             head_dim=width, causal=causal)
    else:
        core = AttentionCore(batch, heads, local_kv_heads(op, heads), q_len, keys, head_dim=width, causal=causal)
    probabilities = batch * heads * q_len * kv_len
    scores = probabilities * numerics.element_bytes
    kept = scores + (scores + probabilities if numerics.dropout else 0.0)
    statistics = batch * heads * q_len * 4.0
    return Work(
        forward=(core,),
        backward=(core,),
        keeps_inputs=True,
        keeps_output=True,
        extra_saved=statistics if numerics.flash else 0.0,
        scores=0.0 * kept if numerics.flash else kept,
        workspace=2.0 * batch * heads * q_len * _widths(op) * numerics.element_bytes
        + (0.0 if numerics.flash else 2.0) * scores,
    )
