"""Stage tables: for each residual layout, the Pareto rows of a layer class; and the best stage made of them.

All equal layers of a stage share one row (they run the same code, as every runtime that stacks or scans its layers
demands), so a stage of L layers costs L times its row and the tables don't grow with depth. The problem solved is the
unrolled stage's ILP with the variables of equal layers tied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Axis
from autoplan.cost.memory import peak_bytes
from autoplan.intraop import pricing
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, Node, ParamNode
from autoplan.intraop.overlap import evaluate
from autoplan.intraop.pricing import Setting
from autoplan.intraop.solve.frontier import frontier
from autoplan.intraop.solve.pareto import undominated
from autoplan.intraop.terms import NUM_TERMS, Criterion, Policy, conversion_weights, criteria
from autoplan.model.graph import LayerClass
from autoplan.sharding import REPLICATED, codes_to_index
from autoplan.workload import Recompute

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

# Rows that differ by less than this part of a layer's greatest total are one: far below the error of any price.
RESOLUTION = 2.0**-16
TIMES = [Criterion.T_MICRO_BATCH, Criterion.T_STEP]
FEW = 16  # choices that are listed rather than eliminated
FEW_OVERLAPPING = 4096  # the same where seconds don't add up, so that elimination only comes near the Pareto set

# Time, state, saved, transient are summed over a layer's nodes, workspace is maxed.
_TIME_FIRST = np.zeros((len(Criterion), 5))
_TIME_FIRST[Criterion.T_MICRO_BATCH, 0] = 1.0
_TIME_FIRST[Criterion.STATE, 1] = 1.0
_TIME_FIRST[Criterion.SAVED, 2] = 1.0
_TIME_FIRST[Criterion.TRANSIENT, 3] = 1.0
_TIME_FIRST[Criterion.WORKSPACE, 4] = 1.0


@dataclass(frozen=True)
class LayerTable:
    """Rows of one layer class under a policy: values [R, 6] (columns `Criterion`), choice [R, nodes] into the problem's
    strategies."""

    problem: LayerProblem
    policy: Policy
    values: Array
    choice: NDArray[np.int16]

    @cached_property
    def residual(self) -> Ints:
        """The residual layout of each row at the layer's boundary, as tensor layouts [R, A]."""
        node = self.problem.input if self.problem.input is not None else self.problem.output
        assert node is not None
        content = self.problem.nodes[node].content
        assert isinstance(content, LayoutNode)
        return content.forward[self.choice[:, node]]

    def param(self, name: str) -> tuple[ParamNode, NDArray[np.int16]]:
        """Return the node of the parameter `operator.parameter` and each row's strategy for it."""
        index = param_node(self.problem, name)
        content = self.problem.nodes[index].content
        assert isinstance(content, ParamNode)
        return content, self.choice[:, index]


def param_node(problem: LayerProblem, name: str) -> int:
    """Return the index of the node of the parameter `operator.parameter`."""
    return next(index for index, node in enumerate(problem.nodes) if node.name == f"param:{name}")


def restrict(problem: LayerProblem, zero: int) -> LayerProblem:
    """Return the problem in which every parameter has the ZeRO stage `zero`."""
    nodes = list(problem.nodes)
    edges = list(problem.edges)
    for index, node in enumerate(nodes):
        if isinstance(node.content, ParamNode):
            keep = node.content.zero == zero
            content = replace(node.content, layouts=node.content.layouts[keep], zero=node.content.zero[keep])
            nodes[index] = Node(node.name, content, node.terms[keep])
            edges = [replace(edge, forward=edge.forward[:, keep], backward=edge.backward[:, keep])
                     if edge.v == index else edge for edge in edges]
    return replace(problem, nodes=tuple(nodes), edges=tuple(edges))


def layer_table(problem: LayerProblem, policy: Policy, num_micro_batches: int, in_flight: tuple[float, float],
                keep: Sequence[str] = ()) -> LayerTable:
    """Return rows that hold a layer's Pareto set, for each residual layout (and each layout of `keep`).

    Up to `FEW` choices are all listed; else the set is found by elimination, up to `RESOLUTION`. Where the runtime
    overlaps, up to `FEW_OVERLAPPING` are listed, and elimination takes all seconds as waited for.

    in_flight: the least and the most micro-batches in flight that can occur. A row is dropped if another is no worse in
    time (a micro-batch's, plus a step's over the micro-batches), in state + k · saved at both extremes of k (hence at
    all between), in transient bytes and in workspace. keep: parameters whose layout is kept apart too.
    """
    sizes = [len(node.terms) for node in problem.nodes]
    runtime = problem.setting.runtime
    if math.prod(sizes) <= (FEW if runtime.linear else FEW_OVERLAPPING):
        choice = np.array(list(np.ndindex(*sizes)), np.int16)
    else:
        choice = _frontier(problem, policy, num_micro_batches, in_flight, keep)
    terms = np.array([problem.terms(row) for row in choice]).reshape(len(choice), NUM_TERMS)
    allowed = np.isfinite(terms).all(axis=1)
    values = evaluate(terms[allowed], policy, runtime, problem.setting.tensor_ranks)
    return LayerTable(problem, policy, values, choice[allowed])


def _frontier(problem: LayerProblem, policy: Policy, num_micro_batches: int, in_flight: tuple[float, float],
              keep: Sequence[str]) -> NDArray[np.int16]:
    """Return the choices of a layer's Pareto set by exact elimination."""
    projection = _TIME_FIRST.copy()
    projection[Criterion.T_STEP, 0] = 1.0 / num_micro_batches
    weights = criteria(policy) @ projection
    forward, backward = conversion_weights(policy.recompute)
    boundaries = {node for node in (problem.input, problem.output) if node is not None}
    kept = sorted(boundaries | {param_node(problem, name) for name in keep})
    low, high = in_flight
    functionals = np.array([[1, 0, 0, 0, 0], [0, 1, low, 0, 0], [0, 1, high, 0, 0], [0, 0, 0, 1, 0]], float)
    return frontier([node.terms @ weights for node in problem.nodes],
                    [(edge.u, edge.v) for edge in problem.edges],
                    [forward * edge.forward + backward * edge.backward for edge in problem.edges],
                    kept, ("sum", "sum", "sum", "sum", "max"), functionals, resolution=RESOLUTION).choice


@dataclass(frozen=True)
class Best:
    """The best stage for each in-flight count and number of layers, [S, n]: seconds, bytes at the peak, combination.

    Where nothing fits, time and step are inf, and memory and combination are those of the smallest stage.
    """

    time: Array
    step: Array
    memory: Array
    row: Ints


@dataclass(frozen=True)
class StageTable:
    """All stages on one mesh at one recompute policy and ZeRO stage.

    first, layers, last: tables of the first layer of the chain, of each kind of layer in between and of the last one.
    Layers in between lay the residual stream out alike. whole: the last layer's where the stage holds the first layer
    too and shares its storage (tied embeddings); else the same as `last`.
    tied: the `operator.parameter` that first and last layer share, in each. neighbour: the two devices over which a
    stage sends to the next. num_stages, sends: stages of the pipeline, and sends a boundary per micro-batch and
    direction (virtual stages).
    """

    setting: Setting
    recompute: Recompute
    num_micro_batches: int
    first: LayerTable
    layers: tuple[LayerTable, ...]
    last: LayerTable
    whole: LayerTable
    tied: tuple[str, str] | None
    neighbour: Axis
    num_stages: int = 1
    sends: int = 1

    def best(self, *, first: bool, last: bool, layers: Ints, in_flight: Array) -> Best:
        """Return the fastest combination of rows that fits, for stages of `layers` [n, kinds] layers in between each.

        first, last: whether the stage holds the chain's first and last layer. in_flight [S]: micro-batches in flight.
        Fastest: least m · time + step; of equal ones the first combination.
        """
        between = np.asarray((layers > 0).any(axis=0)).tolist()
        rows = self.combinations(first, last, tuple(between))
        shape = (len(in_flight), len(layers))
        if not len(rows.fixed):
            nothing = np.full(shape, np.inf)
            return Best(nothing, nothing, nothing, np.zeros(shape, np.int64))
        count = layers.astype(float)
        transient = np.maximum(rows.transient_fixed[:, None],
                               ((count > 0) * rows.transient_each.T[:, None]).max(axis=2, initial=0.0))
        memory = peak_bytes(_of(rows, Criterion.STATE, count)[:, None], _of(rows, Criterion.SAVED, count)[:, None],
                            transient[:, None], in_flight[None, :, None], self.setting.runtime)  # [C, S, n]
        fits = memory <= self.setting.costs.cluster.device.memory_bytes
        objective = (self.num_micro_batches * _of(rows, Criterion.T_MICRO_BATCH, count)
                     + _of(rows, Criterion.T_STEP, count))
        row = np.where(fits, objective[:, None], np.inf).argmin(axis=0)
        bad = ~np.take_along_axis(fits, row[None], axis=0)[0]
        row = np.where(bad, memory.argmin(axis=0), row)
        time, step = (rows.fixed[row, column] + (count.T[:, None] * rows.each[:, row, column]).sum(axis=0)
                      for column in (Criterion.T_MICRO_BATCH, Criterion.T_STEP))
        return Best(np.where(bad, np.inf, time), np.where(bad, np.inf, step),
                    np.take_along_axis(memory, row[None], axis=0)[0], row)

    def combinations(self, first: bool, last: bool, between: tuple[bool, ...]) -> Combinations:
        """Return every combination of rows of a stage that has those layers (between: by kind); kept for reuse."""
        key = (first, last, between)
        if key not in self._combinations:
            self._combinations[key] = self._combine(*key)
        return self._combinations[key]

    @cached_property
    def _combinations(self) -> dict[tuple[bool, bool, tuple[bool, ...]], Combinations]:
        return {}

    def _combine(self, first: bool, last: bool, between: tuple[bool, ...]) -> Combinations:
        tail = self.whole if first else self.last
        inner = [table for table, present in zip(self.layers, between, strict=True) if present]
        parts = [*([self.first] if first else []), *inner, *([tail] if last else [])]
        ends = self._ends(first, last, parts)
        together = _alike(inner)
        index = [np.repeat(rows, together.shape[1]) for rows in ends]
        index[int(first):int(first)] = [np.tile(rows, len(ends[0]) if ends else 1) for rows in together]
        fixed = np.zeros((len(index[0]), len(Criterion)))
        each = np.zeros((len(self.layers), *fixed.shape))
        kind = {id(table): number for number, table in enumerate(self.layers)}
        for part, rows in zip(parts, index, strict=True):
            target = each[kind[id(part)]] if id(part) in kind else fixed
            target += part.values[rows]
        for left, right, a, b in zip(parts, parts[1:], index, index[1:], strict=False):
            fixed[:, Criterion.T_MICRO_BATCH] += self.between(left, right)[a, b]
        if not first or (last and self.num_stages > 1):  # the latter: the pipeline comes back to where it began
            fixed[:, TIMES] += self.send(parts[0], output=False)[index[0]]
        if not last:
            fixed[:, TIMES] += self.send(parts[-1], output=True)[index[-1]]
            if self.setting.runtime.keeps_outputs:
                fixed[:, Criterion.SAVED] += self._boundary(parts[-1], output=True)[index[-1]]
        if self.tied is not None:
            self._tie(first, last, parts, index, fixed)
        transient = [part.values[rows][:, [Criterion.TRANSIENT, Criterion.WORKSPACE]].sum(axis=1)
                     for part, rows in zip(parts, index, strict=True)]
        none = np.zeros(len(index[0]))
        of = {id(part): value for part, value in zip(parts, transient, strict=True)}
        rows_of = {id(part): rows for part, rows in zip(parts, index, strict=True)}
        absent = np.full(len(index[0]), -1)
        return Combinations(
            fixed=fixed, each=each,
            transient_fixed=np.maximum(of.get(id(self.first), none), of.get(id(tail), none)),
            transient_each=np.array([of.get(id(table), none) for table in self.layers]),
            rows=np.array([rows_of.get(id(table), absent) for table in (self.first, *self.layers, tail)]),
        )

    def _ends(self, first: bool, last: bool, parts: Sequence[LayerTable]) -> list[Ints]:
        """Return the rows of the first and of the last layer that a stage may combine.

        Where it holds both, pairs that another pair beats in everything at the same residual layouts are left out, and
        so are pairs that lay tied embeddings out differently.
        """
        if not (first and last):
            return [np.arange(len((parts[0] if first else parts[-1]).choice))] if first or last else []
        head, tail = parts[0], parts[-1]
        pairs = np.indices((len(head.choice), len(tail.choice))).reshape(2, -1)
        if self.tied is not None:
            layouts = [by_name(table, name) for table, name in zip((head, tail), self.tied, strict=True)]
            pairs = pairs[:, (layouts[0][pairs[0]] == layouts[1][pairs[1]]).all(axis=1)]
        a, b = head.values[pairs[0]], tail.values[pairs[1]]
        total = a + b
        transient = np.maximum(*(one[:, [Criterion.TRANSIENT, Criterion.WORKSPACE]].sum(axis=1) for one in (a, b)))
        seconds = self.num_micro_batches * total[:, Criterion.T_MICRO_BATCH] + total[:, Criterion.T_STEP]
        values = np.array([seconds, total[:, Criterion.STATE], total[:, Criterion.SAVED], transient])
        keys = np.concatenate([head.residual[pairs[0]], tail.residual[pairs[1]]], axis=1)
        kept = undominated(values, keys)
        return [pairs[0, kept], pairs[1, kept]]

    def used(self, first: bool, last: bool, between: tuple[bool, ...], row: int) -> list[tuple[LayerTable, int]]:
        """Return the tables that a stage's combination `row` uses, with the row it uses of each."""
        rows = self.combinations(first, last, between).rows[:, row]
        tables = (self.first, *self.layers, self.whole if first else self.last)
        return [(table, int(index)) for table, index in zip(tables, rows, strict=True) if index >= 0]

    def sent(self, first: bool, last: bool, between: tuple[bool, ...], row: int) -> Array:
        """Return the seconds a micro-batch and a step that the stage of combination `row` waits for its neighbours."""
        used = self.used(first, last, between, row)
        back = last and self.num_stages > 1  # the pipeline comes back to where it began
        ends = ([] if first and not back else [(*used[0], False)]) + ([] if last else [(*used[-1], True)])
        return sum((self.send(table, output=output)[row] for table, row, output in ends), np.zeros(len(TIMES)))

    def _shape(self, part: LayerTable, *, output: bool) -> tuple[float, ...]:
        """Return the unsplit shape of the residual stream before or after a layer (of an end, where it has one)."""
        layer = part.problem.layer
        if layer.output is not None and (output or layer.input is None):
            tensor = layer.output.tensor
            made = next((op for op in layer.ops if op.output.tensor == tensor), None)
            if made is not None:
                return pricing.tensor_shape(made, made.output.dims, self.setting)
        assert layer.input is not None
        reader, operand = next((op, one) for op in layer.ops for one in op.inputs if one.tensor == layer.input.tensor)
        return pricing.tensor_shape(reader, operand.dims, self.setting)

    def between(self, left: LayerTable, right: LayerTable) -> Array:
        """Return the seconds a micro-batch between neighbouring layers, for every pair of their rows."""
        shape = self._shape(left, output=True)
        table = self.setting.conversions(shape)
        a, b = codes_to_index(left.residual, len(shape)), codes_to_index(right.residual, len(shape))
        forward, backward = conversion_weights(self.recompute)
        result: Array = forward * table[a[:, None], b[None, :]] + backward * table[b[None, :], a[:, None]]
        return result

    def send(self, part: LayerTable, *, output: bool) -> Array:
        """Return the seconds a micro-batch and a step [R, 2] that a stage waits for one neighbour's tensors.

        Where the runtime sends beside computing, only the first tensor's way through the pipeline is waited for. Where
        it scatters, each rank sends its part of what all hold, and the next stage gathers.
        """
        nbytes = self._boundary(part, output=output)
        whole = (part.residual[:, -1] == REPLICATED) & self.setting.runtime.scatters_sends
        parts = np.where(whole, nbytes / self.setting.tensor_ranks, nbytes)
        gathered = self.setting.costs.all_gather(np.where(whole, nbytes, 0.0), self.setting.mesh.axes[-1])
        once = np.asarray(self.setting.costs.p2p(parts, self.neighbour)) + np.asarray(gathered)
        hidden = self.setting.runtime.overlap.sends and self.sends > 1
        return np.outer(once, (0.0, self.num_stages) if hidden else (self.sends, 0.0))

    def _boundary(self, part: LayerTable, *, output: bool) -> Array:
        """Return the bytes at a layer's boundary, on one device, by row: the residual stream, and what is carried past
        layers beside it, in the same layout."""
        shape = self._shape(part, output=output)
        carried = carried_elements(part.problem.layer, self.setting)
        return pricing.local_bytes(part.residual, shape, self.setting) * (1.0 + carried / math.prod(shape))

    def _tie(self, first: bool, last: bool, parts: list[LayerTable], index: list[Ints], fixed: Array) -> None:
        """Price the sum over both copies of tied embeddings where two stages hold them."""
        assert self.tied is not None
        ends = [(parts[0], index[0], self.tied[0])] if first else []
        ends += [(parts[-1], index[-1], self.tied[1])] if last else []
        if first and last:
            return  # one copy: `_ends` has seen to it that both are laid out alike
        for table, rows, name in ends:
            fixed[:, Criterion.T_STEP] += self.tied_sync(table, name)[rows]

    def tied_sync(self, table: LayerTable, name: str) -> Array:
        """Return the seconds a step to sum a tied parameter's gradient with its copy on another stage, by row."""
        node, strategy = table.param(name)
        numel = pricing.local_numel(node.op, node.param, node.layouts, self.setting)[strategy]
        return np.asarray(self.setting.costs.all_reduce(numel * self.setting.workload.grad_bytes, self.neighbour))


def carried_elements(layer: LayerClass, setting: Setting) -> float:
    """Return the elements of the tensors that are carried past a layer, over all devices.

    A tensor has the sizes that its first reader in the layer sees; one that is only handed on, those of its dims.
    """
    sizes: dict[str, int] = {}
    for op in layer.ops:
        sizes = {**setting.sizes(op), **sizes}
    total = 0.0
    for tensor in layer.carried:
        seen = [pricing.tensor_shape(op, operand.dims, setting) for op in layer.ops for operand in op.inputs
                if operand.tensor == tensor.tensor]
        total += math.prod(seen[0]) if seen else math.prod(sizes[name] for name in tensor.dims)
    return total


@dataclass(frozen=True)
class Combinations:
    """C combinations of rows: criteria [C, 6] paid once, and for each layer in between by kind [kinds, C, 6]; transient
    bytes of both; rows [2 + kinds, C] of the first layer's table, of the kinds' and of the last's, −1 where absent."""

    fixed: Array
    each: Array
    transient_fixed: Array
    transient_each: Array
    rows: Ints


def _alike(tables: Sequence[LayerTable]) -> Ints:
    """Return every combination of the tables' rows [tables, C] that lays the residual stream out alike."""
    if not tables:
        return np.zeros((0, 1), np.int64)
    index = np.indices([len(table.choice) for table in tables]).reshape(len(tables), -1)
    alike = np.ones(index.shape[1], bool)
    for table, rows in zip(tables[1:], index[1:], strict=True):
        alike &= (table.residual[rows] == tables[0].residual[index[0]]).all(axis=1)
    return index[:, alike]


def _of(rows: Combinations, column: Criterion, count: Array) -> Array:
    """Return one criterion of stages of `count` [n, kinds] layers in between, [C, n]."""
    result: Array = rows.fixed[:, column, None] + rows.each[:, :, column].T @ count.T
    return result


def by_name(table: LayerTable, name: str) -> NDArray[np.str_]:
    """Return a parameter's layout in each row by dim names [R, A], so that transposed copies compare."""
    node, strategy = table.param(name)
    names = np.array([*node.param.dims, "", ""])  # REPLICATED (-1) and PARTIAL (-2) are both whole
    result: NDArray[np.str_] = names[node.layouts][strategy]
    return result
