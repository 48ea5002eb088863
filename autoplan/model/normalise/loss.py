"""What a graph is trained for: the part of a trace that ends in a loss is found, or a loss is added to its output."""

from __future__ import annotations

from autoplan.errors import InputError
from autoplan.model.normalise.axes import Level, levels_of
from autoplan.model.normalise.trace import LAYOUT, Kind, Node, Source, Trace

_HEAVY = (Kind.EINSUM, Kind.CONV, Kind.ATTENTION)
WORDS = {"cross_entropy": "softmax cross-entropy", "squares": "a mean of squares"}
_LOGARITHMIC = ("exp", "log", "log_softmax", "logsumexp", "softplus")


def end_in_loss(trace: Trace) -> None:
    """Leave only what the loss needs, as one node LOSS at the end.

    A scalar output is the loss, and all that a training step computes besides (gradients, the update) is dropped: the
    planner prices the backward pass itself. Without one the first output that depends on data is what is trained, by
    softmax cross-entropy if it is a projection, else by a mean of squares.
    """
    levels = levels_of(trace)
    data = [name for name in trace.outputs if levels[name] is Level.DATA]
    if not data:
        raise InputError("no output depends on both the model's inputs and its parameters", where=trace.where)
    scalars = [name for name in data if trace.shape(name) == ()]
    shapes = {value.shape for value in trace.values.values() if value.source is Source.PARAM}
    if not scalars and all(trace.shape(name) in shapes for name in data):
        raise InputError("returns gradients and no loss, by which the forward pass is found", where=trace.where,
                         allowed="a training step that returns its loss too (`value_and_grad`)")
    root = scalars[0] if scalars else data[0]
    before = sum(trace.flops(node) for node in trace.nodes)
    trace.outputs = [root]
    trace.prune()
    lost = before - sum(trace.flops(node) for node in trace.nodes)
    logits, function, axis = (*_tail(trace, levels, root), -1) if scalars else _added(trace, levels, root)
    axis %= max(1, len(trace.shape(logits)))
    shape = [size for index, size in enumerate(trace.shape(logits)) if index != axis]
    trace.outputs = [trace.add(Kind.LOSS, function, (logits,), shape, output="loss", axis=axis)]
    trace.prune()
    if not scalars:
        trace.assumed.append(f"its output is trained by {WORDS[function]}")
        if lost:
            trace.assumed.append(f"its other outputs aren't trained ({100 * lost / before:.2g} % of its FLOPs)")


def _tail(trace: Trace, levels: dict[str, Level], root: str) -> tuple[str, str]:
    """Return the tensor that the scalar `root` is made of by cheap functions alone, and which loss that is."""
    made_by = trace.producers()
    order = {node.output: index for index, node in enumerate(trace.nodes)}
    stack, region, ends = [root], set(), set()
    while stack:
        name = stack.pop()
        if levels[name] is not Level.DATA or name in region:
            continue
        node = made_by.get(name)
        if node is None or node.kind in (*_HEAVY, Kind.NORM, Kind.CONCAT, Kind.OPAQUE) or _embeds(node, levels):
            ends.add(name)
            continue
        region.add(name)
        stack.extend(node.inputs)
    if not ends:
        raise InputError("its loss depends on no product of data and parameters", where=trace.where)
    last = max(ends, key=lambda name: order.get(name, -1))
    logarithmic = any(made_by[name].function in _LOGARITHMIC or made_by[name].kind in (Kind.SOFTMAX, Kind.LOSS)
                      for name in region)
    return _with_bias(trace, levels, last, region), "cross_entropy" if logarithmic else "squares"


def _embeds(node: Node, levels: dict[str, Level]) -> bool:
    return node.kind is Kind.GATHER and levels[node.inputs[0]] is Level.WEIGHT


def _with_bias(trace: Trace, levels: dict[str, Level], name: str, region: set[str]) -> str:
    """Return `name` after the bias, casts and soft cap that follow it, before it is used twice."""
    users = trace.users()
    while True:
        readers = users.get(name, [])
        if len(readers) != 1 or readers[0].kind not in (Kind.MAP, *LAYOUT) or readers[0].output not in region:
            return name
        if readers[0].kind is Kind.MAP and readers[0].function not in ("add", "identity", "mul", "div", "tanh"):
            return name
        if sum(levels[source] is Level.DATA for source in readers[0].inputs) != 1:
            return name
        name = readers[0].output


def _added(trace: Trace, levels: dict[str, Level], root: str) -> tuple[str, str, int]:
    """Return what a loss is added to, which loss, and the axis of classes: a final softmax is part of it."""
    made_by = trace.producers()
    name = root
    while name in made_by:
        node = made_by[name]
        if node.kind is Kind.EINSUM:
            weighted = any(levels[source] is Level.WEIGHT for source in node.inputs)
            return root, "cross_entropy" if weighted else "squares", -1
        if node.kind is Kind.SOFTMAX:
            return node.inputs[0], "cross_entropy", node.attrs["axis"]
        data = [source for source in node.inputs if levels[source] is Level.DATA]
        if node.kind not in (Kind.MAP, *LAYOUT) or len(data) != 1:
            break
        name = data[0]
    return root, "squares", -1
