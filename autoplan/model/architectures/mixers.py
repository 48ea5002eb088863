"""Mixers, which let tokens see each other: attention and its variants, state space layers, linear attention.

Each yields the operators from its input tensor (already normalised) to its output on the residual stream, the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from autoplan.model.architectures.wiring import Attr, Wiring
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, TOKEN_DIMS, Op, Operand, Param

if TYPE_CHECKING:
    from autoplan.model.blocks import Block

QUERY = (*TOKEN_DIMS, "heads", "head_dim")
KEY = (*TOKEN_DIMS, "kv_heads", "head_dim")
GROUPED = (("kv_heads", "heads"),)


def mixer(block: Block, wiring: Wiring, x: str, *, causal: bool) -> Iterator[Op]:
    """Yield the operators of the block's mixer."""
    kind = block.mixer_kind
    if kind == "attention":
        yield from attention(block, wiring, x, causal=causal)
    elif kind == "cross":
        yield from cross_attention(block, wiring, x)
    elif kind == "mla":
        yield from latent_attention(block, wiring, x, causal=causal)
    elif kind == "mamba":
        yield from mamba1(block, wiring, x)
    elif kind == "mamba2":
        yield from mamba2(block, wiring, x)
    elif kind == "attention_mamba2":
        yield from beside(block, wiring, x, causal=causal)
    elif kind == "gated_delta":
        yield from gated_delta(block, wiring, x)
    elif kind == "lightning":
        yield from lightning(block, wiring, x)


def attention(block: Block, wiring: Wiring, x: str, *, causal: bool) -> Iterator[Op]:
    """Attention with as many or fewer key/value heads."""
    w = wiring.sized(heads=block.heads, kv_heads=block.num_kv_heads, head_dim=block.head_dim,
                     value_dim=block.value_head_dim)
    value = "head_dim" if block.value_head_dim in (None, block.head_dim) else "value_dim"
    yield w.projection("q", x, ("hidden",), ("heads", "head_dim"), bias=block.has_bias("q"))
    yield w.projection("k", x, ("hidden",), ("kv_heads", "head_dim"), bias=block.has_bias("k"))
    if not block.keys_are_values:
        yield w.projection("v", x, ("hidden",), ("kv_heads", value), bias=block.has_bias("v"))
    q, k = "q", "k"
    v = "k" if block.keys_are_values else "v"
    if block.qk_norm:
        kind = "unscaled" if block.qk_norm == "unscaled" else "rms"
        whole = block.qk_norm == "whole"
        yield w.norm("norm_q", q, QUERY, width=("heads", "head_dim") if whole else ("head_dim",),
                     over="head_dim" if whole else None, kind=kind)
        yield w.norm("norm_k", k, KEY, width=("kv_heads", "head_dim") if whole else ("head_dim",),
                     over="head_dim" if whole else None, kind=kind)
        q, k = "norm_q", "norm_k"
    if block.positions == "rotary":
        yield w.elementwise("rotary_q", "rotary", (q,), QUERY)
        yield w.elementwise("rotary_k", "rotary", (k,), KEY)
        q, k = "rotary_q", "rotary_k"
    yield core(block, w, "attention", q, k, v, causal=causal, value=value)
    yield from _output(block, w, x, "attention", value)


def cross_attention(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Attention whose keys and values come from the carried tensor "memory"."""
    w = wiring.sized(heads=block.heads, kv_heads=block.num_kv_heads, head_dim=block.head_dim)
    far = w.sized(hidden=w.sizes["memory_hidden"], seq=w.sizes.get("memory_seq"), kv_seq=None)
    yield w.projection("cross_q", x, ("hidden",), ("heads", "head_dim"), bias=block.has_bias("q"))
    yield far.projection("cross_k", "memory", ("hidden",), ("kv_heads", "head_dim"), bias=block.has_bias("k"))
    yield far.projection("cross_v", "memory", ("hidden",), ("kv_heads", "head_dim"), bias=block.has_bias("v"))
    seen = w.sized(kv_seq=w.sizes.get("memory_seq"))
    yield core(block, seen, "cross_attention", "cross_q", "cross_k", "cross_v", causal=False)
    yield w.projection("cross_o", "cross_attention", ("heads", "head_dim"), ("hidden",), bias=block.has_bias("o"))


def latent_attention(block: Block, wiring: Wiring, x: str, *, causal: bool) -> Iterator[Op]:
    """Multi-head latent attention as trained: keys and values are unfolded from their latent vector.

    The narrow vectors and their norms aren't split. The rotary part of the keys is one head for all.
    """
    mla = block.mla
    assert mla is not None
    w = wiring.sized(heads=block.heads, kv_heads=block.heads, head_dim=mla.nope_dim + mla.rope_dim,
                     nope_dim=mla.nope_dim, rope_dim=mla.rope_dim, value_dim=mla.v_dim, q_latent=mla.q_rank,
                     kv_latent=mla.kv_rank)
    latent, rope = (*TOKEN_DIMS, "kv_latent"), (*TOKEN_DIMS, "rope_dim")
    if mla.q_rank is None:
        yield w.projection("q", x, ("hidden",), ("heads", "head_dim"))
    else:
        q_latent = (*TOKEN_DIMS, "q_latent")
        yield w.projection("q_latent", x, ("hidden",), ("q_latent",), bias=block.has_bias("q"))
        yield w.norm("q_norm", "q_latent", q_latent, width=("q_latent",), kind="rms")
        yield w.projection("q", "q_norm", ("q_latent",), ("heads", "head_dim"))
    yield w.projection("kv_latent", x, ("hidden",), ("kv_latent",), bias=block.has_bias("k"))
    yield w.projection("k_rope", x, ("hidden",), ("rope_dim",), bias=block.has_bias("k"))
    yield w.norm("kv_norm", "kv_latent", latent, width=("kv_latent",), kind="rms")
    yield w.projection("k", "kv_norm", ("kv_latent",), ("heads", "nope_dim"))
    yield w.projection("v", "kv_norm", ("kv_latent",), ("heads", "value_dim"))
    yield w.elementwise("rotary_q", "rotary", ("q",), QUERY)
    yield w.op("rotary_k", "elementwise", (*QUERY, "nope_dim", "rope_dim"),
               (Operand("k", (*TOKEN_DIMS, "heads", "nope_dim")), Operand("k_rope", rope)), QUERY,
               attrs=(("function", "rotary"),))
    memory = (BATCH, KV_SEQ, "heads")
    yield w.op("attention", "attention", (BATCH, SEQ, KV_SEQ, "heads", "head_dim", "value_dim"),
               (Operand("rotary_q", QUERY), Operand("rotary_k", (*memory, "head_dim")),
                Operand("v", (*memory, "value_dim"))), (*TOKEN_DIMS, "heads", "value_dim"),
               attrs=(("causal", causal), ("head_dim", mla.nope_dim + mla.rope_dim), ("kv_heads", block.heads or 0),
                      ("cached", mla.kv_rank + mla.rope_dim)))
    yield w.projection("o", "attention", ("heads", "value_dim"), ("hidden",), bias=block.has_bias("o"))


def core(block: Block, w: Wiring, name: str, q: str, k: str, v: str, *, causal: bool, value: str = "head_dim") -> Op:
    """Return the attention core over queries, keys and values."""
    memory = (BATCH, KV_SEQ, "kv_heads")
    dims = (BATCH, SEQ, KV_SEQ, "heads", "head_dim", *(("value_dim",) if value == "value_dim" else ()))
    attrs: list[Attr] = [("causal", causal), ("head_dim", block.head_dim or 0), ("kv_heads", block.num_kv_heads),
                         ("window", block.window or 0)]
    if block.chunk is not None:
        attrs.append(("chunk", block.chunk))
    params = (Param("sinks", ("heads",)),) if block.sinks else ()
    return w.op(name, "attention", dims, (Operand(q, QUERY), Operand(k, (*memory, "head_dim")),
                                          Operand(v, (*memory, value))),
                (*TOKEN_DIMS, "heads", value), params, grouped=GROUPED, attrs=tuple(attrs))


def _output(block: Block, w: Wiring, x: str, heads: str, value: str) -> Iterator[Op]:
    """The gate of the attention's output, if it has one, and the projection back to the stream."""
    if block.output_gate:
        inner = (*TOKEN_DIMS, "heads", value)
        yield w.projection("o_gate", x, ("hidden",), ("heads", value))
        yield w.elementwise("gated", "sigmoid", (heads, "o_gate"), inner)
        heads = "gated"
    yield w.projection("o", heads, ("heads", value), ("hidden",), bias=block.has_bias("o"))


def mamba1(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Mamba-1 (Gu and Dao, 2023): every channel is a recurrence; time steps, B and C are summed over them."""
    mamba = block.mamba
    assert mamba is not None
    w = wiring.sized(ffn=mamba.inner, state=mamba.state, taps=mamba.conv, latent=mamba.dt_rank)
    inner = (*TOKEN_DIMS, "ffn")
    yield w.projection("z", x, ("hidden",), ("ffn",))
    yield w.projection("xs", x, ("hidden",), ("ffn",))
    yield _convolution(w, "conv", "xs", inner, ("ffn",), bias=mamba.conv_bias)
    yield w.projection("dt_latent", "conv", ("ffn",), ("latent",))
    yield w.sized(state=2 * mamba.state).projection("bc", "conv", ("ffn",), ("state",))
    yield w.projection("dt", "dt_latent", ("latent",), ("ffn",), bias=True)
    yield w.op("scan", "scan", (*inner, "state"),
               (Operand("conv", inner), Operand("dt", inner), Operand("bc", (*TOKEN_DIMS, "state")),
                Operand("z", inner)),
               inner, (Param("a", ("ffn", "state")), Param("d", ("ffn",))), attrs=(("rule", "selective"),))
    yield w.projection("o", "scan", ("ffn",), ("hidden",))


def mamba2(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Mamba-2 (Dao and Gu, 2024): heads with a scalar decay; groups of them share B and C, as keys in GQA."""
    mamba = block.mamba
    assert mamba is not None and mamba.heads is not None
    w = wiring.sized(heads=mamba.heads, head_dim=mamba.inner // mamba.heads, kv_heads=mamba.groups,
                     state=2 * mamba.state, taps=mamba.conv)
    groups = (*TOKEN_DIMS, "kv_heads", "state")
    yield w.projection("z", x, ("hidden",), ("heads", "head_dim"))
    yield w.projection("xs", x, ("hidden",), ("heads", "head_dim"))
    yield w.projection("bc", x, ("hidden",), ("kv_heads", "state"))
    yield w.projection("dt", x, ("hidden",), ("heads",))
    yield _convolution(w, "conv", "xs", QUERY, ("heads", "head_dim"), bias=mamba.conv_bias)
    yield _convolution(w, "conv_bc", "bc", groups, ("kv_heads", "state"), bias=mamba.conv_bias)
    yield w.sized(state=mamba.state).op(
        "scan", "scan", (*QUERY, "state"),
        (Operand("conv", QUERY), Operand("conv_bc", groups), Operand("dt", (*TOKEN_DIMS, "heads"))), QUERY,
        tuple(Param(name, ("heads",)) for name in ("a", "d", "dt_bias")), grouped=GROUPED,
        attrs=(("rule", "ssd"), ("chunk", mamba.chunk), ("kv_heads", mamba.groups)))
    yield from _gated(w, ("heads", "head_dim"), "head_dim")


def beside(block: Block, wiring: Wiring, x: str, *, causal: bool) -> Iterator[Op]:
    """Attention and Mamba-2 on the same input, added (Falcon H1)."""
    yield from attention(block, wiring, x, causal=causal)
    ops = list(mamba2(block, wiring, x))
    names = {op.name: f"mamba_{op.name}" for op in ops}
    for op in ops:
        inputs = tuple(replace(one, tensor=names.get(one.tensor, one.tensor)) for one in op.inputs)
        yield replace(op, name=names[op.name], inputs=inputs, output=replace(op.output, tensor=names[op.name]))
    yield wiring.add("mixed", "o", "mamba_o")


def gated_delta(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Gated delta rule (Yang et al., 2024) as in Qwen3-Next: key heads are shared by several value heads."""
    linear = block.linear
    assert linear is not None
    w = wiring.sized(heads=linear.value_heads, head_dim=linear.value_dim, kv_heads=linear.key_heads,
                     state=linear.key_dim, taps=linear.conv)
    keys = (*TOKEN_DIMS, "kv_heads", "state")
    for name in ("q", "k"):
        yield w.projection(name, x, ("hidden",), ("kv_heads", "state"))
    for name in ("v", "z"):
        yield w.projection(name, x, ("hidden",), ("heads", "head_dim"))
    for name in ("beta", "decay"):
        yield w.projection(name, x, ("hidden",), ("heads",))
    for name in ("q", "k"):
        yield _convolution(w, f"conv_{name}", name, keys, ("kv_heads", "state"), bias=False)
    yield _convolution(w, "conv_v", "v", QUERY, ("heads", "head_dim"), bias=False)
    heads = (*TOKEN_DIMS, "heads")
    yield w.op("scan", "scan", (*QUERY, "state"),
               (Operand("conv_q", keys), Operand("conv_k", keys), Operand("conv_v", QUERY), Operand("beta", heads),
                Operand("decay", heads)), QUERY, (Param("a", ("heads",)), Param("dt_bias", ("heads",))),
               grouped=GROUPED, attrs=(("rule", "delta"), ("chunk", linear.chunk), ("kv_heads", linear.key_heads)))
    yield from _gated(w, ("head_dim",), "head_dim")


def lightning(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Lightning attention (Qin et al., 2024) as in MiniMax-01: linear attention with a decay a head, gated."""
    linear = block.linear
    assert linear is not None
    w = wiring.sized(heads=linear.value_heads, head_dim=linear.value_dim, kv_heads=linear.key_heads,
                     state=linear.key_dim)
    keys = (*TOKEN_DIMS, "kv_heads", "state")
    for name in ("q", "k"):
        yield w.projection(name, x, ("hidden",), ("kv_heads", "state"))
    for name in ("v", "z"):
        yield w.projection(name, x, ("hidden",), ("heads", "head_dim"))
    yield w.op("scan", "scan", (*QUERY, "state"), (Operand("q", keys), Operand("k", keys), Operand("v", QUERY)), QUERY,
               grouped=GROUPED, attrs=(("rule", "lightning"), ("chunk", linear.chunk), ("kv_heads", linear.key_heads)))
    yield from _gated(w, ("heads", "head_dim"), "head_dim")


def _gated(w: Wiring, width: tuple[str, ...], over: str) -> Iterator[Op]:
    """The norm of a recurrence's output, its gate, and the projection back to the stream."""
    yield w.norm("scan_norm", "scan", QUERY, width=width, over=over, kind="rms")
    yield w.elementwise("gated", "silu", ("scan_norm", "z"), QUERY)
    yield w.projection("o", "gated", ("heads", "head_dim"), ("hidden",))


def _convolution(w: Wiring, name: str, x: str, dims: tuple[str, ...], width: tuple[str, ...], *, bias: bool) -> Op:
    """A causal convolution of a few taps along the sequence, every channel by itself, and its activation."""
    params = (Param("weight", (*width, "taps")), *((Param("bias", width),) if bias else ()))
    return w.op(name, "short_convolution", (*dims, "taps"), (Operand(x, dims),), dims, params)
