"""What our prices say is sent: the bytes of every collective of a layer under one strategy a node.

The planner's own code prices the layer, with a cost model in whose units a byte sent is a second and computing is free.
The bytes of one kind of collective are how much the cost rises when that kind's price does, so nothing that the planner
prices can be forgotten here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan.cluster import Axis, Cluster, Mesh, load
from autoplan.cluster.mesh import divisors
from autoplan.cost.model import CostModel, Group
from autoplan.export.placement import strategies_of
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode, layer_problem
from autoplan.intraop.pricing import Setting
from autoplan.intraop.strategies import NONE, OpStrategies
from autoplan.intraop.terms import Term
from autoplan.judge.hlo import Sent, wire_bytes
from autoplan.model import ops
from autoplan.model.graph import LayerClass
from autoplan.runtimes import load as load_runtime
from autoplan.sharding import Collective
from autoplan.workload import Precision, Workload

Array = NDArray[np.float64]

# Terms that are collectives of one micro-batch and of a step. XLA keeps what it has gathered, so REGATHER isn't one.
SENT = [Term.CONVERT_FORWARD, Term.CONVERT_BACKWARD, Term.GATHER, Term.REDUCE, Term.SYNC, Term.GATHER_STEP]
KINDS = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL,
         Collective.PERMUTE)
RAISE = 2.0**-24  # how much a price is raised to see what is bought at it
# Between ways that send alike: one all-reduce rather than scatter and gather, the larger part over the smaller group.
ONE_RATHER_THAN_TWO, SMALL_GROUPS = 2.0**-10, 2.0**-20


@cache
def _any_cluster() -> Cluster:
    """Return a cluster, whose figures play no part."""
    return load("dgx-h100:8")


class BytePrices(CostModel):
    """Prices in bytes that a device sends. raised: the kind and group size whose price is raised by `RAISE`."""

    def __init__(self, raised: tuple[Collective, int] | None = None) -> None:
        super().__init__(_any_cluster())
        self.raised = raised

    def matmul(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, batch: ArrayLike = 1, **_: object) -> Array:
        """Computing is free."""
        return np.zeros(np.broadcast_shapes(np.shape(m), np.shape(n), np.shape(k), np.shape(batch)))

    def attention(self, *, q_len: ArrayLike, batch: ArrayLike, **_: object) -> Array:
        """Computing is free."""
        return np.zeros(np.broadcast_shapes(np.shape(q_len), np.shape(batch)))

    def memory_bound(self, nbytes: ArrayLike, kind: str = "mixed", **_: object) -> Array:
        """Moving bytes inside a device is free."""
        return np.zeros(np.shape(nbytes))

    def all_reduce(self, nbytes: ArrayLike, group: Group, **_: object) -> Array:
        """Bytes sent by each device of the group."""
        return self._sent(Collective.ALL_REDUCE, nbytes, group)

    def all_gather(self, nbytes: ArrayLike, group: Group, **_: object) -> Array:
        """Bytes sent by each device of the group."""
        return self._sent(Collective.ALL_GATHER, nbytes, group)

    def reduce_scatter(self, nbytes: ArrayLike, group: Group, **_: object) -> Array:
        """Bytes sent by each device of the group."""
        return self._sent(Collective.REDUCE_SCATTER, nbytes, group)

    def all_to_all(self, nbytes: ArrayLike, group: Group, **_: object) -> Array:
        """Bytes sent by each device of the group."""
        return self._sent(Collective.ALL_TO_ALL, nbytes, group)

    def p2p(self, nbytes: ArrayLike, group: Group, **_: object) -> Array:
        """Bytes sent by each device of the group."""
        return self._sent(Collective.PERMUTE, nbytes, group)

    def _sent(self, kind: Collective, nbytes: ArrayLike, group: Group) -> Array:
        assert isinstance(group, Axis)
        if group.size == 1:
            return np.zeros(np.shape(nbytes))
        weight = 1.0 + SMALL_GROUPS * group.size - (ONE_RATHER_THAN_TWO if kind is Collective.ALL_REDUCE else 0.0)
        size = 2 if kind is Collective.PERMUTE else group.size  # a permute has pairs, not groups
        weight += RAISE if (kind, size) == self.raised else 0.0
        return wire_bytes(kind, group.size, 1.0) * weight * np.asarray(nbytes, float)


def bytes_sent(cost: Callable[[BytePrices], Array], mesh_shape: Sequence[int]) -> list[Sent]:
    """Return what is sent in each of n cases, of which `cost` returns the costs [n] at given prices.

    Groups are made of some of the mesh's axes, or are a part of the last one (the copies of key and value heads).
    """
    base = cost(BytePrices())
    result: list[Sent] = [{} for _ in base]
    joint = {math.prod(some) for count in range(len(mesh_shape) + 1)
             for some in itertools.combinations(mesh_shape, count)}
    sizes = sorted((joint | set(divisors(mesh_shape[-1]))) - {1})
    for kind in KINDS:
        for size in sizes if kind is not Collective.PERMUTE else (2,):
            rises = (cost(BytePrices((kind, size))) - base) / RAISE
            for found, rise in zip(result, rises, strict=True):
                if rise > 0.5:
                    found[kind, size] = float(rise)
    return result


def flat_mesh(shape: Sequence[int], names: Sequence[str]) -> Mesh:
    """Return a mesh on one node that is large enough: where bytes alone count, links don't."""
    axes = tuple(Axis(size=size, intra=size, nodes=1, sharing=1) for size in shape)
    return Mesh(tuple(shape), tuple(names), axes, int(np.prod(shape)))


def byte_setting(mesh: Mesh, micro_batch: int, seq_len: int, optimizer: str, prices: BytePrices) -> Setting:
    """Return a setting that prices bytes, in fp32 throughout: XLA on CPU sends 16-bit numbers as fp32 ones.

    Every legal split may be chosen, whatever a runtime offers.
    """
    workload = Workload(micro_batch, seq_len, Precision.FP32, optimizer)
    return Setting(mesh, prices, replace(load_runtime("plain"), free_splits={}), workload, micro_batch)


def find_choice(problem: LayerProblem, assign: Mapping[str, Sequence[int]], zero: Mapping[str, int],
                boundary: tuple[int, ...] | None = None) -> list[int]:
    """Return the strategies of all nodes, given those of the operators and how parameters are stored.

    assign: for each operator the loop dim that each mesh axis is given to. zero: a ZeRO stage for each parameter
    (`operator.parameter`). boundary: the residual layout of the neighbouring layers (`LayerProblem.boundary`). The
    layouts of other tensors are those that send the least.
    """
    choice = [-1] * len(problem.nodes)
    for index, node in enumerate(problem.nodes):
        if isinstance(node.content, OpStrategies):
            choice[index] = int(np.flatnonzero((node.content.assign == assign[node.content.op.name]).all(axis=1))[0])
    for index, node in enumerate(problem.nodes):
        costs = node.terms[:, SENT].sum(axis=1)
        if isinstance(node.content, ParamNode):
            costs = np.where(node.content.zero == zero[node.name.removeprefix("param:")], 0.0, np.inf)
        elif isinstance(node.content, LayoutNode):
            if boundary is not None and index in (problem.input, problem.output):
                costs = np.where((node.content.states == boundary).all(axis=1), costs, np.inf)
        else:
            continue
        for edge in problem.edges:
            both = edge.forward + edge.backward
            if edge.u == index:
                costs = costs + both[:, choice[edge.v]]
            elif edge.v == index:
                costs = costs + both[choice[edge.u], :]
        choice[index] = int(costs.argmin())
    return choice


def predicted(layer: LayerClass, setting: Callable[[BytePrices], Setting], choice: Sequence[int],
              zero: Sequence[int]) -> Sent:
    """Return what one micro-batch and one update of a layer send under a choice of its problem."""
    def cost(prices: BytePrices) -> Array:
        problem = layer_problem(layer, setting(prices), zero=zero)
        assert problem is not None
        return np.array([problem.terms(np.array(choice, np.int16))[SENT].sum()])

    (found,) = bytes_sent(cost, setting(BytePrices()).mesh.shape)
    return found


def flops(problem: LayerProblem, choice: Sequence[int]) -> float:
    """Return the FLOPs of one device, forward and backward: twice as many backward as forward."""
    shape, sizes = np.array(problem.setting.mesh.shape), problem.setting.sizes
    return sum(3.0 * ops.flops(chosen.op, sizes(chosen.op)) / float(shape[chosen.assign[k] != NONE].prod())
               for chosen, k in strategies_of(problem, choice))
