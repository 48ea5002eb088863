"""Softmaxes and norms that were written out in elementary functions become one node again."""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.model.normalise.axes import Level, levels_of
from autoplan.model.normalise.trace import IDENTITY, LAYOUT, Kind, Node, Trace

MOST_NODES = 40  # of a norm's statistics
_ROOTS = ("rsqrt", "sqrt", "pow")
_AVERAGES = ("sum", "mean", "var")


def fold(trace: Trace) -> None:
    """Replace every written-out softmax and norm by one node; what only they used is dropped."""
    folder = _Folder(trace)
    trace.replace_nodes(folder.folded)
    trace.prune()


class _Folder:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.made_by, self.levels = trace, trace.producers(), levels_of(trace)

    def folded(self, node: Node) -> Node | None:
        """Return the node that does the same as `node` and all that leads to it, if that is a softmax or a norm."""
        if node.kind is Kind.MAP and node.function in ("mul", "div") and len(node.inputs) == 2 \
                and self.levels[node.output] is Level.DATA:
            return self._softmax(node) or self._norm(node, *node.inputs) or (
                self._norm(node, *node.inputs[::-1]) if node.function == "mul" else None)
        return None

    def _strip(self, name: str, *, layout: bool = False) -> str:
        """Return what `name` is but for its dtype, and for its layout if asked."""
        while name in self.made_by:
            node = self.made_by[name]
            if not ((node.kind is Kind.MAP and node.function == IDENTITY) or (layout and node.kind in LAYOUT)):
                break
            name = node.inputs[0]
        return name

    def _softmax(self, node: Node) -> Node | None:
        """exp(x − max x) / Σ exp(x − max x)."""
        top = self._strip(node.inputs[0])
        bottom = self.made_by.get(self._strip(node.inputs[1], layout=True))
        if bottom is not None and bottom.function == "reciprocal":
            bottom = self.made_by.get(self._strip(bottom.inputs[0], layout=True))
        exp = self.made_by.get(top)
        if exp is None or exp.function != "exp" or bottom is None or (bottom.kind, bottom.function) != (
                Kind.REDUCE, "sum") or self._strip(bottom.inputs[0]) != top:
            return None
        x = self._strip(exp.inputs[0])
        shift = self.made_by.get(x)
        if shift is not None and shift.function == "sub" and self._is_maximum(shift.inputs[1]):
            x = shift.inputs[0]
        return Node(Kind.SOFTMAX, "softmax", (x,), node.output, {"axis": bottom.attrs["axes"][0]})

    def _is_maximum(self, name: str) -> bool:
        """Whether a value is a maximum over an axis, in another layout or held above a constant."""
        while name in self.made_by:
            node = self.made_by[name]
            if node.kind is Kind.REDUCE:
                return node.function == "max"
            data = [source for source in node.inputs if self.levels[source] is Level.DATA]
            if node.kind not in (*LAYOUT, Kind.MAP) or len(data) != 1:
                return False
            name = data[0]
        return False

    def _norm(self, node: Node, scaled: str, scale: str) -> Node | None:
        """(x − mean x) or x, times or over a root of an average over x; parameters on the way are the norm's."""
        top = self._strip(scaled)
        centred = self.made_by.get(top)
        options = [top]
        if centred is not None and centred.function == "sub":
            options.insert(0, self._strip(centred.inputs[0]))
        for x in options:
            if self.trace.shape(x) != self.trace.shape(node.output):
                continue
            found = self._statistics(scale, {x, top})
            if found is None or (x != top and self._statistics(self.made_by[top].inputs[1], {x}) is None):
                continue
            nodes, params = found
            rooted = any(one.function in _ROOTS for one in nodes)
            averages = [one for one in nodes if one.kind is Kind.REDUCE and one.function in _AVERAGES
                        and len(self.trace.shape(one.inputs[0])) == len(self.trace.shape(x))]
            if rooted and averages:
                function = "rms" if x == top else "layer"
                return Node(Kind.NORM, function, (x, *params), node.output, {"axes": averages[0].attrs["axes"]})
        return None

    def _statistics(self, name: str, stop: Iterable[str]) -> tuple[list[Node], list[str]] | None:
        """Return the nodes and parameters that `name` is made of, down to the values `stop`; None if of others too."""
        nodes: list[Node] = []
        params: list[str] = []
        stack, seen, ends = [name], set(), set(stop)
        while stack:
            current = stack.pop()
            if current in seen or current in ends or self.levels[current] is Level.HINT:
                continue
            seen.add(current)
            if self.levels[current] is Level.WEIGHT:
                params.append(current)
                continue
            made = self.made_by.get(current)
            if made is None or made.kind not in (Kind.MAP, Kind.REDUCE, *LAYOUT) or len(nodes) == MOST_NODES:
                return None
            nodes.append(made)
            stack.extend(made.inputs)
        return nodes, params
