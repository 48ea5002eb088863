"""Operator families: FLOPs, kernels, legal splits and what they keep, against analytic counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.model import ops
from autoplan.model.architectures import build
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, ModelGraph, Op
from autoplan.model.ops.attention import local_kv_heads
from autoplan.model.ops.work import AttentionCore, Gemm, Numerics, Sizes, Stream, volume
from autoplan.model.spec import TransformerSpec

NUMERICS = Numerics(element_bytes=2, flash=True)


def graph(**changes: object) -> ModelGraph:
    fields: dict[str, object] = {"name": "m", "layers": 1, "hidden": 512, "heads": 8, "kv_heads": 2, "ffn": 1536,
                                 "gated": True, "vocab_size": 1000}
    return build(TransformerSpec.model_validate(fields | changes))


def every_op(**changes: object) -> list[Op]:
    return [op for layer in graph(**changes).classes for op in layer.ops]


def named(name: str, **changes: object) -> Op:
    return next(op for op in every_op(**changes) if op.name == name)


def sizes(op: Op, batch: int, seq: int) -> Sizes:
    all_sizes = {BATCH: batch, SEQ: seq, KV_SEQ: seq} | op.static_sizes
    return {dim.name: np.array([float(all_sizes[dim.name])]) for dim in op.dims}


def kernel_flops(kernel: object) -> float:
    if isinstance(kernel, Gemm):
        return float((2.0 * kernel.m * kernel.n * kernel.k * kernel.batch)[0])
    if isinstance(kernel, AttentionCore):
        return float((4.0 * kernel.batch * kernel.heads * kernel.q_len * kernel.kv_len * kernel.head_dim)[0])
    return 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 16), st.integers(1, 4096), st.booleans(), st.sampled_from([1, 2, 4, 8]),
       st.sampled_from([32, 64, 128]))
def test_contractions_do_six_flops_a_weight_and_token(
        batch: int, seq: int, gated: bool, kv_heads: int, head_dim: int) -> None:
    """Two forward, four backward; head_dim need not be hidden / heads. Biases and norms count none."""
    made = every_op(gated=gated, kv_heads=kv_heads, head_dim=head_dim, biases=("qkv", "o", "mlp"))
    weights = sum(op.numel(op.params[0]) for op in made if op.kind == "contraction")
    forward = backward = analytic = 0.0
    for op in made:
        work = ops.work(op, sizes(op, batch, seq), NUMERICS)
        if op.kind == "contraction":
            forward += sum(kernel_flops(kernel) for kernel in work.forward)
            backward += sum(kernel_flops(kernel) for kernel in work.backward)
            analytic += ops.flops(op, sizes(op, batch, seq))
    assert forward == analytic == 2.0 * weights * batch * seq
    assert forward + backward == 6.0 * weights * batch * seq


def test_attention_does_two_products_of_the_scores() -> None:
    op = named("attention")
    at = sizes(op, 3, 128)
    assert ops.flops(op, at) == 4 * 3 * 8 * 64 * 128 * 128
    (core,) = ops.work(op, at, NUMERICS).forward
    assert kernel_flops(core) == ops.flops(op, at)
    assert isinstance(core, AttentionCore) and core.causal and core.kv_heads == 2


@pytest.mark.parametrize(("heads", "expected"), [(8, 2), (4, 1), (2, 1), (1, 1)])
def test_queries_bring_their_key_heads_along(heads: int, expected: int) -> None:
    assert local_kv_heads(named("attention"), np.array([float(heads)])) == expected


def test_all_other_operators_count_no_flops_but_move_bytes() -> None:
    for op in every_op(positions="learned", max_positions=64, embedding_norm=True):
        if op.kind in ("contraction", "attention"):
            continue
        work = ops.work(op, sizes(op, 2, 64), NUMERICS)
        assert ops.flops(op, sizes(op, 2, 64)) == 0
        assert all(isinstance(kernel, Stream) for kernel in (*work.forward, *work.backward))
        each = 2 * volume(sizes(op, 2, 64), op.output.dims)
        assert all((kernel.nbytes >= each).all() for kernel in work.forward)  # type: ignore[union-attr]


def test_streams_count_passes() -> None:
    """Passes over the output tensor: forward reads inputs and writes; an add's backward only hands its gradient on."""
    passes = {"norm1": (2, 3), "add1": (3, 0), "act": (3, 5), "rotary_q": (2, 2)}
    for name, (forward, backward) in passes.items():
        op = named(name)
        at = sizes(op, 2, 64)
        each = 2 * volume(at, op.output.dims)
        work = ops.work(op, at, NUMERICS)
        assert work.forward[0].nbytes == forward * each  # type: ignore[union-attr]
        assert work.backward[0].nbytes == backward * each  # type: ignore[union-attr]
    plain = named("act", gated=False)
    assert ops.work(plain, sizes(plain, 2, 64), NUMERICS).backward[0].nbytes == 3 * 2 * 2 * 64 * 1536  # type: ignore[union-attr]


def test_the_loss_keeps_fp32_probabilities() -> None:
    op = named("loss")
    work = ops.work(op, sizes(op, 2, 64), NUMERICS)
    assert work.extra_saved == 4 * 2 * 64 * 1000 and not work.keeps_inputs


def test_unfused_attention_keeps_its_probabilities_and_flash_a_word_a_query() -> None:
    op = named("attention")
    at = sizes(op, 2, 256)
    fused, unfused = (ops.work(op, at, Numerics(2, flash)) for flash in (True, False))
    assert fused.scores == 0 and unfused.scores == 2 * 2 * 8 * 256 * 256
    assert fused.extra_saved == 4 * 2 * 8 * 256 and unfused.extra_saved == 0  # one float32 a query and head
    assert fused.keeps_inputs and fused.keeps_output and unfused.workspace > fused.workspace


SPLITS = {
    "norm1": {BATCH, SEQ}, "q": {BATCH, SEQ, "hidden", "heads"}, "k": {BATCH, SEQ, "hidden", "kv_heads"},
    "norm_q": {BATCH, SEQ, "heads"}, "rotary_k": {BATCH, SEQ, "kv_heads"}, "attention": {BATCH, SEQ, "heads"},
    "o": {BATCH, SEQ, "heads", "hidden"}, "add1": {BATCH, SEQ}, "gate": {BATCH, SEQ, "hidden", "ffn"},
    "act": {BATCH, SEQ, "ffn"}, "down": {BATCH, SEQ, "ffn", "hidden"}, "embedding": {BATCH, SEQ, "vocab"},
    "head": {BATCH, SEQ, "hidden", "vocab"}, "loss": {BATCH, SEQ, "vocab"},
}


@pytest.mark.parametrize("name", SPLITS)
def test_legal_splits(name: str) -> None:
    """Never a half head, never the reduced dim of a norm or a softmax over keys."""
    assert set(ops.splittable(named(name, qk_norm=True))) == SPLITS[name]


def test_learned_positions_split_along_tokens_only() -> None:
    assert set(ops.splittable(named("position", positions="learned", max_positions=64))) == {BATCH, SEQ}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(every_op(qk_norm=True)), st.data())
def test_parts_do_the_work_of_the_whole(op: Op, data: st.DataObject) -> None:
    """FLOPs, and bytes of streams, of one of two devices are half, whichever legal dim is split."""
    dim = data.draw(st.sampled_from([name for name in ops.splittable(op) if name != "kv_heads"] or [BATCH]))
    whole = dict(sizes(op, 4, 64))
    half = whole | {dim: whole[dim] / 2}
    a, b = (ops.work(op, at, NUMERICS) for at in (whole, half))
    for x, y in zip((*a.forward, *a.backward), (*b.forward, *b.backward), strict=True):
        assert kernel_flops(y) == kernel_flops(x) / 2
        masked = op.kind == "embedding" and dim == "vocab"  # a masked look-up still writes every row
        if isinstance(x, Stream) and isinstance(y, Stream):
            assert y.nbytes == (x.nbytes if masked else x.nbytes / 2)
