"""Where every tensor of a layer lies: mesh axes dim by dim, as partition specs have them.

A placement is what the choice of one strategy a node comes to (`LayerProblem`), in names of mesh axes. Frameworks know
no partial sums, so an operator whose output is one has none: its reader's placement says how it's reduced. Key and
value heads that several devices repeat split the mesh axis in two: the heads' part, and the part of the copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode
from autoplan.intraop.strategies import REPEATED, Ints, OpStrategies
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, TOKEN_DIMS, Op, Operand, Param
from autoplan.sharding import PARTIAL

Axes = tuple[tuple[str, ...], ...]  # of each dim, the mesh axes that split it, major first

TOKEN_READERS = ("embedding", "loss")  # kinds of operators that read token ids, [batch, seq]
COPIES = "_copies"  # ends the name of the part of an axis whose devices repeat key and value heads


@dataclass(frozen=True)
class NamedMesh:
    """A logical mesh: sizes and names of its axes, row-major over the stage's devices."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.shape)

    def parts(self, axes: Iterable[str]) -> int:
        """Return into how many parts some axes split a dim."""
        sizes = dict(zip(self.names, self.shape, strict=True))
        return math.prod(sizes[name] for name in axes)


@dataclass(frozen=True)
class PlacedParam:
    """A parameter: how its operator reads it, and how what ZeRO splits is kept.

    zero: what is kept so: 1 the optimizer state, 2 the gradient too, 3 the weight too.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    read: Axes
    kept: Axes
    zero: int

    @property
    def weight(self) -> Axes:
        """Placement of the weight between steps."""
        return self.kept if self.zero == 3 else self.read

    @property
    def gradient(self) -> Axes:
        """Placement of the gradient as it accumulates."""
        return self.kept if self.zero >= 2 else self.read

    @property
    def state(self) -> Axes:
        """Placement of the optimizer's state."""
        return self.kept if self.zero >= 1 else self.read


@dataclass(frozen=True)
class PlacedOp:
    """An operator: placements of its inputs and of its output (None: a partial sum, reduced as its reader needs it)."""

    op: Op
    inputs: tuple[Axes, ...]
    output: Axes | None
    whole: Axes  # the output's, once it is reduced without being split
    params: tuple[PlacedParam, ...]


@dataclass(frozen=True)
class PlacedLayer:
    """A layer.

    sizes: of the dims that the workload sizes; `batch` is the sequences of one micro-batch on all devices of the mesh.
    tensors: placements, one after the other, that a tensor takes before it is read (layout nodes).
    """

    name: str
    mesh: NamedMesh
    sizes: Mapping[str, int]
    ops: tuple[PlacedOp, ...]
    tensors: Mapping[str, tuple[Axes, ...]]

    @cached_property
    def inputs(self) -> Mapping[str, tuple[tuple[int, ...], Axes]]:
        """Shape and placement of each tensor that no operator of the layer makes."""
        made = {one.op.output.tensor for one in self.ops}
        found: dict[str, tuple[tuple[int, ...], Axes]] = {}
        for one in self.ops:
            for operand, axes in zip(one.op.inputs, one.inputs, strict=True):
                if operand.tensor not in made:
                    placed = self.tensors.get(operand.tensor, (axes,))[-1]
                    found.setdefault(operand.tensor, (self.shape(one.op, operand), placed))
        return found

    @property
    def output(self) -> tuple[tuple[int, ...], Axes]:
        """Shape and placement of the last operator's output."""
        last = self.ops[-1]
        made = last.op.output
        return self.shape(last.op, made), self.tensors.get(made.tensor, (last.whole,))[-1]

    @property
    def local_elements(self) -> float:
        """Elements that one device holds of what a training step is given besides parameters and states: its inputs,
        the gradient of its output, and token ids."""
        given = [*self.inputs.values(), self.output]
        for one in self.ops:
            if one.op.kind in TOKEN_READERS:
                dims = [one.op.output.dims.index(name) for name in TOKEN_DIMS]
                given.append((tuple(self.sizes[name] for name in TOKEN_DIMS), tuple(one.whole[at] for at in dims)))
        return float(sum(math.prod(-(-size // self.mesh.parts(names)) for size, names in zip(shape, axes, strict=True))
                         for shape, axes in given))

    def shape(self, op: Op, operand: Operand) -> tuple[int, ...]:
        """Return the unsplit shape of one of an operator's tensors; some have places for a part of `seq` alone."""
        sizes = dict(self.sizes) | {inner: int(op.attr(inner) or 1) for inner, _ in op.grouped} | op.static_sizes
        return tuple(math.ceil(sizes[name] * operand.density) if name == SEQ else sizes[name] for name in operand.dims)


@dataclass(frozen=True)
class Program:
    """A chain of layers as one training step: each reads what the one before has made.

    moments: numbers of optimizer state a parameter. fused: whether contractions of one tensor are written as one.
    regather: whether weights that ZeRO-3 splits are gathered again for the backward pass.
    """

    layers: tuple[PlacedLayer, ...]
    moments: int = 0
    fused: bool = True
    regather: bool = True


def strategies_of(problem: LayerProblem, choice: Sequence[int]) -> list[tuple[OpStrategies, int]]:
    """Return the operators of a layer with the strategy that each takes under a choice."""
    return [(node.content, int(k)) for node, k in zip(problem.nodes, choice, strict=True)
            if isinstance(node.content, OpStrategies)]


def place(problem: LayerProblem, choice: Sequence[int], naming: Naming | None = None) -> PlacedLayer:
    """Return where everything lies under one strategy a node.

    naming: that of all layers which are to share one mesh; the layer's own by default.
    """
    setting = problem.setting
    strategies = strategies_of(problem, choice)
    naming = naming or Naming.of(setting.mesh.names, setting.mesh.shape, strategies)
    params: dict[str, list[PlacedParam]] = {}
    tensors: dict[str, tuple[Axes, ...]] = {}
    for node, k in zip(problem.nodes, choice, strict=True):
        content = node.content
        if isinstance(content, ParamNode):
            placed = naming.param(content.op, content.param, content.layouts[k], int(content.zero[k]))
            params.setdefault(content.op.name, []).append(placed)
        elif isinstance(content, LayoutNode):
            stages = [naming.axes(layout[k], content.tensor.dims, {}) for layout in (content.kept, content.forward)]
            tensors[content.tensor.tensor] = tuple(stages[:1] if stages[0] == stages[1] else stages)
    if problem.input is not None and problem.input == problem.output and problem.layer.output is not None:
        assert problem.layer.input is not None  # one node for both ends
        tensors[problem.layer.output.tensor] = tensors[problem.layer.input.tensor]
    sizes = {BATCH: setting.micro_batch, SEQ: setting.workload.seq_len, KV_SEQ: setting.workload.seq_len}
    ops = tuple(naming.op(content, k, tuple(params.get(content.op.name, ()))) for content, k in strategies)
    return PlacedLayer(problem.layer.name, naming.mesh, sizes, ops, tensors)


@dataclass(frozen=True)
class Naming:
    """Turns layouts into names of mesh axes. copies: by axis, how many of its devices repeat each head."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    copies: Mapping[str, int]

    @classmethod
    def of(cls, names: tuple[str, ...], shape: tuple[int, ...],
           strategies: Iterable[tuple[OpStrategies, int]]) -> Naming:
        """Return the naming for some operators' strategies: the minor axes of a split hold the copies."""
        copies: dict[str, int] = {}
        for chosen, k in strategies:
            op = chosen.op
            tensors = [(layout[k], operand.dims) for layout, operand in zip(chosen.inputs, op.inputs, strict=True)]
            tensors += [(layout[k], param.dims) for layout, param in zip(chosen.params, op.params, strict=True)]
            for layout, dims in (*tensors, (chosen.output[k], op.output.dims)):
                for position in (index for index, name in enumerate(dims) if name in REPEATED):
                    size = op.static_sizes.get(dims[position]) or int(op.attr(dims[position]) or 1)
                    over = [axis for axis, code in enumerate(layout) if code == position and shape[axis] > 1]
                    repeated = math.prod(shape[axis] for axis in over) // size
                    for axis in reversed(over):
                        if repeated > 1:
                            copies[names[axis]] = math.gcd(repeated, shape[axis])
                            repeated //= copies[names[axis]]
        return cls(names, shape, copies)

    @property
    def mesh(self) -> NamedMesh:
        """The mesh, with the axes that repeat heads split in two."""
        parts: list[tuple[str, int]] = []
        for name, size in zip(self.names, self.shape, strict=True):
            repeated = self.copies.get(name, 1)
            parts.append((name, size // repeated))
            if repeated > 1:
                parts.append((name + COPIES, repeated))
        return NamedMesh(tuple(size for _, size in parts), tuple(name for name, _ in parts))

    def axes(self, layout: Ints, dims: Sequence[str], sizes: Mapping[str, int]) -> Axes:
        """Return a layout's axes, dim by dim; partial ones don't show. sizes: of the dims that may be repeated."""
        result = []
        for position, dim in enumerate(dims):
            over = [axis for axis, code in enumerate(layout) if code == position and self.shape[axis] > 1]
            repeats = dim in REPEATED and math.prod(self.shape[axis] for axis in over) > sizes[dim]
            names: list[str] = []
            for name in (self.names[axis] for axis in over):
                names += [name] if repeats or name not in self.copies else [name, name + COPIES]
            result.append(tuple(names))
        return tuple(result)

    def op(self, chosen: OpStrategies, k: int, params: tuple[PlacedParam, ...]) -> PlacedOp:
        """Return the placement of an operator under its strategy `k`."""
        op = chosen.op
        sizes = op.static_sizes | {inner: int(op.attr(inner) or 1) for inner, _ in op.grouped}
        whole = self.axes(chosen.output[k], op.output.dims, sizes)
        partial = any(code == PARTIAL and size > 1 for code, size in zip(chosen.output[k], self.shape, strict=True))
        return PlacedOp(op, tuple(self.axes(layout[k], operand.dims, sizes)
                                  for layout, operand in zip(chosen.inputs, op.inputs, strict=True)),
                        None if partial else whole, whole, params)

    def param(self, op: Op, param: Param, layout: Ints, zero: int) -> PlacedParam:
        """Return the placement of a parameter; PARTIAL in its layout marks the axes that ZeRO may split it over.

        ZeRO splits the first dim that divides, one that is whole if there is any; a parameter of which no dim divides
        stays as it is read.
        """
        sizes = op.static_sizes
        shape = tuple(sizes[name] for name in param.dims)
        read = self.axes(layout, param.dims, sizes)
        over = [name for name, size, code in zip(self.names, self.shape, layout, strict=True)
                if code == PARTIAL and size > 1]
        data = tuple(part for name in over for part in ((name, name + COPIES) if name in self.copies else (name,)))
        kept = read
        for position in sorted(range(len(shape)), key=lambda at: (bool(read[at]), at)):
            if zero and data and shape[position] % self.mesh.parts((*read[position], *data)) == 0:
                kept = (*read[:position], (*read[position], *data), *read[position + 1:])
                break
        return PlacedParam(f"{op.name}.{param.name}", param.dims, shape, read, kept, zero if kept != read else 0)
