"""The decoder's graph: wired right, counted right, equal layers equal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.model.architectures import build
from autoplan.model.facts import forward_flops_per_token, kv_elements_per_token, parameters
from autoplan.model.graph import LayerClass, ModelGraph, Op
from autoplan.model.spec import TransformerSpec

BASE: dict[str, Any] = {"name": "m", "layers": 3, "hidden": 64, "heads": 4, "ffn": 96, "vocab_size": 100}
GPT: dict[str, Any] = {**BASE, "norm": "layer", "positions": "learned", "max_positions": 32,
                       "biases": ("qkv", "o", "mlp"), "tied_embeddings": True}
LLAMA: dict[str, Any] = {**BASE, "kv_heads": 2, "head_dim": 24, "gated": True}


def graph(fields: dict[str, Any], **changes: Any) -> ModelGraph:
    return build(TransformerSpec(**{**fields, **changes}))


def ops(layer: LayerClass) -> dict[str, Op]:
    return {op.name: op for op in layer.ops}


@st.composite
def decoders(draw: st.DrawFn) -> TransformerSpec:
    small = st.integers(1, 8)
    kv_heads, groups, head_dim = draw(small), draw(small), draw(small)
    heads = kv_heads * groups
    square = draw(st.booleans())
    return TransformerSpec(
        name="m", layers=draw(small), hidden=heads * head_dim if square else draw(st.integers(1, 64)), heads=heads,
        kv_heads=kv_heads, head_dim=None if square else head_dim, ffn=draw(st.integers(1, 64)),
        gated=draw(st.booleans()), vocab_size=draw(st.integers(1, 200)), vocab_padding_multiple=draw(small),
        tied_embeddings=draw(st.booleans()), norm=draw(st.sampled_from(["rms", "layer"])),
        positions=draw(st.sampled_from(["rotary", "learned", "alibi", "none"])), max_positions=draw(st.integers(1, 64)),
        biases=tuple(draw(st.sets(st.sampled_from(["qkv", "o", "mlp"])))), qk_norm=draw(st.booleans()),
        embedding_norm=draw(st.booleans()),
    )


def head_size(spec: TransformerSpec) -> int:
    return spec.kinds[""].head_dim or 0


def attention_width(spec: TransformerSpec) -> int:
    return (spec.heads or 0) * head_size(spec)


def key_width(spec: TransformerSpec) -> int:
    return spec.num_kv_heads * head_size(spec)


def matmul_parameters(spec: TransformerSpec) -> int:
    """Elements of every matrix a token is multiplied by, the head's included, tied or not."""
    wide, narrow = attention_width(spec), key_width(spec)
    attention = spec.hidden * (2 * wide + 2 * narrow)
    mlp = spec.hidden * (spec.ffn or 0) * (3 if spec.gated else 2)
    return spec.layers * (attention + mlp) + spec.hidden * spec.vocab


def all_parameters(spec: TransformerSpec) -> int:
    wide, narrow = attention_width(spec), key_width(spec)
    norm = spec.hidden * (2 if spec.norm == "layer" else 1)
    inner = (spec.ffn or 0) * (2 if spec.gated else 1)
    biases = {"qkv": wide + 2 * narrow, "o": spec.hidden, "mlp": inner + spec.hidden}
    layer = 2 * norm + sum(biases[name] for name in spec.biases) + (2 * head_size(spec) if spec.qk_norm else 0)
    positions = (spec.max_positions or 0) * spec.hidden if spec.positions == "learned" else 0
    embedding = spec.vocab * spec.hidden + positions + (norm if spec.embedding_norm else 0)
    tied = spec.vocab * spec.hidden if spec.tied_embeddings else 0
    return matmul_parameters(spec) - tied + spec.layers * layer + embedding + norm


@given(decoders())
@settings(max_examples=50, deadline=None)
def test_parameters_are_those_of_the_formula(spec: TransformerSpec) -> None:
    counted = parameters(build(spec))
    assert counted["total"] == counted["active"] == all_parameters(spec)
    assert counted["embedding"] + counted["layers"] + counted["head"] == counted["total"]


@given(decoders(), st.integers(1, 4096))
@settings(max_examples=50, deadline=None)
def test_flops_are_two_a_matrix_element_and_the_attention(spec: TransformerSpec, seq_len: int) -> None:
    attention = 4 * spec.layers * attention_width(spec) * seq_len
    assert forward_flops_per_token(build(spec), seq_len) == 2 * matmul_parameters(spec) + attention


@given(decoders())
@settings(max_examples=50, deadline=None)
def test_the_graph_is_wired_right(spec: TransformerSpec) -> None:
    built = build(spec)
    assert built.num_layers == spec.layers + 2
    assert built.layer(0).input is None and built.layer(built.num_layers - 1).output is None
    for layer in built.classes:
        known = {} if layer.input is None else {layer.input.tensor: layer.input.dims}
        for op in layer.ops:
            dims = [dim.name for dim in op.dims]
            assert len(dims) == len(set(dims))
            assert all(dim.size is None for dim in op.dims if dim.name in ("batch", "seq", "kv_seq"))
            assert all(dim.size is not None for dim in op.dims if dim.name not in ("batch", "seq", "kv_seq"))
            for operand in op.inputs:
                as_made = tuple("seq" if name == "kv_seq" else name for name in operand.dims)
                assert known[operand.tensor] == as_made
                free = {name for name, _ in op.grouped}
                assert set(operand.dims) <= {*dims, *free}
            assert set(op.output.dims) <= set(dims)
            assert all(set(param.dims) <= set(dims) for param in op.params)
            assert op.output.tensor == op.name and op.name not in known
            known[op.name] = op.output.dims
        assert layer.output is None or known[layer.output.tensor] == layer.output.dims
        used = {operand.tensor for op in layer.ops for operand in op.inputs} | {layer.ops[-1].name}
        assert used == set(known)


def test_operators_of_a_gpt_layer() -> None:
    layer = graph(GPT).layer(1)
    assert [op.name for op in layer.ops] == [
        "norm1", "q", "k", "v", "attention", "o", "add1", "norm2", "up", "act", "down", "add2"]
    assert [op.name for op in graph(GPT).layer(0).ops] == ["embedding", "position"]


def test_operators_of_a_qwen3_layer() -> None:
    layer = graph(LLAMA, qk_norm=True).layer(1)
    assert [op.name for op in layer.ops] == [
        "norm1", "q", "k", "v", "norm_q", "norm_k", "rotary_q", "rotary_k", "attention", "o", "add1", "norm2", "gate",
        "up", "act", "down", "add2"]
    wired = ops(layer)
    assert wired["rotary_q"].inputs[0].tensor == "norm_q"
    assert [operand.tensor for operand in wired["attention"].inputs] == ["rotary_q", "rotary_k", "v"]
    assert [operand.tensor for operand in wired["act"].inputs] == ["gate", "up"]
    assert [operand.tensor for operand in wired["add2"].inputs] == ["add1", "down"]


def test_contracted_dims() -> None:
    wired = ops(graph(LLAMA).layer(1))
    assert wired["q"].contracted == ("hidden",)
    assert wired["o"].contracted == ("heads", "head_dim")
    assert wired["down"].contracted == ("ffn",)
    assert wired["attention"].contracted == ("kv_seq",)


def test_attention_says_its_groups_and_window() -> None:
    attention = ops(graph(LLAMA, window=16).layer(1))["attention"]
    assert attention.grouped == (("kv_heads", "heads"),)
    assert dict(attention.attrs) == {"causal": True, "head_dim": 24, "kv_heads": 2, "window": 16}
    assert ops(graph(LLAMA).layer(1))["attention"].attr("window") == 0


def test_a_window_bounds_the_attention_flops() -> None:
    windowed, full = graph(LLAMA, window=16), graph(LLAMA)
    assert forward_flops_per_token(windowed, 16) == forward_flops_per_token(full, 16)
    assert forward_flops_per_token(windowed, 64) == forward_flops_per_token(full, 16)


def test_tied_head_is_counted_once() -> None:
    tied, untied = graph(LLAMA, tied_embeddings=True), graph(LLAMA)
    head = ops(tied.layer(4))["head"]
    assert head.params[0].tied == "embedding.table"
    assert untied.num_params - tied.num_params == 64 * 100
    assert tied.layer(4).num_params(tied=True) == untied.layer(4).num_params()


def test_biases_are_added_after_the_reduction() -> None:
    wired = ops(graph(GPT).layer(1))
    for name in ("q", "k", "v", "o", "up", "down"):
        assert [param.after_reduction for param in wired[name].params] == [False, True]


def test_kv_cache_counts_key_value_heads() -> None:
    assert kv_elements_per_token(graph(LLAMA)) == 2 * 2 * 24 * 3
    assert kv_elements_per_token(graph(GPT)) == 2 * 64 * 3


@given(decoders(), st.integers(1, 8), st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_equal_layers_have_equal_keys(spec: TransformerSpec, layers: int, vocab: int) -> None:
    other = spec.model_copy(update={"name": "other", "layers": layers, "vocab_size": vocab})
    assert build(spec).layer(1).key == build(other).layer(1).key


@pytest.mark.parametrize("change", [
    {"ffn": 97}, {"kv_heads": 4}, {"head_dim": 16}, {"gated": False}, {"qk_norm": True}, {"biases": ("qkv",)},
    {"norm": "layer"}, {"window": 8}, {"positions": "none"},
])
def test_different_layers_have_different_keys(change: dict[str, Any]) -> None:
    assert graph(LLAMA).layer(1).key != graph(LLAMA, **change).layer(1).key


def test_facts() -> None:
    facts = graph(GPT, seq_len=32, global_batch_size=8, vocab_padding_multiple=64).facts
    assert facts == {
        "architecture": "decoder", "hidden": 64, "layers": 3, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 96,
        "vocab": 128, "max_positions": 32, "seq_len": 32, "global_batch_size": 8}
