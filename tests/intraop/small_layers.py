"""Small layers on small meshes with real prices, and every choice of their strategies by brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from byte_prices import model
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoplan.cluster import load, mesh
from autoplan.cost.model import CostModel
from autoplan.intraop.layer_problem import LayerProblem, layer_problem
from autoplan.intraop.pricing import Setting
from autoplan.intraop.terms import NUM_TERMS, Term
from autoplan.model.graph import STREAM, LayerClass, ModelGraph, Op, Operand
from autoplan.runtimes import Reserve
from autoplan.runtimes import load as load_runtime
from autoplan.workload import Workload

Array = NDArray[np.float64]
MOST_CHOICES = 150_000


def without(layer: LayerClass, *dropped: str) -> LayerClass:
    """The MLP block of a layer without some operators: what read them reads their (first) input."""
    names = [op.name for op in layer.ops]
    ops: list[Op] = []
    stands_for = {"add1": "x"}
    for op in layer.ops[names.index("norm2"):]:
        inputs = tuple(replace(operand, tensor=stands_for.get(operand.tensor, operand.tensor)) for operand in op.inputs)
        if op.name in dropped:
            stands_for[op.name] = inputs[-1].tensor  # of an add: the branch, not the residual
        else:
            ops.append(replace(op, inputs=inputs))
    return LayerClass("layer", tuple(ops), Operand("x", STREAM), ops[-1].output)


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    return model(
        hidden=draw(st.sampled_from([256, 1024])), heads=8, ffn=draw(st.sampled_from([512, 4096, 96])),
        norm=draw(st.sampled_from(["rms", "layer"])), biases=draw(st.sampled_from([(), ("mlp",)])),
        gated=draw(st.booleans()), vocab_size=draw(st.sampled_from([1000, 32_000])))


def real_setting(shape: tuple[int, ...], batch: int, seq: int) -> Setting:
    cluster = load("dgx-h100:8")
    runtime = replace(load_runtime("plain"), high=Reserve(0, 0.03), bucket_bytes=1 << 20)
    return Setting(mesh(cluster, shape), CostModel(cluster, runtime), runtime, Workload(64, seq), batch)


@st.composite
def settings_(draw: st.DrawFn) -> Setting:
    return real_setting(draw(st.sampled_from([(2,), (4,), (2, 2), (1, 2)])), draw(st.sampled_from([1, 2, 8])),
                        draw(st.sampled_from([128, 2048])))


@st.composite
def problems(draw: st.DrawFn) -> LayerProblem:
    """The problem of a layer of two to four operators, few enough choices to try them all."""
    graph, setting = draw(graphs()), draw(settings_())
    optional = ["norm2", "act", "add2"]
    dropped = draw(st.lists(st.sampled_from(optional), min_size=1, unique=True))
    if graph.layer(1).ops[-4].name == "up" and "act" in dropped:  # a gated MLP's two branches end in its activation
        dropped = [*dropped, "gate"]
    zero = draw(st.sampled_from([(0,), (1,), (0, 3)]))
    problem = layer_problem(without(graph.layer(1), *dropped), setting, zero=zero)
    assert problem is not None
    if count(problem) > MOST_CHOICES:
        problem = layer_problem(without(graph.layer(1), *optional, "gate"), setting, zero=zero)
        assert problem is not None
    return problem


def count(problem: LayerProblem) -> int:
    """Return the number of choices in which every parameter has its operator's layout."""
    total = 1
    tied = {edge.v: edge for edge in problem.edges if problem.nodes[edge.v].name.startswith("param:")}
    for index, node in enumerate(problem.nodes):
        total *= len(node.terms) if index not in tied else int(np.isfinite(tied[index].forward).sum(axis=1).max())
    return total


def every_choice(problem: LayerProblem) -> tuple[NDArray[np.int64], Array]:
    """Return all choices [C, N] without a forbidden pair, and their summed terms [C, NUM_TERMS]."""
    choices = np.zeros((1, 0), np.int64)
    for index, node in enumerate(problem.nodes):
        k = len(node.terms)
        choices = np.hstack([np.repeat(choices, k, axis=0), np.tile(np.arange(k), len(choices))[:, None]])
        for edge in problem.edges:
            if max(edge.u, edge.v) == index:
                pair = edge.forward[choices[:, edge.u], choices[:, edge.v]]
                pair = pair + edge.backward[choices[:, edge.u], choices[:, edge.v]]
                choices = choices[np.isfinite(pair)]
    terms = np.zeros((len(choices), NUM_TERMS))
    for index, node in enumerate(problem.nodes):
        own = node.terms[choices[:, index]]
        most = np.maximum(terms, own)
        terms = terms + own
        terms[:, Term.WORKSPACE] = most[:, Term.WORKSPACE]
    for edge in problem.edges:
        terms[:, Term.CONVERT_FORWARD] += edge.forward[choices[:, edge.u], choices[:, edge.v]]
        terms[:, Term.CONVERT_BACKWARD] += edge.backward[choices[:, edge.u], choices[:, edge.v]]
    return choices, terms
