"""From a traced graph with known dims to operators.

Cheap functions don't become operators one by one: what lies between two tensors that matter (products, norms, residual
adds …) is one elementwise operator, and layout changes, casts and scales are none at all. A bias belongs to its
product, a gain to its norm. Residual adds and norms stay operators of their own, or sequence parallelism would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.errors import InputError
from autoplan.model.normalise.atoms import Atoms
from autoplan.model.normalise.attention import Core
from autoplan.model.normalise.axes import Dims, Level
from autoplan.model.normalise.draft import Draft, DraftParam, Read, Unpriced
from autoplan.model.normalise.products import convolution, einsum
from autoplan.model.normalise.trace import IDENTITY, LAYOUT, Kind, Node, Source, Trace

FEW_ROWS = 64
_ACTIVATIONS = (("gelu", ("gelu", "erf", "tanh")), ("silu", ("silu", "sigmoid")), ("relu", ("relu", "max", "clip")))


@dataclass(frozen=True)
class Expr:
    """A value as a cheap function of tensors. functions: what is computed on the way; none: the tensor as it is.

    at: the value that was computed last; what follows it is but another layout (or repeats: keys for all queries).
    """

    at: str
    sources: tuple[str, ...]
    params: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()

    @property
    def trivial(self) -> bool:
        """Whether the value is its one tensor, but for layout and scale."""
        return len(self.sources) == 1 and not self.params and not self.functions

    def then(self, node: Node, others: Iterable[Expr] = (), params: Iterable[str] = ()) -> Expr:
        """Return a node's function of this value, other values and parameters."""
        parts = (self, *others)
        return Expr(node.output, _distinct(source for part in parts for source in part.sources),
                    _distinct((*(name for part in parts for name in part.params), *params)),
                    frozenset((node.function,)).union(*(part.functions for part in parts)))


class Emitter:
    """Walks a trace and drafts its operators; `atoms` has the atoms of every tensor."""

    def __init__(self, trace: Trace, dims: Dims, cores: dict[str, Core]) -> None:
        self.trace, self.dims, self.cores = trace, dims, cores
        self.users, self.made_by = trace.users(), trace.producers()
        self.drafts: list[Draft] = []
        self.unpriced: list[Unpriced] = []
        self.exprs: dict[str, Expr] = {}
        self.by_tensor: dict[str, Draft] = {}
        self.order: dict[str, int] = {}  # tensor → how many drafts were made before its own
        self.atoms: dict[str, Atoms] = {}
        for name, value in trace.values.items():
            if value.source is Source.INPUT:
                self._tensor(name, dims.flat(name))

    def run(self) -> list[Draft]:
        """Return the operators in order."""
        for node in self.trace.nodes:
            if self.dims.levels[node.output] is Level.DATA:
                self._visit(node)
            elif self.trace.flops(node):
                self.unpriced.append(Unpriced(node.function, self.trace.flops(node), "of constants or parameters"))
        return self.drafts

    def _tensor(self, name: str, atoms: Atoms) -> None:
        self.exprs[name] = Expr(name, (name,))
        self.atoms[name] = _distinct(atoms)

    def _add(self, draft: Draft) -> None:
        self._tensor(draft.tensor, draft.output)
        draft.output = self.atoms[draft.tensor]
        if draft.kind in ("contraction", "embedding"):  # what is summed goes first, as in the built-in architectures
            summed = [atom for atom in draft.loop if atom not in draft.output]
            draft.loop = _distinct((*summed, *draft.output))
        elif draft.kind != "attention":  # whose values' width is its keys' width, by another atom
            draft.loop = _distinct((*draft.output, *draft.loop))
        self.order[draft.tensor] = len(self.drafts)
        self.drafts.append(draft)
        self.by_tensor[draft.tensor] = draft

    def _of_level(self, node: Node, level: Level) -> list[str]:
        return [name for name in node.inputs if self.dims.levels[name] is level]

    def _visit(self, node: Node) -> None:
        if node.output in self.cores:
            self._attention(node, self.cores[node.output])
        elif node.kind in LAYOUT or node.function == IDENTITY:
            self.exprs[node.output] = self.exprs[self._of_level(node, Level.DATA)[0]]
        elif node.kind is Kind.MAP:
            self._map(node)
        elif node.kind in (Kind.SLICE, Kind.CONCAT):
            self._cut_or_join(node)
        elif node.kind is Kind.EINSUM:
            self._add(self._weighted(node, einsum(self.trace, self.dims, node, self.tensor)))
        elif node.kind is Kind.CONV:
            self._add(self._weighted(node, convolution(self.trace, self.dims, node, self.tensor)))
        else:
            self._other(node)

    def _weighted(self, node: Node, draft: Draft) -> Draft:
        """Add to a product the parameters it multiplies with; its loop has their dims already."""
        for name in self._of_level(node, Level.WEIGHT):
            bias = node.kind is Kind.CONV and name in node.inputs[2:]
            self._params(draft, name, "bias" if bias else "weight", () if bias else draft.weight, after=bias)
        return draft

    def _other(self, node: Node) -> None:
        output = self.dims.flat(node.output)
        weights = self._of_level(node, Level.WEIGHT)
        if node.kind is Kind.NORM:
            draft = self._draft("norm", node, [node.inputs[0]], output)
            for name, called in zip(weights, ("weight", "bias"), strict=False):
                self._params(draft, name, called)
            axes = self.dims.of(node.output)
            draft.whole = tuple(atom for axis in node.attrs["axes"] if axis > 0 for atom in axes[axis])
        elif node.kind is Kind.GATHER and self.dims.levels[node.inputs[0]] is Level.WEIGHT:
            draft = self._look_up(node, output)
        elif node.kind is Kind.LOSS and node.function == "cross_entropy":
            draft = self._draft("loss", node, node.inputs, ())
            classes = self.dims.of(node.inputs[0])[node.attrs["axis"]]
            draft.output = tuple(atom for atom in draft.loop if atom not in classes)
        elif node.kind is Kind.LOSS:
            draft = self._draft("stream", node, node.inputs, ())
        else:
            draft = self._draft("stream", node, self._of_level(node, Level.DATA), output)
            for name in weights:
                self._params(draft, name, "weight")
            draft.whole = self._whole(node)
            if node.kind is Kind.OPAQUE:
                written = self.trace.values[node.output].numel
                self.unpriced.append(Unpriced(node.function, int(node.attrs.get("flops", written)), "not known"))
        self._add(draft)

    def _look_up(self, node: Node, output: Atoms) -> Draft:
        """Return the draft of a token embedding; a table of few rows (of token types) isn't split."""
        rows = self.dims.of(node.inputs[0])[0]
        few = self.dims.table.product(rows) <= FEW_ROWS
        draft = self._draft("stream" if few else "embedding", node, [], output)
        self._params(draft, node.inputs[0], "table")
        draft.loop = (*output, *draft.params[0].atoms)
        if few:
            draft.called = dict.fromkeys(rows, "types")
        return draft

    def _draft(self, kind: str, node: Node, data: Iterable[str], output: Atoms) -> Draft:
        """Return a draft that reads `data` and loops over all dims of what it reads."""
        tensors = _distinct(self.tensor(name) for name in data)
        loop = _distinct((*output, *(atom for tensor in tensors for atom in self.atoms[tensor])))
        return Draft(kind, node.function, node.output, [Read(tensor) for tensor in tensors], output, loop)

    def _whole(self, node: Node) -> Atoms:
        """Return the dims that a memory-bound node needs whole, because it works along them."""
        axes = self.dims.of(node.inputs[0])
        along = node.attrs.get("axes", (node.attrs["axis"],) if "axis" in node.attrs else ())
        return tuple(atom for axis in along if axis < len(axes) for atom in axes[axis])

    def _attention(self, node: Node, core: Core) -> None:
        table = self.dims.table
        q, k, v = (self.tensor(name) for name in (core.q, core.k, core.v))
        kv_heads = tuple(atom for atom in core.kv_heads if atom in self.atoms[k])
        keys = {atom: table.fresh(table.size(atom)) for atom in core.keys}
        widths = table.product(core.width), table.product(core.value_width)
        heads = core.heads or (table.fresh(1),)
        loop = (*core.batch, *core.queries, *keys.values(), *heads, *core.width)
        attrs: dict[str, int | float | bool | str] = {
            "causal": core.causal, "head_dim": widths[0], "kv_heads": table.product(kv_heads), "window": core.window}
        if widths[0] != widths[1]:
            loop = (*loop, *core.value_width)
        draft = Draft("attention", "attention", node.output, [Read(q), Read(k, keys), Read(v, keys)],
                      (*core.batch, *core.queries, *core.heads, *core.value_width), loop, attrs=attrs,
                      called={**dict.fromkeys(keys.values(), "kv_seq"), **dict.fromkeys(heads, "heads")},
                      grouped=(kv_heads, heads))
        for name in core.params:
            self._params(draft, name, "position")
        draft.flops = 2 * table.product((*core.batch, *core.heads, *core.queries, *core.keys)) * sum(widths)
        self._add(draft)

    def _map(self, node: Node) -> None:
        data, weights = self._of_level(node, Level.DATA), self._of_level(node, Level.WEIGHT)
        parts = [self.exprs[name] for name in data]
        if len(data) == 1 and not weights and node.function in ("mul", "div"):
            self.exprs[node.output] = parts[0]  # a scale, or a mask
            return
        if len(data) == 1 and len(weights) == 1 and self._absorbed(node, data[0], weights[0]):
            return
        apart = len(data) == 2 and not set(parts[0].sources) & set(parts[1].sources)
        if node.function == "add" and apart and not weights and all(
                self.trace.shape(name) == self.trace.shape(node.output) for name in data):
            draft = self._draft("elementwise", node, data, self.dims.flat(node.output))
            draft.inputs.sort(key=lambda read: self.order.get(read.tensor, -1))  # the residual stream first
            self._add(draft)
            return
        self.exprs[node.output] = parts[0].then(node, parts[1:], weights)

    def _absorbed(self, node: Node, data: str, weight: str) -> bool:
        """Give a bias to its product and a gain to its norm, where nothing else reads what they are applied to."""
        expr = self.exprs[data]
        draft = self.by_tensor.get(expr.sources[0]) if expr.trivial else None
        if draft is None or len(self._readers(expr.sources[0])) != 1:
            return False
        if draft.function == "add" and node.function == "add":
            draft = self._addend(draft)
        taken = {param.name for param in draft.params}
        product = draft.kind in ("contraction", "convolution") and node.function == "add"
        gain = draft.kind == "norm" and node.function in ("mul", "add")
        called = "weight" if gain and node.function == "mul" else "bias"
        if not (product or gain) or called in taken or not self._spans(weight, draft):
            return False
        self._params(draft, weight, called, after=product)
        self.exprs[node.output] = expr
        return True

    def _addend(self, draft: Draft) -> Draft:
        """Return the product that a residual add is alone to read: x + y + b is x + (y + b)."""
        for tensor in reversed(draft.read):
            made = self.by_tensor.get(tensor)
            if made is not None and made.kind == "contraction" and len(self._readers(tensor)) == 1:
                return made
        return draft

    def _spans(self, weight: str, draft: Draft) -> bool:
        """Whether all dims of a weight are dims of a draft's output."""
        return set(self._big(self.dims.flat(weight))) <= set(draft.output)

    def _readers(self, name: str) -> list[Node]:
        """Return the nodes that read a value, through layout changes and casts."""
        result: list[Node] = []
        for user in self.users.get(name, ()):
            passes = user.kind in LAYOUT or user.function == IDENTITY
            result.extend(self._readers(user.output) if passes else [user])
        return result

    def _cut_or_join(self, node: Node) -> None:
        data, weights = self._of_level(node, Level.DATA), self._of_level(node, Level.WEIGHT)
        parts = [self.exprs[name] for name in data]
        if node.kind is Kind.CONCAT and len({source for part in parts for source in part.sources}) > 1:
            self._other(node)
        else:
            self.exprs[node.output] = parts[0].then(node, parts[1:], weights)

    def tensor(self, name: str) -> str:
        """Return the tensor that holds a value, made by an elementwise operator where it is computed."""
        if name not in self.exprs:
            raise InputError("attention reads what neither data nor parameters make", where=self.trace.where, key=name)
        expr = self.exprs[name]
        if expr.trivial:
            return expr.sources[0]
        name = expr.at
        if self.exprs[name].trivial:
            return name
        output = _distinct(self.dims.flat(name))
        function = self._function(expr, output)
        loop = (*output, *(atom for source in expr.sources for atom in self.atoms[source]))
        draft = Draft("elementwise", function, name, [Read(source) for source in expr.sources], output, loop)
        for weight in expr.params:
            self._params(draft, weight, "position" if function == "position" else "weight")
        draft.loop = (*loop, *(atom for param in draft.params for atom in param.atoms))
        self._add(draft)
        return name

    def _function(self, expr: Expr, output: Atoms) -> str:
        """Return what an elementwise operator is called (see `autoplan.model.ops.elementwise`)."""
        made = expr.functions
        if expr.params and made == {"add"}:
            return "position"
        if len(expr.sources) == 1 and made & {"slice", "concat"} and set(output) == set(self.atoms[expr.sources[0]]):
            return "rotary"
        if made == {"slice"} and len(self._big(output)) < len(self._big(self.atoms[expr.sources[0]])):
            return "pool"  # one position of each sequence
        for called, signs in _ACTIVATIONS:
            if made.intersection(signs):
                return called
        return min(made)

    def _big(self, atoms: Atoms) -> Atoms:
        return tuple(atom for atom in atoms if self.dims.table.size(atom) > 1)

    def _params(self, draft: Draft, name: str, called: str, dims: Atoms = (), *, after: bool = False) -> None:
        """Add to a draft the parameters that a weight is made of.

        dims: the weight's as the draft loops over them, its own by default; a parameter that the weight is but a layout
        of has them too.
        """
        roots = list(dict.fromkeys(self._roots(name)))
        if called == "position":  # of which the traced sequence may need but the first rows
            roots = list(dict.fromkeys((root, "", root) for root, _, _ in roots))
        for root, part, value in roots:
            alone = len(roots) == 1 and self.trace.values[value].numel == self.trace.values[name].numel
            atoms = self._big((dims or self.dims.flat(name)) if alone else self.dims.flat(value))
            taken = {param.name for param in draft.params}
            unique = called if called not in taken else f"{called}{len(taken) + 1}"
            draft.params.append(DraftParam(unique, root + part, atoms, after_reduction=after))

    def _roots(self, name: str) -> list[tuple[str, str, str]]:
        """Return the parameters of a weight: the parameter, which part of it, and the value that has that part."""
        node = self.made_by.get(name)
        if node is None:
            return [(name, "", name)] if self.trace.values[name].source is Source.PARAM else []
        weights = self._of_level(node, Level.WEIGHT)
        if node.kind is Kind.GATHER:
            weights = weights[:1]
        roots = [root for source in weights for root in self._roots(source)]
        if node.kind is not Kind.SLICE:
            return roots
        axis = node.attrs["axis"]
        cut = f"[{axis}:{node.attrs['start']}:{self.trace.shape(name)[axis]}]"
        return [(root, part + cut, name) for root, part, _ in roots]


def _distinct(items: Iterable) -> tuple:  # type: ignore[type-arg]
    """Return the items in order, each once."""
    return tuple(dict.fromkeys(items))
