"""Every kind of layer: wired right, its kernels do the FLOPs it counts, and the named recipes run it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autoplan.cluster import load, mesh
from autoplan.cost.model import CostModel
from autoplan.intraop.layer_problem import layer_problem
from autoplan.intraop.pricing import Setting
from autoplan.intraop.terms import Term
from autoplan.model import ops
from autoplan.model.architectures import build
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, LayerClass, ModelGraph, Op
from autoplan.model.ops.work import AttentionCore, Gemm, Numerics
from autoplan.model.spec import parse
from autoplan.runtimes import load as load_runtime
from autoplan.workload import Workload

SMALL: dict[str, Any] = {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab_size": 1024}
TOWER = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "norm": "layer", "positions": "learned",
         "patches": {"image": 64, "patch": 16}}
MLA = {"q_rank": 64, "kv_rank": 32, "nope_dim": 32, "rope_dim": 16, "v_dim": 32}
MOE = {"experts": 8, "top_k": 2, "ffn": 256}
LINEAR = {"key_heads": 4, "value_heads": 8, "key_dim": 32, "value_dim": 64}
KINDS: dict[str, dict[str, Any]] = {
    "grouped": {"qk_norm": True}, "whole norm of queries": {"qk_norm": "whole", "norms": "output"},
    "sinks and window": {"sinks": True, "window": 64, "biases": ["qkv", "o"]}, "chunks": {"chunk": 64},
    "gated attention": {"output_gate": True}, "keys are values": {"keys_are_values": True},
    "narrow values": {"value_head_dim": 32}, "sandwich": {"norms": "sandwich"}, "post": {"norms": "post"},
    "parallel": {"residual": "parallel", "norm": "layer"}, "parallel, one norm": {"residual": "parallel_shared"},
    "latent attention": {"mla": MLA}, "latent attention, whole queries": {"mla": {**MLA, "q_rank": None}},
    "experts": {"moe": MOE, "gated": True}, "shared experts": {"moe": {**MOE, "shared_ffn": 256, "shared_gate": True}},
    "experts on a latent": {"moe": {**MOE, "latent": 128}, "biases": ["mlp", "router"]},
    "alternating": {"moe": MOE, "blocks": {"a": {"mlp": "dense"}, "b": {"window": 32}}, "pattern": ["a", "b"]},
    "mamba 1": {"mixer": "mamba", "mamba": {"inner": 1024, "state": 16, "dt_rank": 32}, "mlp": "none"},
    "mamba 2": {"mixer": "mamba2", "mamba": {"inner": 1024, "state": 32, "heads": 16, "groups": 8, "chunk": 64}},
    "gated delta": {"mixer": "gated_delta", "linear": LINEAR}, "lightning": {"mixer": "lightning", "linear": LINEAR},
    "emptied": {"blocks": {"none": {"mixer": "none", "mlp": "none"}, "all": {}}, "pattern": ["none", "all"]},
    "further tokens": {"mtp": 1, "moe": MOE},
    "encoder": {"architecture": "encoder", "norms": "post", "positions": "learned", "max_positions": 512,
                "token_types": 2, "embedding_norm": True, "head": "mlm", "head_bias": True, "tied_embeddings": True},
    "pooled encoder": {"architecture": "encoder", "head": "none", "pooler": True},
    "classes": {"architecture": "encoder", "vocab_size": None, "positions": "learned",
                "patches": {"image": 64, "patch": 4, "class_token": True}, "head": "classes", "classes": 100},
    "encoder-decoder": {"architecture": "encoder_decoder", "cross_attention": True, "positions": "relative",
                        "encoder": {"layers": 2}},
    "speech": {"architecture": "encoder_decoder", "cross_attention": True, "positions": "learned", "max_positions": 512,
               "encoder": {"layers": 2, "mel_bins": 80, "seq_len": 128, "max_positions": 128}},
    "images as tokens": {"vision": TOWER}, "narrow table": {"embedding_width": 128, "tied_embeddings": True},
    "images by cross-attention": {"vision": TOWER, "blocks": {"self": {}, "cross": {"mixer": "cross"}},
                                  "pattern": ["self", "cross"]},
}
RESNETS = {"bottleneck": {"stages": [2, 1]}, "basic": {"stages": [1, 2], "block": "basic"},
           "wide": {"stages": [2, 2], "width_factor": 2, "widened": "middle"}}
EVERY = [*KINDS, *RESNETS]
FLOPPING = ("contraction", "experts", "router", "convolution", "scan")


def graph(kind: str) -> ModelGraph:
    fields = KINDS.get(kind)
    if fields is None:
        return build(parse({"architecture": "resnet", "image": 64, "classes": 100, **RESNETS[kind]}, "f.yaml", "m"))
    data = SMALL | fields
    return build(parse({key: value for key, value in data.items() if value is not None}, "f.yaml", "m"))


def sizes(op: Op, batch: int = 4, seq: int = 256) -> dict[str, int]:
    return {BATCH: batch, SEQ: seq, KV_SEQ: seq} | op.static_sizes


def check_wiring(layer: LayerClass) -> None:
    known = {one.tensor: len(one.dims) for one in ([layer.input] if layer.input else [])}
    known |= {one.tensor: len(one.dims) for one in layer.carried}
    for op in layer.ops:
        names = [dim.name for dim in op.dims]
        assert len(names) == len(set(names)), op.name
        for operand in op.inputs:
            assert known[operand.tensor] == len(operand.dims), op.name
            assert set(operand.dims) <= {*names, *(inner for inner, _ in op.grouped), "routes"}, op.name
        assert set(op.output.dims) <= set(names), op.name
        assert all(set(param.dims) <= set(names) | {"kv_heads"} for param in op.params), op.name
        known[op.name] = len(op.output.dims)
    read = {operand.tensor for op in layer.ops for operand in op.inputs}
    ends = {layer.ops[-1].name, *(one.tensor for one in layer.carried)}
    assert {op.name for op in layer.ops} - read - ends <= {"mtp_loss"}


@pytest.mark.parametrize("kind", EVERY)
def test_layers_are_wired_right(kind: str) -> None:
    built = graph(kind)
    assert built.layer(0).input is None and built.layer(built.num_layers - 1).output is None
    for left, right in zip(built.layers, built.layers[1:], strict=False):
        made, read = built.classes[left].output, built.classes[right].input
        assert made is not None and read is not None and len(made.dims) == len(read.dims)
    for layer in built.classes:
        check_wiring(layer)


@pytest.mark.parametrize("kind", EVERY)
def test_kernels_do_the_flops_that_are_counted_and_twice_as_many_backward(kind: str) -> None:
    for layer in graph(kind).classes:
        for op in layer.ops:
            at = {name: np.array([float(size)]) for name, size in sizes(op).items()}
            work = ops.work(op, at, Numerics(2, flash=True))
            products = [[2 * k.m * k.n * k.k * k.batch for k in side if isinstance(k, Gemm)]
                        for side in (work.forward, work.backward)]
            forward, backward = (float(np.sum(some)) for some in products)
            if op.kind in FLOPPING:
                assert forward == pytest.approx(ops.flops(op, sizes(op))), op.name
                assert backward == pytest.approx((2 if op.inputs else 1) * forward), op.name
            elif op.kind == "attention":
                (core,) = work.forward
                assert isinstance(core, AttentionCore)
                done = 4 * core.batch * core.heads * core.q_len * core.kv_len * core.head_dim
                assert float(done[0]) == ops.flops(op, sizes(op)), op.name


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("roles", [("data", "tensor"), ("data", "tensor_sequence")], ids=str)
def test_named_recipes_run_every_layer(kind: str, roles: tuple[str, str]) -> None:
    cluster = load("dgx-h100:8")
    setting = Setting(mesh(cluster, (2, 4)), CostModel(cluster), load_runtime("plain"), Workload(8, 256), 8)
    for layer in graph(kind).classes:
        problem = layer_problem(layer, setting, roles=roles)
        if problem is None:  # pixels are fewer than the devices that would share a sequence
            assert kind in RESNETS and roles[1] == "tensor_sequence"
            continue
        terms = problem.terms([0] * len(problem.nodes))
        assert np.isfinite(terms).all() and (terms >= 0).all()
        assert terms[Term.FORWARD] > 0 or [op.name for op in layer.ops] == ["same"]


def test_what_an_operator_may_not_split_is_not_offered() -> None:
    """A state runs along the sequence, an image's pixels have neighbours, a latent has one norm, scores one router."""
    found = {kind: {op.name: set(ops.splittable(op)) for layer in graph(kind).classes for op in layer.ops}
             for kind in ("mamba 2", "mamba 1", "bottleneck", "latent attention", "experts")}
    assert found["mamba 2"]["scan"] == {BATCH, "heads"} and found["mamba 1"]["scan"] == {BATCH, "ffn"}
    assert SEQ not in found["bottleneck"]["conv2"] and {"inputs", "ffn"} <= found["bottleneck"]["conv2"]
    assert found["latent attention"]["q_latent"] == {BATCH, SEQ, "hidden"}
    assert found["experts"]["router"] == found["experts"]["dispatch"] == {BATCH, SEQ}
    assert found["experts"]["expert_up"] == {BATCH, SEQ, "experts", "hidden", "ffn"}


def test_an_encoders_output_is_carried_to_every_layer_of_the_decoder() -> None:
    built = graph("encoder-decoder")
    carried = [bool(built.classes[index].carried) for index in built.layers]
    assert carried == [False, False, False, True, True, True, False]
