"""One layer on one mesh as an intra-operator problem: nodes, edges, and a cost vector for every strategy.

Three kinds of node: operators; parameters (how weight, gradient and optimizer state are stored); and layout nodes, for
tensors that more than one operator reads or that are kept for the backward pass and may be gathered for it. A layout
node gives a tensor one layout forward and one backward, so that the gradients of q, k and v are summed before they are
reduced once. In a layer that repeats, input and output share one layout node: equal layers follow each other. What is
carried past layers (an encoder's output) is laid out as the residual stream is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from autoplan.intraop import pricing
from autoplan.intraop.pricing import Setting
from autoplan.intraop.strategies import NONE, Ints, OpStrategies, enumerate_all, pinned, splits, strategies
from autoplan.intraop.terms import NUM_TERMS, Term
from autoplan.model import ops
from autoplan.model.graph import BATCH, EXPERTS, SEQ, TOKEN_DIMS, LayerClass, Op, Operand, Param
from autoplan.model.ops.work import Work
from autoplan.sharding import PARTIAL, REPLICATED, codes_to_index

Array = NDArray[np.float64]


class AxisLayout(IntEnum):
    """How a layout node treats one mesh axis."""

    BATCH = 0  # split along batch, forward and backward
    SEQ = 1  # split along seq
    WHOLE = 2  # replicated, and so is the gradient
    SUMMED = 3  # replicated; the gradients are summed as partial sums and reduced once
    GATHERED = 4  # kept split along seq, gathered for use forward and backward; gradients as SUMMED
    INNER = 5  # split along the tensor's inner dim (see `inner_dim`)


RESIDUAL = (AxisLayout.BATCH, AxisLayout.SEQ, AxisLayout.WHOLE)
INNER_DIMS = (EXPERTS, "heads", "kv_heads", "ffn", "channels")
HEAVY = ("contraction", "convolution", "experts")


def inner_dim(tensor: Operand) -> str | None:
    """Return the dim beside tokens along which a tensor that several operators read may be split."""
    return next((name for name in INNER_DIMS if name in tensor.dims), None)


def _allowed(tensor: Operand, heavy: bool) -> tuple[AxisLayout, ...]:
    """Return the states of an axis that a tensor's layout node may choose. heavy: a matrix product reads it."""
    states = RESIDUAL
    if heavy:  # what was dispatched to experts is kept as they read it
        states = (*states, AxisLayout.SUMMED, *((AxisLayout.GATHERED,) if tensor.density == 1.0 else ()))
    return (*states, AxisLayout.INNER) if inner_dim(tensor) else states


@dataclass(frozen=True)
class LayoutNode:
    """The layout of one tensor: states [K, A] of AxisLayout; its layouts [K, A] forward, backward and as it is kept."""

    tensor: Operand
    states: Ints
    forward: Ints
    backward: Ints
    kept: Ints


@dataclass(frozen=True)
class ParamNode:
    """The storage of one parameter: layouts [K, A] and ZeRO stage [K] of its strategies."""

    op: Op
    param: Param
    layouts: Ints
    zero: Ints


Content = OpStrategies | LayoutNode | ParamNode


@dataclass(frozen=True)
class Node:
    """A node: what it decides, and the cost vectors [K, NUM_TERMS] of its strategies."""

    name: str
    content: Content
    terms: Array


@dataclass(frozen=True)
class Edge:
    """Seconds a micro-batch of every pair of strategies, [K_u, K_v]: forward and backward conversions.

    inf forbids a pair. exchanges: what is converted are tokens on their way to experts or back.
    """

    u: int
    v: int
    forward: Array
    backward: Array
    exchanges: bool = False


@dataclass(frozen=True)
class LayerProblem:
    """A layer class in a setting. input, output: the boundary layout nodes (the same in a repeated layer)."""

    layer: LayerClass
    setting: Setting
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    input: int | None
    output: int | None

    def terms(self, choice: Sequence[int] | NDArray[np.int16]) -> Array:
        """Return the summed cost vector [NUM_TERMS] of one strategy a node, conversions included."""
        rows = np.array([node.terms[k] for node, k in zip(self.nodes, choice, strict=True)])
        total: Array = rows.sum(axis=0)
        total[Term.WORKSPACE] = rows[:, Term.WORKSPACE].max()
        for edge in self.edges:
            total[Term.CONVERT_FORWARD] += edge.forward[choice[edge.u], choice[edge.v]]
            total[Term.CONVERT_BACKWARD] += edge.backward[choice[edge.u], choice[edge.v]]
            if edge.exchanges:
                total[Term.EXCHANGE_FORWARD] += edge.forward[choice[edge.u], choice[edge.v]]
                total[Term.EXCHANGE_BACKWARD] += edge.backward[choice[edge.u], choice[edge.v]]
        return total

    def boundary(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return the residual layout (an AxisLayout an axis) at the layer's boundary under `choice`."""
        node = self.input if self.input is not None else self.output
        assert node is not None
        content = self.nodes[node].content
        assert isinstance(content, LayoutNode)
        return tuple(int(code) for code in content.states[choice[node]])


def layer_problem(layer: LayerClass, setting: Setting, *, zero: Sequence[int] = (0,),
                  roles: Sequence[str] | None = None, shared: frozenset[str] = frozenset()) -> LayerProblem | None:
    """Build the problem of a layer class.

    zero: ZeRO stages each parameter may choose from. roles: a role of the runtime for each mesh axis (a named recipe),
    which leaves every operator one strategy; None lets all be chosen. shared: parameters (`operator.parameter`) stored
    by another layer of the stage. Returns None where the roles split something that doesn't divide.
    """
    build = _Builder(layer, setting, tuple(zero), tuple(roles) if roles is not None else None, shared)
    return build.problem()


@dataclass(frozen=True)
class _StoredParam:
    """A parameter on its way to a node: its distinct layouts [K, A], and which of them each operator strategy has."""

    op_node: int
    op: Op
    param: Param
    layouts: Ints
    of_op: Ints
    rows: pricing.Stored


class _Builder:
    def __init__(self, layer: LayerClass, setting: Setting, zero: tuple[int, ...], roles: tuple[str, ...] | None,
                 shared: frozenset[str]) -> None:
        self.layer, self.setting, self.zero, self.roles, self.shared = layer, setting, zero, roles, shared
        self.axis_sizes = setting.mesh.shape
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.readers: dict[str, list[tuple[Op, int]]] = {}
        for op in layer.ops:
            for position, operand in enumerate(op.inputs):
                self.readers.setdefault(operand.tensor, []).append((op, position))
        self.producers = {op.output.tensor: op for op in layer.ops}

    def problem(self) -> LayerProblem | None:
        placed: dict[str, int] = {}
        stored: list[_StoredParam] = []
        for op in self.layer.ops:
            assign = self._assign(op)
            if assign is None:
                return None
            chosen = strategies(op, self.setting.sizes(op), self.axis_sizes, assign)
            placed[op.name] = self._add(f"op:{op.name}", chosen, pricing.op_terms(chosen, self.setting))
            stored += [self._stored(placed[op.name], op, param, layouts)
                       for param, layouts in zip(op.params, chosen.params, strict=True)]
        self._params(stored)
        boundary_in, boundary_out = self._boundaries()
        for tensor, readers in self.readers.items():
            self._tensor(tensor, readers, placed, boundary_in)
        if boundary_out is not None and self.layer.output is not None:
            self._connect(placed[self.layer.output.tensor], boundary_out)
            for tensor in (one.tensor for one in self.layer.carried if one.tensor in placed):
                self._connect(placed[tensor], boundary_out)
        return LayerProblem(self.layer, self.setting, tuple(self.nodes), tuple(self.edges), boundary_in, boundary_out)

    def _add(self, name: str, content: Content, terms: Array) -> int:
        self.nodes.append(Node(name, content, terms))
        return len(self.nodes) - 1

    def _role_dims(self) -> tuple[tuple[str, ...], ...]:
        assert self.roles is not None
        return tuple(self.setting.runtime.roles[role] for role in self.roles)

    def _assign(self, op: Op) -> Ints | None:
        sizes = self.setting.sizes(op)
        if self.roles is None:
            return enumerate_all(op, sizes, self.axis_sizes, self.setting.runtime.free_splits.get(op.kind))
        return pinned(op, sizes, self.axis_sizes, self._role_dims())

    def _stored(self, op_node: int, op: Op, param: Param, layouts: Ints) -> _StoredParam:
        """Find the distinct layouts that an operator's strategies [K, A] give a parameter."""
        _, index, of_op = np.unique(codes_to_index(layouts, len(param.dims)), return_index=True, return_inverse=True)
        shared = f"{op.name}.{param.name}" in self.shared
        rows = pricing.stored(op, param, layouts[index], self.setting, shared=shared)
        return _StoredParam(op_node, op, param, layouts[index], of_op.reshape(-1), rows)

    def _params(self, stored: Sequence[_StoredParam]) -> None:
        """Add the parameters' nodes, priced at once, and tie each to its operator: the layout follows from the
        operator's strategy."""
        if not stored:
            return
        terms = pricing.param_terms(pricing.together([one.rows for one in stored]), self.zero, self.setting)
        begin = 0
        for one in stored:
            count = len(one.layouts)
            content = ParamNode(one.op, one.param, np.tile(one.layouts, (len(self.zero), 1)),
                                np.repeat(np.array(self.zero), count))
            node = self._add(f"param:{one.op.name}.{one.param.name}", content,
                             terms[:, begin:begin + count].reshape(-1, NUM_TERMS))
            begin += count
            fits = one.of_op[:, None] == np.tile(np.arange(count), len(self.zero))[None, :]
            allowed = np.where(fits, 0.0, np.inf)
            self.edges.append(Edge(one.op_node, node, allowed, np.zeros_like(allowed)))

    def _boundaries(self) -> tuple[int | None, int | None]:
        """Add the layout nodes of the layer's input and output; one node for both where the layer has both."""
        if self.layer.input is not None:
            node = self._layout_node(self.layer.input, RESIDUAL, Term.BOUNDARY)
            return node, (node if self.layer.output is not None else None)
        if self.layer.output is not None:
            return None, self._layout_node(self.layer.output, RESIDUAL, None)
        return None, None

    def _tensor(self, tensor: str, readers: list[tuple[Op, int]], placed: Mapping[str, int],
                boundary_in: int | None) -> None:
        """Connect a tensor's producer to its readers, through a layout node where it needs one."""
        is_input = self.layer.input is not None and tensor == self.layer.input.tensor
        heavy = any(op.kind in HEAVY for op, _ in readers)
        producer = self.producers.get(tensor)
        if producer is not None and not (len(readers) > 1 or (producer.kind == "norm" and heavy)):
            (reader, position), = readers
            self._direct(placed[tensor], placed[reader.name], position)
            return
        if is_input:
            assert boundary_in is not None
            node = boundary_in
        elif producer is None:
            assert boundary_in is not None
            node = self._carried(next(one for one in self.layer.carried if one.tensor == tensor), boundary_in)
        else:
            held = producer is not None and self._work(producer).keeps_output
            kept = not held and any(self._work(op).keeps_inputs for op, _ in readers)
            through = producer.attr("function") == "pass"  # the same bytes as the tensor that it passes on
            states = _allowed(producer.output, heavy)
            node = self._layout_node(producer.output, states, Term.SAVED if kept and not through else None)
            self._connect(placed[tensor], node)
        for reader, position in readers:
            self._read(node, placed[reader.name], position)

    def _work(self, op: Op) -> Work:
        """Return the operator's work at unit sizes, to ask what it keeps for its backward pass."""
        return ops.work(op, {dim.name: np.ones(1) for dim in op.dims}, self.setting.numerics)

    def _carried(self, tensor: Operand, boundary: int) -> int:
        """Add the layout node of a tensor that passes through the layer: laid out as the residual stream is."""
        node = self._layout_node(tensor, RESIDUAL, None)
        states, own = self._layout(boundary).states, self._layout(node).states
        allowed = np.where((states[:, None, :] == own[None, :, :]).all(axis=2), 0.0, np.inf)
        self.edges.append(Edge(boundary, node, allowed, np.zeros_like(allowed)))
        return node

    def _layout_node(self, tensor: Operand, allowed: Sequence[AxisLayout], term: Term | None) -> int:
        """Add a layout node. term: the column its kept bytes go to, None if it isn't kept here."""
        batch, seq = (tensor.dims.index(name) if name in tensor.dims else REPLICATED for name in TOKEN_DIMS)
        inner = tensor.dims.index(name) if (name := inner_dim(tensor)) else REPLICATED
        states = self._states(tensor, allowed, np.array([batch, seq, REPLICATED, REPLICATED, seq, inner]))
        forward = np.array([batch, seq, REPLICATED, REPLICATED, REPLICATED, inner])[states]
        backward = np.array([batch, seq, REPLICATED, PARTIAL, PARTIAL, inner])[states]
        kept = np.array([batch, seq, REPLICATED, REPLICATED, seq, inner])[states]
        terms = np.zeros((len(states), NUM_TERMS))
        shape = self._shape(tensor)
        if term is not None:
            terms[:, term] = pricing.local_bytes(kept, shape, self.setting)
        rank = len(shape)
        gather = self.setting.conversions(shape)[codes_to_index(kept, rank), codes_to_index(forward, rank)]
        terms[:, Term.CONVERT_FORWARD] = gather
        terms[:, Term.REGATHER] = gather
        return self._add(f"layout:{tensor.tensor}", LayoutNode(tensor, states, forward, backward, kept), terms)

    def _states(self, tensor: Operand, allowed: Sequence[AxisLayout], kept: Ints) -> Ints:
        """Return the legal states [K, A] of a tensor's layout node. kept: the layout code of each state of an axis."""
        if self.roles is not None:
            return np.array(list(itertools.product(*self._pinned_states(tensor, allowed))), np.int64)
        options = [tuple(allowed) if size > 1 else (AxisLayout.WHOLE,) for size in self.axis_sizes]
        states = np.array(list(itertools.product(*options)), np.int64).reshape(-1, len(self.axis_sizes))
        sizes = self._sizes(tensor)
        legal = np.ones(len(states), bool)
        for position, name in enumerate(tensor.dims):
            split = np.where(kept[states] == position, np.array(self.axis_sizes), 1).prod(axis=1)
            legal &= splits(name, sizes[name], split)
        result: Ints = states[legal]
        return result

    def _pinned_states(self, tensor: Operand, allowed: Sequence[AxisLayout]) -> Iterator[tuple[AxisLayout, ...]]:
        """Yield for each mesh axis the states that the roles leave: what suits those who read the tensor.

        Where a reader splits a dim that the tensor lacks, it needs the tensor whole. Under sequence parallelism such a
        tensor may be kept whole or kept split and gathered again for the backward pass: a matter of memory, which stays
        open.
        """
        readers = [(op, self._assign(op)) for op, _ in self.readers.get(tensor.tensor, ())]
        read = [(op, assign) for op, assign in readers if assign is not None]
        for axis, (size, dims) in enumerate(zip(self.axis_sizes, self._role_dims(), strict=True)):
            taken = {op.dims[assign[0, axis]].name for op, assign in read if assign[0, axis] != NONE}
            if size == 1:
                yield (AxisLayout.WHOLE,)
            elif AxisLayout.INNER in allowed and inner_dim(tensor) in taken:
                yield (AxisLayout.INNER,)
            elif AxisLayout.SUMMED in allowed and taken - {*tensor.dims}:
                again = SEQ in dims and AxisLayout.GATHERED in allowed
                yield (AxisLayout.SUMMED, *((AxisLayout.GATHERED,) if again else ()))
            elif BATCH in (taken or dims):
                yield (AxisLayout.BATCH,)
            else:
                yield (AxisLayout.SEQ if SEQ in dims else AxisLayout.WHOLE,)

    def _sizes(self, tensor: Operand) -> dict[str, int]:
        """Return the unsplit size of each dim of a tensor of the layer, by the name that `tensor` gives it."""
        op, dims = self._seen(tensor)
        sizes = self.setting.sizes(op) | {inner: int(op.attr(inner) or 1) for inner, _ in op.grouped}
        return {name: sizes[dim] for name, dim in zip(tensor.dims, dims, strict=True)}

    def _seen(self, tensor: Operand) -> tuple[Op, tuple[str, ...]]:
        """Return an operator that makes or reads a tensor, and the tensor's dims as it names them."""
        if tensor.tensor in self.producers:
            return self.producers[tensor.tensor], tensor.dims
        reader, position = self.readers[tensor.tensor][0]
        return reader, reader.inputs[position].dims

    def _shape(self, tensor: Operand) -> tuple[float, ...]:
        """Return the unsplit shape of a tensor; along `seq` only as much as holds something."""
        op, dims = self._seen(tensor)
        shape = pricing.tensor_shape(op, dims, self.setting)
        return tuple(size * (tensor.density if name == SEQ else 1.0) for name, size in zip(dims, shape, strict=True))

    def _strategies(self, node: int) -> OpStrategies:
        content = self.nodes[node].content
        assert isinstance(content, OpStrategies)
        return content

    def _layout(self, node: int) -> LayoutNode:
        content = self.nodes[node].content
        assert isinstance(content, LayoutNode)
        return content

    def _convert(self, shape: tuple[float, ...], source: Ints, target: Ints) -> Array:
        """Return the seconds from each source layout [K_u, A] to each target layout [K_v, A]."""
        rank = len(shape)
        table = self.setting.conversions(shape)
        return table[codes_to_index(source, rank)[:, None], codes_to_index(target, rank)[None, :]]

    def _connect(self, producer: int, node: int) -> None:
        """Join an operator to the layout node of its output."""
        made, layout = self._strategies(producer), self._layout(node)
        shape = self._shape(made.op.output)
        whole = np.where(made.output == PARTIAL, REPLICATED, made.output)
        self.edges.append(Edge(producer, node, self._convert(shape, made.output, layout.kept),
                               self._convert(shape, layout.backward, whole).T, made.op.kind == "dispatch"))

    def _read(self, node: int, reader: int, position: int) -> None:
        """Join a layout node to an operator that reads its tensor."""
        layout, reads = self._layout(node), self._strategies(reader)
        shape = self._shape(layout.tensor)
        self.edges.append(Edge(node, reader, self._convert(shape, layout.forward, reads.inputs[position]),
                               self._convert(shape, reads.gradients[position], layout.backward).T))

    def _direct(self, producer: int, reader: int, position: int) -> None:
        """Join a tensor's producer to its only reader; what the reader keeps, it keeps as it reads it."""
        made, reads = self._strategies(producer), self._strategies(reader)
        shape = self._shape(made.op.output)
        whole = np.where(made.output == PARTIAL, REPLICATED, made.output)
        exchanges = made.op.kind == "dispatch" or reads.op.kind == "combine"
        self.edges.append(Edge(producer, reader, self._convert(shape, made.output, reads.inputs[position]),
                               self._convert(shape, reads.gradients[position], whole).T, exchanges))
        if self._work(reads.op).keeps_inputs and not self._work(made.op).keeps_output:
            kept = pricing.local_bytes(reads.inputs[position], shape, self.setting)
            self.nodes[reader].terms[:, Term.SAVED] += kept
