"""The operator graph of a model for other programs: GraphML, DOT, or node-link JSON."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from autoplan.errors import InputError
from autoplan.model.facts import default_seq_len
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, ModelGraph, Op

if TYPE_CHECKING:
    import networkx as nx

FORMATS = ("graphml", "dot", "json")


def operator_graph(graph: ModelGraph) -> nx.MultiDiGraph[str]:
    """Return all operators of all layers as a networkx graph.

    A node `LAYER.OPERATOR` has: operator, kind, layer (its number), layer_class, dims (`name=size`), parameters, and
    flops (of one sequence of the model's default length, forward). An edge is a tensor that one operator makes and
    another reads, with its name and dims; residual streams and carried tensors run from layer to layer.
    """
    import networkx as nx

    from autoplan.model import ops

    seq_len = default_seq_len(graph)
    sizes = {BATCH: 1, SEQ: seq_len, KV_SEQ: seq_len}
    result: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=graph.name, seq_len=seq_len)
    stream: dict[str, str] = {}  # what a layer calls a tensor from outside → the node that made it
    for number in range(graph.num_layers):
        layer = graph.layer(number)
        made = dict(stream)
        for op in layer.ops:
            node = f"{number}.{op.name}"
            result.add_node(node, operator=op.name, kind=op.kind, layer=number, layer_class=layer.name, dims=_dims(op),
                            parameters=sum(op.numel(param) for param in op.params),
                            flops=int(ops.flops(op, sizes | op.static_sizes)))
            for operand in op.inputs:
                if operand.tensor in made:
                    result.add_edge(made[operand.tensor], node, tensor=operand.tensor, dims=",".join(operand.dims))
            made[op.output.tensor] = node
        stream = {operand.tensor: made[operand.tensor] for operand in layer.carried if operand.tensor in made}
        if layer.output is not None:
            stream["x"] = made[layer.output.tensor]
    return result


def text_of(graph: ModelGraph, form: str) -> str:
    """Return a model's operator graph as text. form: one of `FORMATS`. Raises InputError for another."""
    if form not in FORMATS:
        raise InputError("unknown format of a graph", where="--graph", found=f".{form}",
                         allowed=", ".join(f".{one}" for one in FORMATS))
    import networkx as nx

    made = operator_graph(graph)
    if form == "json":
        return json.dumps(nx.node_link_data(made, edges="edges"), indent=1, ensure_ascii=False) + "\n"
    if form == "dot":
        return _dot(made)
    stream = io.BytesIO()
    nx.write_graphml(made, stream)
    return stream.getvalue().decode() + "\n"


def _dims(op: Op) -> str:
    return " ".join(dim.name if dim.size is None else f"{dim.name}={dim.size}" for dim in op.dims)


def _dot(made: nx.MultiDiGraph[str]) -> str:
    """Return the graph in Graphviz's language; each layer is a cluster."""
    layers: dict[int, list[str]] = {}
    for node, data in made.nodes(data=True):
        layers.setdefault(data["layer"], []).append(node)
    lines = [f"digraph {_quoted(made.graph['name'])} {{", "  node [shape=box];"]
    for number, nodes in layers.items():
        label = _quoted(f"{number} {made.nodes[nodes[0]]['layer_class']}")
        lines += [f"  subgraph cluster_{number} {{", f"    label={label};"]
        for node in nodes:
            data = made.nodes[node]
            title = _quoted(f"{data['operator']}\\n{data['kind']} {data['dims']}")
            lines.append(f"    {_quoted(node)} [label={title}];")
        lines.append("  }")
    lines += [f"  {_quoted(a)} -> {_quoted(b)} [label={_quoted(data['tensor'])}];"
              for a, b, data in made.edges(data=True)]
    return "\n".join([*lines, "}", ""])


def _quoted(text: Any) -> str:
    escaped = str(text).replace('"', '\\"')
    return f'"{escaped}"'
