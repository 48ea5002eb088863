"""FLOPs are counted once and exactly, and a window bounds what attention counts and what its kernel is priced for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import model
from autoplan.cluster import load
from autoplan.cost.model import CostModel
from autoplan.model import ops
from autoplan.model.facts import forward_flops_per_token
from autoplan.model.graph import Op
from autoplan.model.ops.work import AttentionCore, Numerics

FUSED, UNFUSED = Numerics(2, flash=True), Numerics(2, flash=False)
LAYER = {op.name: op for op in model.load("mistral-7b").classes[1].ops}
COSTS = CostModel(load("dgx-h100"))


def attention(window: int, *, causal: bool = True) -> Op:
    op = LAYER["attention"]
    return replace(op, attrs=tuple(sorted((dict(op.attrs) | {"window": window, "causal": causal}).items())))


def core(op: Op, seq: int, numerics: Numerics = FUSED) -> AttentionCore:
    sizes = {dim: np.array([float(size)]) for dim, size in op.static_sizes.items()}
    (kernel,) = ops.work(op, {"batch": np.ones(1), "seq": np.array([float(seq)]), "kv_seq": np.array([float(seq)]),
                              **sizes}, numerics).forward
    assert isinstance(kernel, AttentionCore)
    return kernel


def seconds(kernel: AttentionCore) -> float:
    time = COSTS.attention(batch=kernel.batch, heads=kernel.heads, kv_heads=kernel.kv_heads, q_len=kernel.q_len,
                           kv_len=kernel.kv_len, head_dim=kernel.head_dim, causal=kernel.causal)
    return float(np.asarray(time)[0])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**40), st.integers(1, 2**40), st.integers(0, 2**41))
def test_flops_are_exact_integers(seq: int, kv_seq: int, window: int) -> None:
    """Beyond 2⁵³, where floats lose the last digits."""
    heads = 32 * 128 * 4
    assert ops.flops(attention(window), {"batch": 1, "seq": seq, "kv_seq": kv_seq, "heads": 32, "head_dim": 128}) == (
        heads * seq * (min(window, kv_seq) if window else kv_seq))
    gate = LAYER["gate"]
    assert ops.flops(gate, {"batch": 3, "seq": seq, **gate.static_sizes}) == 6 * seq * 4096 * 14336
    assert type(ops.flops(LAYER["norm1"], {"batch": 1, "seq": seq, **LAYER["norm1"].static_sizes})) is int


def test_a_models_flops_are_those_of_its_operators() -> None:
    graph = model.load("mistral-7b")
    sizes = {"batch": 2, "seq": 512, "kv_seq": 512}
    total = sum(ops.flops(op, sizes | op.static_sizes) for index in graph.layers for op in graph.classes[index].ops)
    assert total == 2 * 512 * forward_flops_per_token(graph, 512)


@pytest.mark.parametrize(("window", "causal", "keys", "masked"), [
    (0, True, 8192, True), (8192, True, 8192, True), (4096, True, 8192, True), (4095, True, 4095, False),
    (1024, True, 1024, False), (0, False, 8192, False), (8192, False, 8192, False), (8191, False, 8191, False),
])
def test_a_window_leaves_the_smaller_of_rectangle_and_triangle(window: int, causal: bool, keys: int,
                                                              masked: bool) -> None:
    kernel = core(attention(window, causal=causal), 8192)
    assert (kernel.kv_len.tolist(), kernel.causal) == ([keys], masked)
    assert kernel.q_len.tolist() == [8192]


def test_an_unfused_kernel_computes_all_scores() -> None:
    kernel = core(attention(16), 8192, UNFUSED)
    assert (kernel.kv_len.tolist(), kernel.causal) == ([8192], True)


def test_a_wider_window_never_costs_less() -> None:
    times = [seconds(core(attention(window), 8192)) for window in (*range(256, 8193, 256), 16_384, 0)]
    assert times == sorted(times)
    assert times[3] < times[-1] / 2
