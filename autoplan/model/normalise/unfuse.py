"""A projection whose output is cut in parts becomes a projection for each part (fused q, k, v; fused gate and up).

slice(x · W) = x · slice(W): the parts do the same work, and each may then be laid out as its readers want.
"""

from __future__ import annotations

from collections.abc import Callable

from autoplan.model.normalise.axes import Level, levels_of
from autoplan.model.normalise.trace import IDENTITY, LAYOUT, Kind, Node, Trace

Edit = Callable[[str, int], str]  # changes one axis of a value: (value, axis) → new value


def unfuse(trace: Trace) -> None:
    """Move the cuts of every projection that is only read in parts to its weight and bias."""
    levels, made_by = levels_of(trace), trace.producers()
    chosen = _parts(trace, made_by, levels)
    old, trace.nodes = trace.nodes, []
    moved: dict[str, str] = {}
    for node in old:
        if node.output in chosen:
            mark = len(trace.nodes)
            new = _Mover(trace, made_by, levels).moved(node.inputs[0], node.attrs["axis"], 1, _cut(trace, node))
            if new is not None:
                moved[node.output] = new
                continue
            del trace.nodes[mark:]
        trace.nodes.append(node)
    trace.rename(moved)
    trace.prune()


def _cut(trace: Trace, node: Node) -> Edit:
    """Return the edit that cuts an axis as a slice does."""
    size = trace.shape(node.output)[node.attrs["axis"]]
    return lambda name, axis: trace.slice(name, axis, node.attrs["start"], size, node.attrs["step"])


def _parts(trace: Trace, made_by: dict[str, Node], levels: dict[str, Level]) -> set[str]:
    """Return the slices that divide products: nothing else reads the product, every element is in one slice, and the
    slices aren't joined again (as the halves of a head are by rotary positions)."""
    groups: dict[str, list[Node]] = {}
    for node in trace.nodes:
        if node.kind is Kind.SLICE and levels[node.output] is Level.DATA:
            name = node.inputs[0]
            while name in made_by and _passes(made_by[name], levels):
                name = next(one for one in made_by[name].inputs if levels[one] is Level.DATA)
            groups.setdefault(name, []).append(node)
    users = trace.users()
    found: set[str] = set()
    for root, slices in groups.items():
        outputs = {node.output for node in slices}
        whole = sum(trace.values[name].numel for name in outputs) == trace.values[root].numel
        if whole and _ends(root, users, levels) == outputs and not _joined(outputs, users):
            found |= outputs
    return found


def _passes(node: Node, levels: dict[str, Level]) -> bool:
    """Whether a node hands its one data operand on: another layout or dtype, or a bias added."""
    one = sum(levels[name] is Level.DATA for name in node.inputs) == 1
    return one and (node.kind in (Kind.VIEW, Kind.PERMUTE)
                    or (node.kind is Kind.MAP and node.function in ("add", IDENTITY)))


def _ends(name: str, users: dict[str, list[Node]], levels: dict[str, Level]) -> set[str]:
    """Return the outputs of the nodes that read a value, through what only hands it on."""
    found: set[str] = set()
    for node in users.get(name, ()):
        found |= _ends(node.output, users, levels) if _passes(node, levels) else {node.output}
    return found


def _joined(outputs: set[str], users: dict[str, list[Node]]) -> bool:
    """Whether cheap functions lead from two of the values to one concatenation."""
    reached: dict[str, str] = {}
    for origin in sorted(outputs):
        stack, seen = [origin], set()
        while stack:
            for node in users.get(stack.pop(), ()):
                if node.output in seen:
                    continue
                seen.add(node.output)
                if node.kind is Kind.CONCAT and reached.setdefault(node.output, origin) != origin:
                    return True
                if node.kind in (Kind.MAP, Kind.CONCAT, *LAYOUT):
                    stack.append(node.output)
    return False


class _Mover:
    """Makes a value with one axis edited by editing the weight that it was made with."""

    def __init__(self, trace: Trace, made_by: dict[str, Node], levels: dict[str, Level]) -> None:
        self.trace, self.made_by, self.levels = trace, made_by, levels

    def moved(self, name: str, axis: int, width: int, edit: Edit) -> str | None:
        """Return the value with its `axis` edited, which makes `width` axes of it; None if that can't be moved."""
        node = self.made_by.get(name)
        if node is None:
            return None
        if node.kind is Kind.EINSUM:
            return self._einsum(node, axis, width, edit)
        if node.kind is Kind.MAP and node.function in ("add", IDENTITY):
            return self._map(node, axis, width, edit)
        if node.kind is Kind.PERMUTE:
            perm = node.attrs["perm"]
            inner = self.moved(node.inputs[0], perm[axis], width, edit)
            return None if inner is None else self.trace.permute(inner, _widened(perm, perm[axis], width))
        if node.kind is Kind.VIEW:
            return self._view(node, axis, width, edit)
        return None

    def _einsum(self, node: Node, axis: int, width: int, edit: Edit) -> str | None:
        label = node.attrs["out"][axis]
        sides = [(name, list(node.attrs[side])) for name, side in zip(node.inputs, ("a", "b"), strict=True)]
        having = [index for index, (_, labels) in enumerate(sides) if label in labels]
        if len(having) != 1 or self.levels[sides[having[0]][0]] is not Level.WEIGHT:
            return None
        weight, labels = sides[having[0]]
        new = [label, *range(1000, 999 + width)]

        def widen(these: list[int]) -> list[int]:
            at = these.index(label)
            return [*these[:at], *new, *these[at + 1:]]

        sides[having[0]] = (edit(weight, labels.index(label)), widen(labels))
        (a, a_labels), (b, b_labels) = sides
        return self.trace.einsum(a, b, a_labels, b_labels, widen(list(node.attrs["out"])))

    def _map(self, node: Node, axis: int, width: int, edit: Edit) -> str | None:
        """A bias or a cast: the one operand with data is moved, the others are edited where they have the axis."""
        data = [name for name in node.inputs if self.levels[name] is Level.DATA]
        if len(data) != 1:
            return None
        rank = len(self.trace.shape(node.output))
        inputs = []
        for name in node.inputs:
            shape = self.trace.shape(name)
            own = axis - rank + len(shape)
            if name == data[0]:
                new = self.moved(name, own, width, edit)
                if new is None:
                    return None
                inputs.append(new)
            elif own < 0:
                inputs.append(name)
            elif shape[own] == 1:
                inputs.append(self.trace.view(name, (*shape[:own], *[1] * width, *shape[own + 1:])))
            else:
                inputs.append(edit(name, own))
        return self.trace.map(node.function, inputs)

    def _view(self, node: Node, axis: int, width: int, edit: Edit) -> str | None:
        """An axis that the reshape left alone, or one that it made, with others, of one axis of its input."""
        before, after = self.trace.shape(node.inputs[0]), self.trace.shape(node.output)
        group = _group(before, after, axis)
        if group is None:
            return None
        source, first, last = group
        factors = after[first:last]

        def split_and_edit(name: str, at: int) -> str:
            shape = self.trace.shape(name)
            viewed = self.trace.view(name, (*shape[:at], *factors, *shape[at + 1:]))
            return edit(viewed, at + axis - first)

        inner = self.moved(node.inputs[0], source, len(factors) - 1 + width, split_and_edit)
        if inner is None:
            return None
        shape = self.trace.shape(inner)
        start, end = source, source + len(factors) - 1 + width
        tail = (len(after) - last)
        head_shape, tail_shape = after[:first], after[len(after) - tail:]
        return self.trace.view(inner, (*head_shape, *shape[start:end], *tail_shape))


def _group(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> tuple[int, int, int] | None:
    """Return (input axis, first, last) of the output axes that a reshape makes of the one input axis that holds `axis`;
    None if it joins axes there."""
    i = j = 0
    while i < len(before) and j < len(after):
        begin_i, begin_j = i, j
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= before[i]
                i += 1
            else:
                right *= after[j]
                j += 1
        while j < len(after) and after[j] == 1 and (i >= len(before) or before[i] != 1):
            j += 1
        if begin_j <= axis < j:
            return (begin_i, begin_j, j) if i - begin_i == 1 else None
    return None


def _widened(perm: tuple[int, ...], axis: int, width: int) -> tuple[int, ...]:
    """Return a permutation in which input axis `axis` has become `width` axes that stay together."""
    result: list[int] = []
    for source in perm:
        if source == axis:
            result.extend(range(axis, axis + width))
        else:
            result.append(source if source < axis else source + width - 1)
    return tuple(result)
