"""The problem of a layer: its nodes, what a recipe pins, and the bytes that a layer keeps for its backward pass."""

from __future__ import annotations

import numpy as np
import pytest
from byte_prices import BytePrices, model, pick, setting
from numpy.typing import NDArray
from small_layers import every_choice, real_setting, without

from autoplan.cluster import load
from autoplan.intraop.layer_problem import AxisLayout, LayerProblem, LayoutNode, Node, ParamNode, layer_problem
from autoplan.intraop.strategies import OpStrategies
from autoplan.intraop.terms import Term
from autoplan.model.graph import LayerClass
from autoplan.workload import Precision

FULL = {"kv_heads": 4, "gated": True, "biases": ("qkv", "o", "mlp"), "qk_norm": True, "positions": "rotary"}


def build(layer: LayerClass, shape: tuple[int, ...], **options: object) -> LayerProblem:
    problem = layer_problem(layer, setting(shape), **options)  # type: ignore[arg-type]
    assert problem is not None
    return problem


def rows(node: Node) -> NDArray[np.int64]:
    """What the strategies of a node decide, as integers [K, …]."""
    content = node.content
    if isinstance(content, OpStrategies):
        return content.assign
    if isinstance(content, LayoutNode):
        return content.states
    return np.hstack([content.layouts, content.zero[:, None]])


# ------------------------------------------------------------------ structure

def test_tensors_that_are_read_twice_or_gathered_have_a_layout_of_their_own() -> None:
    problem = build(model(**FULL).layer(1), (2, 4))
    names = [node.name for node in problem.nodes if isinstance(node.content, LayoutNode)]
    assert names == ["layout:x", "layout:norm1", "layout:add1", "layout:norm2"]
    assert problem.input == problem.output == [node.name for node in problem.nodes].index("layout:x")
    params = [node.name for node in problem.nodes if isinstance(node.content, ParamNode)]
    assert params == [f"param:{op.name}.{param.name}" for op, param in problem.layer.params()]
    for edge in problem.edges:
        shape = (len(problem.nodes[edge.u].terms), len(problem.nodes[edge.v].terms))
        assert edge.forward.shape == edge.backward.shape == shape
        assert np.isfinite(edge.backward).all()


def test_ends_of_the_chain_have_one_boundary() -> None:
    graph = model(**FULL)
    first, last = build(graph.layer(0), (8,)), build(graph.layer(3), (8,))
    assert first.input is None and first.output is not None
    assert last.input is not None and last.output is None
    assert first.boundary([0] * len(first.nodes)) == (AxisLayout.BATCH,)


def test_the_residual_stream_is_split_along_tokens_or_whole_and_gathered_only_before_products() -> None:
    problem = build(model(**FULL).layer(1), (2, 4))
    states = {node.name: {AxisLayout(code) for code in np.unique(rows(node))}
              for node in problem.nodes if isinstance(node.content, LayoutNode)}
    stream = {AxisLayout.BATCH, AxisLayout.SEQ, AxisLayout.WHOLE}
    before = stream | {AxisLayout.SUMMED, AxisLayout.GATHERED}
    assert states == {"layout:x": stream, "layout:add1": stream,
                      "layout:norm1": before, "layout:norm2": before}


def test_layouts_divide_batch_and_sequence() -> None:
    problem = layer_problem(model().layer(1), setting((2, 4), batch=4, seq=6))
    assert problem is not None
    assert problem.input is not None
    found = {tuple(row) for row in rows(problem.nodes[problem.input]).tolist()}
    b, s, w = AxisLayout.BATCH, AxisLayout.SEQ, AxisLayout.WHOLE
    assert found == {(b, w), (s, w), (w, b), (w, w), (s, b)}  # 4 sequences of 6 tokens on 2 × 4


@pytest.mark.parametrize(("shape", "roles", "changes"), [
    ((8,), ("tensor",), {"heads": 4}), ((8,), ("tensor",), {"ffn": 2044}), ((32,), ("data",), {}),
    ((2, 4), ("data", "tensor"), {"kv_heads": 3, "heads": 6, "hidden": 384}),
])
def test_a_recipe_that_does_not_divide_is_no_problem(
        shape: tuple[int, ...], roles: tuple[str, ...], changes: dict[str, object]) -> None:
    prices = BytePrices(load("dgx-h100:32"))
    assert layer_problem(model(**changes).layer(1), setting(shape, costs=prices), roles=roles) is None


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(("shape", "roles", "kept_split"), [
    ((8,), ("data",), False), ((8,), ("tensor",), False), ((2, 4), ("data", "tensor"), False),
    ((1, 8), ("data", "tensor"), False), ((8,), ("tensor_sequence",), False), ((8,), ("tensor_sequence",), True),
    ((2, 4), ("data", "tensor_sequence"), False), ((2, 4), ("data", "tensor_sequence"), True),
])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_recipe_is_pins_on_the_free_problem(index: int, shape: tuple[int, ...], roles: tuple[str, ...], zero: int,
                                              kept_split: bool) -> None:
    """The same strategies exist when all are free, at the same price: what is pinned can be found."""
    layer = model(**FULL).layer(index)
    named = build(layer, shape, roles=roles, zero=(0, 3))
    free = build(layer, shape, zero=(0, 3))
    choice = pick(named, zero=zero, kept_split=kept_split)
    same = []
    for node, k, other in zip(named.nodes, choice, free.nodes, strict=True):
        assert node.name == other.name
        match = np.flatnonzero((rows(other) == rows(node)[k]).all(axis=1))
        assert len(match) == 1
        same.append(int(match[0]))
    assert free.terms(same) == pytest.approx(named.terms(choice), rel=1e-12)
    assert free.boundary(same) == named.boundary(choice)


def test_summed_terms_are_those_of_every_node_and_edge() -> None:
    problem = layer_problem(without(model().layer(1), "act", "add2"), real_setting((2,), 2, 256), zero=(0, 1))
    assert problem is not None
    choices, terms = every_choice(problem)
    for choice, total in zip(choices[::97], terms[::97], strict=True):
        assert problem.terms(choice.tolist()) == pytest.approx(total, rel=1e-12)


# ------------------------------------------------------------------ saved activations

B, S, H, A = 16, 256, 512, 8
SBH = S * B * H


def kept(layer: LayerClass, roles: tuple[str, ...], t: int, *, kept_split: bool = False, flash: bool = True) -> float:
    """Bytes a micro-batch keeps of one layer in bf16 on t devices."""
    prices = BytePrices() if flash else BytePrices(load("dgx1-v100-32gb"))
    on = setting((t,), costs=prices, precision=Precision.BF16 if flash else Precision.FP16)
    problem = layer_problem(layer, on, roles=roles)
    assert problem is not None
    terms = problem.terms(pick(problem, kept_split=kept_split))
    return float(terms[[Term.BOUNDARY, Term.SAVED, Term.SCORES]].sum())


GPT = model(norm="layer", biases=("qkv", "o", "mlp")).layer(1)
# Not in the paper: one float32 a query and head, which flash attention keeps instead of scores (b·a·s·4 bytes).
STATISTICS = B * A * S * 4


@pytest.mark.parametrize("t", [1, 2, 8])
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(t: int) -> None:
    """arXiv:2205.05198, eq. 2 without the scores (5as/h): s·b·h·(10 + 24/t) bytes.

    Ours differs by named tensors: the masks of the two dropouts after attention and MLP (1 byte an element each: 2 of
    the 10) aren't there, as no model here trains with dropout; flash attention's statistics are, split by heads. The
    other 8 are the inputs of both norms (x, add1) and of the products after them (norm1, norm2), 2 bytes each. The 24
    are q, k, v, the attention's output (8) and the MLP's inner tensor before and after its activation (16).
    """
    assert kept(GPT, ("tensor",), t) == pytest.approx(SBH * (10 - 2 + 24 / t) + STATISTICS / t)


@pytest.mark.parametrize("t", [2, 8])
def test_sequence_parallelism_splits_all_of_it(t: int) -> None:
    """Eq. 4, s·b·h·34/t, where gathered tensors are kept split; norm1's and norm2's outputs are 4 of the 34."""
    assert kept(GPT, ("tensor_sequence",), t, kept_split=True) == pytest.approx((SBH * (34 - 2) + STATISTICS) / t)
    assert kept(GPT, ("tensor_sequence",), t) == pytest.approx((SBH * (34 - 2 - 4) + STATISTICS) / t + SBH * 4)


@pytest.mark.parametrize("t", [1, 8])
def test_unfused_attention_keeps_its_probabilities(t: int) -> None:
    """Of the paper's 5·a·s²·b/t bytes 2 are the softmax output; the dropout's mask (1) and output (2) aren't there."""
    more = kept(GPT, ("tensor",), t, flash=False) - kept(GPT, ("tensor",), t)
    assert more == pytest.approx((2 * A * S * S * B - STATISTICS) / t)


def test_grouped_heads_and_gates_keep_their_own_tensors() -> None:
    """Llama: k and v are kv_heads / heads as large; gate, up and their product are kept; rotary keeps nothing."""
    llama = model(kv_heads=2, gated=True, positions="rotary").layer(1)
    grouped = SBH * 2 * (4 + 1 + 2 / 4 + 1) + S * B * 2048 * 2 * 3 + STATISTICS  # x, add1, norm1, norm2; q; k, v; out
    assert kept(llama, ("data",), 1) == pytest.approx(grouped)
    assert kept(llama, ("data",), 8) == pytest.approx(grouped / 8)


def test_the_head_keeps_fp32_probabilities_and_the_embedding_nothing() -> None:
    graph = model()
    assert kept(graph.layer(3), ("data",), 1) == pytest.approx(SBH * 2 * 2 + S * B * 1024 * 4)
    assert kept(graph.layer(0), ("data",), 1) == 0
