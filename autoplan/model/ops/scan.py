"""What stands in attention's place in linear time: state space layers, linear attention, their short convolution.

`scan` is a recurrence over `seq` with a state of `state` × `head_dim` numbers a head. The chunked forms of Mamba-2 (Dao
and Gu, 2024, §6), lightning attention (Qin et al., 2024) and the gated delta rule (Yang et al., 2024, §3) are matrix
products: over a chunk of c tokens each token meets the c keys and values of its chunk, and the state. Mamba-1's rule
(`selective`) is no matrix product; its kernel reads its inputs once and computes beside. The state runs along the
sequence, so `seq` isn't split; heads and batch are.
"""

from __future__ import annotations

from autoplan.model.graph import BATCH, SEQ, UNSPLIT, Op
from autoplan.model.ops.work import Array, Counts, Gemm, Kernel, Numerics, Sizes, Stream, Work, volume

# Matrix products a token and head: chunk × state, chunk × head_dim, state × head_dim.
PRODUCTS = {"ssd": (1, 1, 2), "lightning": (1, 1, 2), "delta": (2, 2, 3)}

# Mamba-1's kernel does an exponential and some 9 operations for each number of a channel's state (Gu and Dao, 2023,
# appendix D) while it moves four elements: assumed to take as long as moving one element more for every four numbers.
SELECTIVE_STATE = 4


def splittable(op: Op) -> tuple[str, ...]:
    """Batch and heads (or channels)."""
    return tuple(dim.name for dim in op.dims if dim.name not in UNSPLIT and dim.name != SEQ)


def flops(op: Op, sizes: Counts) -> int:
    """Return the forward FLOPs of the chunks' matrix products; of the short convolution its taps'."""
    if op.kind == "short_convolution":
        width = 1
        for name in op.output.dims:
            width *= sizes[name]
        return 2 * sizes["taps"] * width
    if op.attr("rule") == "selective":
        return 0
    keys, values, states = PRODUCTS[str(op.attr("rule"))]
    chunk, state, head_dim = int(op.attr("chunk") or 1), sizes["state"], sizes["head_dim"]
    each = chunk * (keys * state + values * head_dim) + states * state * head_dim
    return 2 * sizes[BATCH] * sizes[SEQ] * sizes["heads"] * each


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Backward runs every product twice, for its two operands, after the chunks' states are computed again."""
    element = numerics.element_bytes
    moved = element * volume(sizes, op.output.dims)
    if op.kind == "short_convolution":
        return Work(forward=(Stream(2 * moved, "mixed"),), backward=(Stream(3 * moved, "mixed"),), keeps_inputs=True,
                    workspace=2 * moved)
    if op.attr("rule") == "selective":
        passes = 1.0 + op.static_sizes["state"] / SELECTIVE_STATE / 4.0
        return Work(forward=(Stream(4 * passes * moved, "mixed"),), backward=(Stream(8 * passes * moved, "mixed"),),
                    keeps_inputs=True, workspace=4 * moved)
    forward = _products(op, sizes)
    backward = (*forward, *forward, Stream(8 * moved, "mixed"))
    return Work(forward=(*forward, Stream(4 * moved, "mixed")), backward=backward, keeps_inputs=True,
                workspace=8 * moved)


def _products(op: Op, sizes: Sizes) -> tuple[Kernel, ...]:
    """Return a chunk's matrix products, batched over sequences, heads and chunks."""
    keys, values, states = PRODUCTS[str(op.attr("rule"))]
    chunk: Array = 0.0 * sizes[SEQ] + float(op.attr("chunk") or 1)
    state, head_dim = sizes["state"], sizes["head_dim"]
    batch = sizes[BATCH] * sizes["heads"] * sizes[SEQ] / chunk
    return (*(Gemm(chunk, chunk, state, batch),) * keys, *(Gemm(chunk, head_dim, chunk, batch),) * values,
            *(Gemm(chunk, head_dim, state, batch),) * states)
