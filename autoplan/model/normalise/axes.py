"""Which dims the axes of a traced graph's tensors are: one walk over its nodes, each with its rule.

Values are of three classes. HINTS follow from constants, positions and masks alone: they shape the result but carry no
model data, and their axes are never lined up with those of data (a causal mask would make queries and keys one dim).
WEIGHTS are made of parameters, DATA of the model's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from autoplan.model.normalise.atoms import Atoms, AtomTable
from autoplan.model.normalise.trace import Kind, Node, Source, Trace

Axes = tuple[Atoms, ...]


class Level(IntEnum):
    """The class of a value; that of a function of several is the greatest."""

    HINT = 0
    WEIGHT = 1
    DATA = 2


_OPERANDS = {Kind.EINSUM: slice(None), Kind.CONV: slice(None), Kind.GATHER: slice(1), Kind.NORM: slice(1, None)}
_LEVELS = {Source.PARAM: Level.WEIGHT, Source.INPUT: Level.DATA}


def mark_masks(trace: Trace) -> None:
    """Make real inputs with no more axes than the tokens hints: what goes with each token and isn't one is a mask."""
    if any(value.source is Source.TOKENS for value in trace.values.values()):
        for name, value in trace.values.items():
            if value.source is Source.INPUT and len(value.shape) <= 2:
                trace.values[name] = replace(value, source=Source.HINT)


def promote_constants(trace: Trace) -> None:
    """Make constants that are multiplied with data parameters: an exported model has its weights as constants."""
    before = None
    while before != trace.values:
        before = dict(trace.values)
        _promote_once(trace)


def _promote_once(trace: Trace) -> None:
    """Promote what is known now to meet data, or to be looked up by tokens."""
    levels = levels_of(trace)
    made_by = trace.producers()

    def promote(name: str, *kinds: Source) -> None:
        node = made_by.get(name)
        value = trace.values[name]
        if node is None:
            if value.source in kinds and value.numel > 1:
                trace.values[name] = replace(value, source=Source.PARAM)
        elif node.kind in (Kind.VIEW, Kind.PERMUTE, Kind.MAP, Kind.SLICE, Kind.CONCAT, Kind.GATHER):
            for source in node.inputs[:1] if node.kind is Kind.GATHER else node.inputs:
                promote(source, *kinds)

    for node in trace.nodes:
        if node.kind in _OPERANDS and levels[node.output] is not Level.HINT:
            for name in node.inputs[_OPERANDS[node.kind]]:
                if levels[name] is Level.HINT:
                    promote(name, Source.CONST, Source.INITIAL)
        if node.kind is Kind.GATHER and levels[node.output] is Level.HINT and _reads_tokens(trace, made_by, node):
            promote(node.inputs[0], Source.CONST, Source.INITIAL)
        if node.function in ("add", "sub", "mul", "div") and levels[node.output] is Level.DATA:
            for name in node.inputs:
                if levels[name] is Level.HINT and _looks_learned(trace, name, node.function):
                    promote(name, Source.INITIAL)


def _looks_learned(trace: Trace, name: str, function: str) -> bool:
    """Whether a constant beside data may be a bias, a gain, or a table of positions: a vector, or a matrix that is
    added and isn't a square (a mask)."""
    wide = [size for size in trace.shape(name) if size > 1]
    return len(wide) == 1 or (len(wide) > 1 and function == "add" and wide[-1] != wide[-2])


def _reads_tokens(trace: Trace, made_by: dict[str, Node], node: Node) -> bool:
    """Whether a look-up's indices come from the model's tokens."""
    name = node.inputs[1]
    while name in made_by and made_by[name].inputs:
        name = made_by[name].inputs[0]
    return trace.values[name].source is Source.TOKENS


def levels_of(trace: Trace) -> dict[str, Level]:
    """Return the class of each value."""
    levels = {name: _LEVELS.get(value.source, Level.HINT) for name, value in trace.values.items()}
    tokens = {name for name, value in trace.values.items() if value.source is Source.TOKENS}
    for node in trace.nodes:
        level = max((levels[name] for name in node.inputs), default=Level.HINT)
        if any(name in tokens for name in node.inputs) and node.kind is not Kind.GATHER:
            tokens.add(node.output)
        if node.kind is Kind.GATHER:
            table, index = node.inputs
            level = Level.DATA if levels[table] is Level.WEIGHT and index in tokens else levels[table]
        elif node.kind is Kind.EINSUM and level is Level.WEIGHT and tokens.intersection(node.inputs):
            level = Level.DATA  # a look-up written as a product with one-hot rows
        levels[node.output] = level
    return levels


@dataclass(frozen=True)
class Dims:
    """The axes of every value, and the table that knows which atoms are one."""

    table: AtomTable
    axes: dict[str, Axes]
    levels: dict[str, Level]

    def of(self, name: str) -> tuple[Atoms, ...]:
        """Return the axes of a value as undivided atoms."""
        return tuple(self.table.flat(axis) for axis in self.axes[name])

    def flat(self, name: str) -> Atoms:
        """Return all atoms of a value, in order, without those of size 1 that nothing else has."""
        return tuple(atom for axis in self.of(name) for atom in axis)


def dims_of(trace: Trace) -> Dims:
    """Find the dims of all values of a graph."""
    walk = _Walk(trace)
    for node in trace.nodes:
        walk.visit(node)
    return Dims(walk.table, walk.axes, walk.levels)


class _Walk:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.table = trace, AtomTable()
        self.levels = levels_of(trace)
        self.axes: dict[str, Axes] = {}
        for name, value in trace.values.items():
            if value.source is not Source.NODE:
                self.axes[name] = self._fresh(value.shape)

    def _fresh(self, shape: tuple[int, ...]) -> Axes:
        return tuple((self.table.fresh(size),) for size in shape)

    def visit(self, node: Node) -> None:
        """Give the output of a node its axes, and make one what the node lines up."""
        rule = getattr(self, f"_{node.kind.value}", None)
        shape = self.trace.shape(node.output)
        made = self._fresh(shape) if rule is None else rule(node, shape)
        self.axes[node.output] = tuple(axis if self.table.product(axis) == size else (self.table.fresh(size),)
                                       for axis, size in zip(made, shape, strict=True))

    def _map(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """Line up the axes of all operands of the result's class; those of hints stay apart from data."""
        level = self.levels[node.output]
        least = Level.WEIGHT if level is not Level.HINT else Level.HINT
        operands = [self.axes[name] for name in node.inputs if self.levels[name] >= least]
        result: list[Atoms] = []
        for position, size in enumerate(shape):
            found: Atoms | None = None
            for axes in operands:
                index = position - len(shape) + len(axes)
                if index < 0 or self.table.product(axes[index]) != size:
                    continue
                if found is None:
                    found = axes[index]
                else:
                    self.table.unify(found, axes[index])
            result.append(found if found is not None else (self.table.fresh(size),))
        return tuple(result)

    _stream = _map

    def _view(self, node: Node, shape: tuple[int, ...]) -> Axes:
        return tuple(self.table.regroup(self.axes[node.inputs[0]], shape))

    def _permute(self, node: Node, shape: tuple[int, ...]) -> Axes:
        axes = self.axes[node.inputs[0]]
        return tuple(axes[axis] for axis in node.attrs["perm"])

    def _broadcast(self, node: Node, shape: tuple[int, ...]) -> Axes:
        result = list(self._fresh(shape))
        for axes, target in zip(self.axes[node.inputs[0]], node.attrs["axes"], strict=True):
            if self.table.product(axes) == shape[target]:
                result[target] = axes
        return tuple(result)

    def _reduce(self, node: Node, shape: tuple[int, ...]) -> Axes:
        return tuple(axes for axis, axes in enumerate(self.axes[node.inputs[0]]) if axis not in node.attrs["axes"])

    def _slice(self, node: Node, shape: tuple[int, ...]) -> Axes:
        axes = list(self.axes[node.inputs[0]])
        axis = node.attrs["axis"]
        axes[axis] = (self.table.cut(shape[axis], axes[axis]),)
        return tuple(axes)

    def _concat(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """Line up all other axes. Parts of one axis that make up its size are that axis again (rotary positions)."""
        operands = [self.axes[name] for name in node.inputs]
        axis = node.attrs["axis"]
        result = list(operands[0])
        for axes in operands[1:]:
            for position, own in enumerate(axes):
                if position != axis:
                    self.table.unify(result[position], own)
        wholes = [self.table.cut_from(axes[axis]) for axes in operands]
        same = wholes[0] is not None and all(whole == wholes[0] for whole in wholes)
        whole = wholes[0]
        result[axis] = whole if same and whole is not None and self.table.product(whole) == shape[axis] else (
            self.table.fresh(shape[axis]),)
        return tuple(result)

    def _gather(self, node: Node, shape: tuple[int, ...]) -> Axes:
        table, index = (self.axes[name] for name in node.inputs)
        if self.levels[node.output] is not Level.DATA:  # positions: rows chosen by constants
            index = self._fresh(self.trace.shape(node.inputs[1]))
        return (*index, *table[1:])

    def _einsum(self, node: Node, shape: tuple[int, ...]) -> Axes:
        a = dict(zip(node.attrs["a"], self.axes[node.inputs[0]], strict=True))
        b = dict(zip(node.attrs["b"], self.axes[node.inputs[1]], strict=True))
        for label in a.keys() & b.keys():
            if not self._copies(a[label], b[label]):
                self.table.unify(a[label], b[label])
        own = {atom for label, axis in a.items() if label in node.attrs["out"] for atom in self.table.flat(axis)}
        for label in b.keys() - a.keys():
            if own & set(self.table.flat(b[label])):
                b[label] = tuple(self.table.copy(atom) for atom in self.table.flat(b[label]))
        return tuple(a.get(label) or b[label] for label in node.attrs["out"])

    def _copies(self, a: Atoms, b: Atoms) -> bool:
        left, right = self.table.flat(a), self.table.flat(b)
        return len(left) == len(right) and any(self.table.are_copies(x, y) for x, y in zip(left, right, strict=True))

    def _attention(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """The result has the queries' axes; keys and values share theirs, and all the width and the batch."""
        q, k, v = (self.axes[name] for name in node.inputs[:3])
        for left, right in ((q[-1], k[-1]), (k[-2], v[-2]), (k[-3], v[-3])):
            self.table.unify(left, right)
        for position in range(len(q) - 3):
            self.table.unify(q[position], k[position])
            self.table.unify(q[position], v[position])
        if self.table.product(v[-1]) == self.table.product(q[-1]):
            self.table.unify(v[-1], q[-1])
        if self.table.product(k[-3]) == self.table.product(q[-3]):
            self.table.unify(q[-3], k[-3])
        return (*q[:-1], v[-1])

    def _norm(self, node: Node, shape: tuple[int, ...]) -> Axes:
        axes = self.axes[node.inputs[0]]
        for name in node.inputs[1:]:
            own = self.axes[name]
            where = node.attrs.get("param_axis")
            targets = [where] if where is not None else range(len(axes) - len(own), len(axes))
            for target, param in zip(targets, own, strict=True):
                self.table.unify(axes[target], param)
        return axes

    def _softmax(self, node: Node, shape: tuple[int, ...]) -> Axes:
        return self.axes[node.inputs[0]]

    def _loss(self, node: Node, shape: tuple[int, ...]) -> Axes:
        return self._fresh(shape)

    def _conv(self, node: Node, shape: tuple[int, ...]) -> Axes:
        x, w = (self.axes[name] for name in node.inputs[:2])
        groups = node.attrs["groups"]
        if groups == 1:
            self.table.unify(x[1], w[1])
        elif groups == self.table.product(x[1]) == self.table.product(w[0]):
            self.table.unify(x[1], w[0])
        spatial = [axis if self.table.product(axis) == size else (self.table.fresh(size),)
                   for axis, size in zip(x[2:], shape[2:], strict=True)]
        for name in node.inputs[2:]:
            self.table.unify(w[0], self.axes[name][0])
        return (x[0], w[0], *spatial)

    def _pool(self, node: Node, shape: tuple[int, ...]) -> Axes:
        axes = self.axes[node.inputs[0]]
        return tuple(axis if self.table.product(axis) == size else (self.table.fresh(size),)
                     for axis, size in zip(axes, shape, strict=True))
