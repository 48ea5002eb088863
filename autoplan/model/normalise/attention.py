"""softmax(Q·Kᵀ)·V becomes one attention node, whatever scales, masks, reshapes and casts are in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.model.normalise.atoms import Atoms
from autoplan.model.normalise.axes import Dims, Level
from autoplan.model.normalise.trace import LAYOUT, Kind, Node, Source, Trace

_TRIANGLES = ("ge", "gt", "le", "lt", "tril", "triu", "Trilu")  # functions that causal masks are made by
_BETWEEN = (*LAYOUT, Kind.MAP)


@dataclass(frozen=True)
class Core:
    """An attention core by its dims. Names of Q, K, V; the atoms of batch, query and key heads, queries, keys, widths.

    params: parameters added to the scores (relative position biases).
    """

    q: str
    k: str
    v: str
    batch: Atoms
    heads: Atoms
    kv_heads: Atoms
    queries: Atoms
    keys: Atoms
    width: Atoms
    value_width: Atoms
    causal: bool
    window: int
    params: tuple[str, ...]


def cores(trace: Trace, dims: Dims) -> dict[str, Core]:
    """Return the attention cores by the name of their output (of the product with V, or of an attention node)."""
    finder = _Finder(trace, dims)
    found = {}
    for node in trace.nodes:
        if node.kind is Kind.SOFTMAX and dims.levels[node.output] is Level.DATA:
            matched = finder.written_out(node)
            if matched is not None:
                found[matched[0]] = matched[1]
        elif node.kind is Kind.ATTENTION:
            found[node.output] = finder.fused(node)
    return found


class _Finder:
    def __init__(self, trace: Trace, dims: Dims) -> None:
        self.trace, self.dims = trace, dims
        self.made_by, self.users = trace.producers(), trace.users()
        self.input_atoms = {atom for name, value in trace.values.items()
                            if value.source in (Source.TOKENS, Source.INPUT) for atom in dims.flat(name)}

    def fused(self, node: Node) -> Core:
        """Return the core of an attention node [.., heads, seq, width]."""
        q, k, v = (self.dims.of(name) for name in node.inputs[:3])
        return Core(node.inputs[0], node.inputs[1], node.inputs[2],
                    batch=tuple(atom for axis in q[:-3] for atom in axis), heads=q[-3], kv_heads=k[-3],
                    queries=q[-2], keys=k[-2], width=q[-1], value_width=v[-1],
                    causal=bool(node.attrs["causal"]) or any(self._is_causal(mask) for mask in node.inputs[3:]),
                    window=int(node.attrs.get("window", 0)),
                    params=tuple(name for name in node.inputs[3:] if self.dims.levels[name] is Level.WEIGHT))

    def written_out(self, softmax: Node) -> tuple[str, Core] | None:
        """Return the output and the core around a softmax, None if it isn't one."""
        scores = self._product_before(softmax.inputs[0])
        product = self._product_after(softmax.output)
        if scores is None or product is None:
            return None
        first, params, masks = scores
        last, probabilities = product
        over = self.dims.of(softmax.output)[softmax.attrs["axis"]]
        sides = self._sides(first, over)
        if sides is None:
            return None
        q, k, queries, keys, shared, width = sides
        v = last.inputs[1 - probabilities]
        values = self.dims.flat(v)
        batch = tuple(atom for atom in shared if atom in self.input_atoms)
        kv_heads = tuple(atom for atom in shared if atom not in batch)
        # A dim of Q beside its positions counts the heads of a group where it is none that the inputs have.
        group = tuple(atom for atom in queries if len(queries) > 1 and atom not in self.input_atoms)
        positions = tuple(atom for atom in queries if atom not in group)
        heads = tuple(atom for atom in self.dims.flat(q) if atom in kv_heads or atom in group)
        value_width = tuple(atom for atom in values if atom not in keys and atom not in shared)
        if not width or not positions or not value_width or not set(keys) <= set(values):
            return None
        return last.output, Core(q, k, v, batch, heads, kv_heads, positions, keys, width, value_width, window=0,
                                 causal=any(self._is_causal(mask) for mask in masks), params=params)

    def _sides(self, product: Node, over: Atoms) -> tuple[str, str, Atoms, Atoms, Atoms, Atoms] | None:
        """Return Q, K, and the atoms of queries, keys, what both have and what is summed; None if `over` isn't K's."""
        names = dict(zip(("a", "b"), product.inputs, strict=True))
        axes = {side: dict(zip(product.attrs[side], self.dims.of(name), strict=True)) for side, name in names.items()}
        output = dict(zip(product.attrs["out"], self.dims.of(product.output), strict=True))
        label = next((label for label, axis in output.items() if axis == over), None)
        side = next((side for side in "ba" if label in axes[side] and label not in axes["ab"[side == "a"]]), None)
        if side is None or label is None:
            return None
        other = "ab"[side == "a"]

        def atoms(chosen: Iterable[int], of: str) -> Atoms:
            return tuple(atom for one in chosen for atom in axes[of][one])

        both = [one for one in axes[other] if one in axes[side]]
        return (names[other], names[side], atoms((one for one in axes[other] if one not in both), other),
                axes[side][label], atoms((one for one in both if one in output), other),
                atoms((one for one in both if one not in output), other))

    def _product_before(self, name: str) -> tuple[Node, tuple[str, ...], tuple[str, ...]] | None:
        """Return the product of two data tensors that scores come from, with the parameters and masks on the way."""
        params: list[str] = []
        masks: list[str] = []
        while name in self.made_by:
            node = self.made_by[name]
            if node.kind is Kind.EINSUM:
                both = all(self.dims.levels[source] is Level.DATA for source in node.inputs)
                return (node, tuple(params), tuple(masks)) if both else None
            if node.kind not in _BETWEEN:
                return None
            data = [source for source in node.inputs if self.dims.levels[source] is Level.DATA]
            if len(data) > 1:
                data = [source for source in data if self._leads_to_product(source)]
            if len(data) != 1:
                return None
            params += [source for source in node.inputs if self.dims.levels[source] is Level.WEIGHT]
            masks += [source for source in node.inputs if self.dims.levels[source] is Level.HINT]
            name = data[0]
        return None

    def _leads_to_product(self, name: str) -> bool:
        while name in self.made_by and self.made_by[name].kind in _BETWEEN:
            data = [source for source in self.made_by[name].inputs if self.dims.levels[source] is Level.DATA]
            if len(data) != 1:
                return False
            name = data[0]
        return name in self.made_by and self.made_by[name].kind is Kind.EINSUM

    def _product_after(self, name: str) -> tuple[Node, int] | None:
        """Return the product that probabilities go into, and which operand they are."""
        while True:
            users = self.users.get(name, [])
            if len(users) != 1:
                return None
            node = users[0]
            if node.kind is Kind.EINSUM:
                index = node.inputs.index(name)
                return (node, index) if self.dims.levels[node.inputs[1 - index]] is Level.DATA else None
            if node.kind not in _BETWEEN:
                return None
            name = node.output

    def _is_causal(self, mask: str) -> bool:
        """Whether a mask compares positions of queries with those of keys, or cuts a triangle."""
        stack, seen = [mask], set()
        while stack:
            name = stack.pop()
            if name in seen or name not in self.made_by:
                continue
            seen.add(name)
            node = self.made_by[name]
            if node.function in _TRIANGLES and self._spans_square(name):
                return True
            stack.extend(node.inputs)
        return False

    def _spans_square(self, name: str) -> bool:
        shape = [size for size in self.trace.shape(name) if size > 1]
        return len(shape) >= 2 and shape[-1] == shape[-2]
