"""A traced graph: what every front end (JAX, PyTorch, ONNX) lowers its operators to, before anything is understood.

Tensors have shapes, not names of dims. A node is one of a few kinds whose meaning for shapes is exact; what a front end
doesn't know is `OPAQUE`, and stays visible to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


class Source(StrEnum):
    """Where a value comes from."""

    TOKENS = "tokens"  # an integer input of the model
    INPUT = "input"  # a real input: images, embeddings
    HINT = "hint"  # an input that only masks or counts: attention masks, positions
    PARAM = "param"
    CONST = "const"
    INITIAL = "initial"  # a real constant of a format that doesn't tell parameters from other constants
    NODE = "node"


class Kind(StrEnum):
    """What a node does with shapes. attrs in brackets."""

    EINSUM = "einsum"  # [a, b, out: labels, a tuple of ints each] the labels that `out` lacks are summed
    CONV = "conv"  # [groups] x [N, C, spatial…], w [O, C / groups, spatial…] → [N, O, spatial…]
    MAP = "map"  # one function of each element, operands broadcast as numpy does
    VIEW = "view"  # the same elements in the same order in another shape
    PERMUTE = "permute"  # [perm] output axis i is input axis perm[i]
    BROADCAST = "broadcast"  # [axes] input axis i is output axis axes[i]
    REDUCE = "reduce"  # [axes] summed, averaged, maximised …; the axes are gone
    SLICE = "slice"  # [axis, start, step] a part of one axis
    CONCAT = "concat"  # [axis]
    GATHER = "gather"  # table [V, rest…], indices [any…] → [any…, rest…]
    ATTENTION = "attention"  # [causal, window] q [.., H, S, D], k [.., G, T, D], v [.., G, T, E] → [.., H, S, E]
    NORM = "norm"  # [axes] x and its parameters; axes: what is averaged over
    SOFTMAX = "softmax"  # [axis]
    LOSS = "loss"  # logits [..., V] and what they should be
    POOL = "pool"  # [window] a window's maximum or mean, spatial axes last
    STREAM = "stream"  # bound by memory: each input read, the output written; dims only where shapes agree
    OPAQUE = "opaque"  # not understood


LAYOUT = frozenset((Kind.VIEW, Kind.PERMUTE, Kind.BROADCAST))
IDENTITY = "identity"  # the function of maps that change nothing but the dtype


@dataclass(frozen=True)
class Value:
    """A tensor."""

    name: str
    shape: Shape
    source: Source

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Node:
    """An operator with one output. function: what it computes, in the words of `Kind` or of the front end."""

    kind: Kind
    function: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """A traced graph that is being made. nodes are in topological order.

    where: the file or function, for errors. assumed: what was assumed, in words.
    """

    where: str
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    _made: dict[str, Node] = field(default_factory=dict)

    def value(self, name: str, shape: Iterable[int], source: Source) -> str:
        """Add a value that no node makes; return its name."""
        self.values[name] = Value(name, tuple(int(size) for size in shape), source)
        return name

    def add(self, kind: Kind, function: str, inputs: Sequence[str], shape: Iterable[int], *, output: str | None = None,
            **attrs: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"v{len(self.values)}"
        self.values[name] = Value(name, tuple(int(size) for size in shape), Source.NODE)
        self._made[name] = Node(kind, function, tuple(inputs), name, attrs)
        self.nodes.append(self._made[name])
        return name

    def shape(self, name: str) -> Shape:
        """Return the shape of a value."""
        return self.values[name].shape

    def mask(self, name: str, content: NDArray[Any] | None) -> str:
        """Return a constant; one that masks a triangle of a square is known to (an attention under it is causal).

        content: what it holds, None where that isn't known: a square then counts as a triangle, which is noted.
        """
        shape = self.shape(name)
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 1 or math.prod(shape[:-2]) != 1:
            return name
        if content is None:
            self.assumed.append(f"the square constant {name} is a causal mask if attention reads it")
        elif not is_triangle(content.reshape(shape[-2:])):
            return name
        return self.map("tril", (name,), shape)

    def view(self, name: str, shape: Iterable[int]) -> str:
        """Return `name` in another shape."""
        shape = tuple(shape)
        return name if shape == self.shape(name) else self.add(Kind.VIEW, "view", (name,), shape)

    def permute(self, name: str, perm: Sequence[int]) -> str:
        """Return `name` with its axes in another order."""
        if tuple(perm) == tuple(range(len(perm))):
            return name
        shape = [self.shape(name)[axis] for axis in perm]
        return self.add(Kind.PERMUTE, "permute", (name,), shape, perm=tuple(perm))

    def broadcast(self, name: str, shape: Iterable[int], axes: Sequence[int]) -> str:
        """Return `name` repeated to `shape`; its axis i becomes axis axes[i]."""
        shape = tuple(shape)
        if shape == self.shape(name) and tuple(axes) == tuple(range(len(shape))):
            return name
        return self.add(Kind.BROADCAST, "broadcast", (name,), shape, axes=tuple(axes))

    def slice(self, name: str, axis: int, start: int, size: int, step: int = 1) -> str:
        """Return `size` entries of one axis."""
        shape = list(self.shape(name))
        if (start, size, step) == (0, shape[axis], 1):
            return name
        made = self._made.get(name)
        if made is not None and made.kind is Kind.CONCAT and made.attrs["axis"] == axis and step == 1:
            ends = np.cumsum([self.shape(part)[axis] for part in made.inputs])
            chosen = [part for part, end in zip(made.inputs, ends, strict=True) if start < end <= start + size]
            if sum(self.shape(part)[axis] for part in chosen) == size:
                return self.concat(chosen, axis)
        shape[axis] = size
        return self.add(Kind.SLICE, "slice", (name,), shape, axis=axis, start=start, step=step)

    def concat(self, names: Sequence[str], axis: int) -> str:
        """Return the values one after the other along `axis`."""
        if len(names) == 1:
            return names[0]
        shape = list(self.shape(names[0]))
        shape[axis] = sum(self.shape(name)[axis] for name in names)
        return self.add(Kind.CONCAT, "concat", names, shape, axis=axis)

    def map(self, function: str, inputs: Sequence[str], shape: Iterable[int] | None = None) -> str:
        """Return a function of each element of the inputs."""
        return self.add(Kind.MAP, function, inputs, shape if shape is not None else broadcast_shape(
            [self.shape(name) for name in inputs]))

    def reduce(self, function: str, name: str, axes: Iterable[int], *, keep: bool = False) -> str:
        """Return `name` reduced over `axes`, which stay as axes of size 1 if `keep`."""
        shape = self.shape(name)
        gone = sorted({axis % len(shape) for axis in axes}) if shape else []
        result = self.add(Kind.REDUCE, function, (name,), [size for axis, size in enumerate(shape) if axis not in gone],
                          axes=tuple(gone))
        return self.view(result, [1 if axis in gone else size for axis, size in enumerate(shape)]) if keep else result

    def einsum(self, a: str, b: str, a_labels: Sequence[int], b_labels: Sequence[int], out: Sequence[int]) -> str:
        """Return the sum over the labels that `out` lacks of the product of `a` and `b`."""
        size = dict(zip((*a_labels, *b_labels), (*self.shape(a), *self.shape(b)), strict=True))
        return self.add(Kind.EINSUM, "einsum", (a, b), [size[label] for label in out], a=tuple(a_labels),
                        b=tuple(b_labels), out=tuple(out))

    def matmul(self, a: str, b: str) -> str:
        """Return the matrix product of numpy's `matmul`: the axes before the last two are a batch, and broadcast."""
        ra, rb = len(self.shape(a)), len(self.shape(b))
        if ra == 1 or rb == 1:
            left = (*range(1, ra), 0)
            right = (0,) if rb == 1 else (*range(20, 18 + rb), 0, 19)
            return self.einsum(a, b, left, right, [label for label in (*left, *right) if label])
        wide = broadcast_shape([self.shape(a)[:-2], self.shape(b)[:-2]])
        batch = tuple(range(3, 3 + len(wide)))
        names, out = [], {label: label for label in batch}
        for name, rank in ((a, ra), (b, rb)):
            own = batch[len(batch) - (rank - 2):]
            ones = [i for i, (size, label) in enumerate(zip(self.shape(name), own, strict=False))
                    if size == 1 and wide[label - 3] != 1]
            names.append((self.view(name, [s for i, s in enumerate(self.shape(name)) if i not in ones]),
                          tuple(label for i, label in enumerate(own) if i not in ones)))
        return self.einsum(names[0][0], names[1][0], (*names[0][1], 0, 1), (*names[1][1], 1, 2), (*out, 0, 2))

    def replace_nodes(self, change: Callable[[Node], Node | None]) -> None:
        """Put `change(node)` in the place of each node it isn't None for."""
        self.nodes = [change(node) or node for node in self.nodes]

    def rename(self, names: Mapping[str, str]) -> None:
        """Let readers of each key read its value instead."""
        def final(name: str) -> str:
            while name in names:
                name = names[name]
            return name

        self.nodes = [replace(node, inputs=tuple(final(name) for name in node.inputs)) for node in self.nodes]
        self.outputs = [final(name) for name in self.outputs]

    def prune(self) -> None:
        """Drop the nodes that no output needs."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if node.output in needed:
                kept.append(node)
                needed.update(node.inputs)
        self.nodes = kept[::-1]

    def producers(self) -> dict[str, Node]:
        """Return the node that makes each value."""
        return {node.output: node for node in self.nodes}

    def users(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return found

    def flops(self, node: Node) -> int:
        """Return the FLOPs of a product (2 for each multiply and add), 0 of any other node."""
        if node.kind is Kind.EINSUM:
            sizes = dict(zip((*node.attrs["a"], *node.attrs["b"]),
                             (*self.shape(node.inputs[0]), *self.shape(node.inputs[1])), strict=True))
            return 2 * math.prod(sizes.values())
        if node.kind is Kind.CONV:
            weight = self.shape(node.inputs[1])
            return 2 * self.values[node.output].numel * math.prod(weight[1:])
        if node.kind is Kind.ATTENTION:
            *batch, heads, queries, width = self.shape(node.inputs[0])
            keys, out = self.shape(node.inputs[1])[-2], self.shape(node.output)[-1]
            return 2 * math.prod(batch) * heads * queries * keys * (width + out)
        return 0


def is_triangle(square: NDArray[Any]) -> bool:
    """Whether a square has one value above its diagonal and another on it and below."""
    if (square[0, 1:] != square[0, -1]).any() or square[0, 0] == square[0, -1]:
        return False
    lower = np.tril(np.ones(square.shape, bool))
    inside, outside = square[lower], square[~lower]
    return bool((inside == inside[0]).all() and (outside == outside[0]).all() and inside[0] != outside[0])


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that numpy broadcasts `shapes` to."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
