"""A cost model whose compute is free and whose collectives cost their bytes; small layers; a ledger of what is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.cluster import Axis, Cluster, load, mesh
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode, layer_problem
from autoplan.intraop.pricing import Setting
from autoplan.intraop.terms import Term
from autoplan.model.architectures import build
from autoplan.model.graph import STREAM, LayerClass, ModelGraph, Operand
from autoplan.model.spec import TransformerSpec
from autoplan.runtimes import load as load_runtime
from autoplan.workload import Precision, Workload

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
# Seconds a byte. An all-reduce costs a little less than the reduce-scatter and the all-gather that could replace it.
WEIGHTS = {"all_reduce": 1.99, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 0.9, "p2p": 1.0}
EPSILON = 2.0**-12

Ledger = Mapping[tuple[str, int], float]


@dataclass(frozen=True, eq=False)
class BytePrices:
    """Stands for `CostModel`. extra: the kind and group size whose price is raised by EPSILON seconds a byte."""

    cluster: Cluster = field(default_factory=lambda: load("dgx-h100:8"))
    extra: tuple[str, int] | None = None

    def matmul(self, m: object, n: object, k: object, *, batch: object = 1, **_: object) -> object:
        return 0.0 * (np.asarray(m) + np.asarray(n) + np.asarray(k))

    def attention(self, *, q_len: object, **_: object) -> object:
        return 0.0 * np.asarray(q_len)

    def memory_bound(self, nbytes: object, kind: str = "mixed") -> object:
        return 0.0 * np.asarray(nbytes)

    def __getattr__(self, kind: str) -> Callable[[object, Axis], object]:
        if kind not in KINDS:
            raise AttributeError(kind)

        def price(nbytes: object, group: Axis) -> object:
            weight = WEIGHTS[kind] + (EPSILON if (kind, group.size) == self.extra else 0.0)
            return weight * np.asarray(nbytes) * (group.size > 1)
        return price


def model(**changes: object) -> ModelGraph:
    """The transformer of the XLA cases: hidden 512, 8 heads, ffn 2048, plain MLP, RMSNorm, no positions, no biases."""
    fields: dict[str, object] = {
        "name": "tiny", "layers": 2, "hidden": 512, "heads": 8, "ffn": 2048, "vocab_size": 1024, "positions": "none"}
    return build(TransformerSpec.model_validate(fields | changes))


def part(layer: LayerClass, first: str, last: str) -> LayerClass:
    """The operators `first` … `last` of a layer as a layer of its own; both ends are on the residual stream."""
    names = [op.name for op in layer.ops]
    ops = layer.ops[names.index(first):names.index(last) + 1]
    return LayerClass("part", ops, Operand(ops[0].inputs[0].tensor, STREAM), ops[-1].output)


def setting(shape: tuple[int, ...], *, batch: int = 16, seq: int = 256, costs: object = None,
            precision: Precision = Precision.FP32, optimizer: str = "adam") -> Setting:
    """A setting on the first devices of an H100 node; prices in bytes unless told."""
    prices = BytePrices() if costs is None else costs
    return Setting(mesh(prices.cluster, shape), prices, load_runtime("plain"),  # type: ignore[attr-defined, arg-type]
                   Workload(batch, seq, precision, optimizer), batch)


def pick(problem: LayerProblem, *, zero: int = 0, kept_split: bool = False) -> list[int]:
    """Return the choice of a pinned problem: the ZeRO stage, and gathered tensors kept whole or split."""
    choice = []
    for node in problem.nodes:
        options = np.arange(len(node.terms))
        if isinstance(node.content, ParamNode):
            options = options[node.content.zero == zero]
        elif isinstance(node.content, LayoutNode) and len(options) > 1:
            split = (node.content.kept != node.content.forward).any(axis=1)
            options = options[split == kept_split]
        assert len(options) == 1, node.name
        choice.append(int(options[0]))
    return choice


def sent(layer: LayerClass, setting_: Setting, roles: tuple[str, ...], terms: tuple[Term, ...], *, zero: int = 0,
         kept_split: bool = False) -> Ledger:
    """Return the bytes sent under a recipe by (collective, group size), of those terms; zeros are left out.

    The bytes of one kind are how much the cost rises when its price does.
    """
    def cost(extra: tuple[str, int] | None) -> float:
        priced = replace(setting_, costs=BytePrices(setting_.costs.cluster, extra))
        problem = layer_problem(layer, priced, zero=(0, 1, 2, 3), roles=roles)
        assert problem is not None
        total = problem.terms(pick(problem, zero=zero, kept_split=kept_split))
        return float(total[list(terms)].sum())

    base = cost(None)
    sizes = [size for size in range(2, setting_.mesh.num_devices + 1) if setting_.mesh.num_devices % size == 0]
    found = {(kind, size): (cost((kind, size)) - base) / EPSILON for kind in KINDS for size in sizes}
    assert abs(sum(WEIGHTS[kind] * n for (kind, _), n in found.items()) - base) <= 1e-6 * max(base, 1.0)
    return {key: n for key, n in found.items() if abs(n) > 1e-3}
