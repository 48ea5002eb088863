"""The attention core, softmax(Q·Kᵀ/√d)·V, with grouped key/value heads.

Batch and query heads split freely. A split of `seq` splits the queries and leaves every device all keys and values
(an all-gather of K and V forward, a reduce-scatter of their gradients backward: both follow from the layouts). `kv_seq`
and `head_dim` are never split: their partial softmax would need a second exchange, which no runtime here offers.
"""

from __future__ import annotations

import numpy as np

from autoplan.model.graph import BATCH, KV_SEQ, SEQ, Op
from autoplan.model.ops.work import Array, AttentionCore, Numerics, Sizes, Work


def splittable(op: Op) -> tuple[str, ...]:
    """Batch, query heads, query positions."""
    return (BATCH, SEQ, "heads")


def flops(op: Op, sizes: Sizes) -> object:
    """Return forward FLOPs without the causal mask's saving: 2 products of 2·heads·head_dim·q·kv."""
    return 4.0 * sizes[BATCH] * sizes["heads"] * sizes["head_dim"] * sizes[SEQ] * sizes[KV_SEQ]


def local_kv_heads(op: Op, heads: Array) -> Array:
    """Return the key/value heads that `heads` local query heads read: at least one."""
    group = max(1, op.static_sizes["heads"] // int(op.attr("kv_heads") or 1))
    return np.maximum(1.0, np.ceil(heads / group))


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Flash attention keeps Q, K, V, the output and a log-sum-exp; the unfused one keeps the probabilities too."""
    batch, heads, q_len, kv_len = sizes[BATCH], sizes["heads"], sizes[SEQ], sizes[KV_SEQ]
    core = AttentionCore(batch, heads, local_kv_heads(op, heads), q_len, kv_len,
                         head_dim=op.static_sizes["head_dim"], causal=bool(op.attr("causal", True)))
    scores = batch * heads * q_len * kv_len * numerics.element_bytes
    statistics = batch * heads * q_len * 4.0
    return Work(
        forward=(core,),
        backward=(core,),
        keeps_inputs=True,
        keeps_output=True,
        extra_saved=statistics if numerics.flash else 0.0,
        scores=0.0 * scores if numerics.flash else scores,
        workspace=4.0 * batch * heads * q_len * op.static_sizes["head_dim"] * numerics.element_bytes
        + (0.0 if numerics.flash else 2.0) * scores,
    )
