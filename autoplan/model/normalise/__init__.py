"""From a traced graph that nobody here wrote to a model graph: a chain of layers of known operators with named dims.

    trace ─ constants ─ loss ─ unfuse ─ fold ─► dims (atoms) ─► attention ─► operators ─► names ─► layers

Each step is a module. What can't be understood is refused, or stays as an operator whose time isn't known and is listed
with its share of the FLOPs. The FLOPs of the result are compared with those of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.errors import InputError
from autoplan.model import ops
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, ModelGraph
from autoplan.model.normalise.attention import Core, cores
from autoplan.model.normalise.axes import Dims, Level, dims_of, mark_masks, promote_constants
from autoplan.model.normalise.chain import layers_of
from autoplan.model.normalise.draft import Draft, Unpriced
from autoplan.model.normalise.emit import Emitter
from autoplan.model.normalise.fold import fold
from autoplan.model.normalise.loss import end_in_loss
from autoplan.model.normalise.names import Finisher, Names, key_tensors, names_of
from autoplan.model.normalise.trace import Kind, Node, Trace
from autoplan.model.normalise.unfuse import unfuse

IMAGES = 256  # of a step, by default where a model has no sequence, as ResNets were trained (He et al., 2015)
TOLERANCE = 1e-3  # of FLOPs that may get lost or be counted twice

__all__ = ["Trace", "normalise"]


def normalise(trace: Trace, name: str, source: str) -> ModelGraph:
    """Turn a trace into a model graph.

    name: of the model. source: the front end, for people. Raises InputError where the graph can't be understood, or the
    result would not have the trace's FLOPs.
    """
    trace.prune()
    mark_masks(trace)
    promote_constants(trace)
    end_in_loss(trace)
    unfuse(trace)
    fold(trace)
    dims = dims_of(trace)
    found = cores(trace, dims)
    whole = sum(trace.flops(node) for node in trace.nodes)
    if whole == 0:
        raise InputError("multiplies no matrices", where=trace.where)
    _put_attention(trace, found)
    emitter = Emitter(trace, dims, found)
    drafts = emitter.run()
    names = names_of(trace, dims, found.values(), drafts)
    _note_loops(trace, dims, names)
    finish = Finisher(dims, names, emitter.atoms)
    numel = {tensor: dims.table.product(atoms) for tensor, atoms in emitter.atoms.items()}
    classes, layers = layers_of(drafts, finish, numel, key_tensors(drafts))
    graph = ModelGraph(name, classes, layers)
    sizes = _traced_sizes(names, finish, drafts)
    counted = sum(ops.flops(op, sizes | op.static_sizes) for index in layers for op in classes[index].ops)
    apart = sum(one.flops for one in emitter.unpriced if one.why != "not known")
    if abs(counted + apart - whole) > TOLERANCE * max(whole, 1):
        raise InputError(f"its operators can't be told apart: {counted:.6g} FLOPs were understood of {whole:.6g}",
                         where=trace.where)
    facts = _facts(graph, sizes, source) | _unpriced(emitter.unpriced, whole)
    if trace.assumed:
        facts["assumed"] = "; ".join(dict.fromkeys(trace.assumed))
    return ModelGraph(name, classes, layers, facts)


def _put_attention(trace: Trace, found: Mapping[str, Core]) -> None:
    """Let the node that ends each attention read Q, K, V alone, so that what lies between is dropped."""
    def change(node: Node) -> Node | None:
        core = found.get(node.output)
        if core is None:
            return None
        return Node(Kind.ATTENTION, "attention", (core.q, core.k, core.v, *core.params), node.output,
                    {"causal": core.causal})

    trace.replace_nodes(change)
    trace.prune()


def _note_loops(trace: Trace, dims: Dims, names: Names) -> None:
    """Note where positions are treated one by one: then the graph is that of the traced length alone."""
    single = sum(node.kind is Kind.SLICE and dims.levels[node.output] is Level.DATA
                 and trace.shape(node.output)[node.attrs["axis"]] == 1
                 and dims.of(node.inputs[0])[node.attrs["axis"]] == names.sequence for node in trace.nodes)
    length = dims.table.product(names.sequence)
    if single >= length > 1:
        trace.assumed.append(f"it loops over its sequence: only plans for {length} tokens are right")


def _traced_sizes(names: Names, finish: Finisher, drafts: Sequence[Draft]) -> dict[str, int]:
    table = finish.dims.table
    batch = [atom for atom, called in names.of.items() if called == BATCH]
    seq = table.product(names.sequence) if names.sequence else 1
    return {BATCH: max((table.size(atom) for atom in batch), default=1), SEQ: seq, KV_SEQ: seq}


def _facts(graph: ModelGraph, sizes: dict[str, int], source: str) -> dict[str, int | float | bool | str]:
    """Return what is known of the whole model: widths that all layers agree on, the traced sequence length."""
    facts: dict[str, int | float | bool | str] = {"source": source, "seq_len": sizes[SEQ]}
    for name in ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions"):
        found = {size for layer in graph.classes for op in layer.ops
                 for size in ([op.static_sizes[name]] if name in op.static_sizes else
                              [int(op.attr(name) or 0)] if op.attr(name) else [])}
        if len(found) == 1:
            facts["max_positions" if name == "positions" else name] = found.pop()
    facts["seq_len"] = min(int(facts["seq_len"]), int(facts.get("max_positions", facts["seq_len"])))
    if sizes[SEQ] == 1:
        facts["global_batch_size"] = IMAGES
    return facts


def _unpriced(unpriced: Sequence[Unpriced], whole: int) -> dict[str, int | float | bool | str]:
    """Return the operators without a price, each with its share of the FLOPs."""
    total: dict[tuple[str, str], int] = {}
    for one in unpriced:
        total[one.name, one.why] = total.get((one.name, one.why), 0) + one.flops
    if not total:
        return {}
    every = max(1, whole + sum(flops for (_, why), flops in total.items() if why == "not known"))
    words = [f"{name} ({why}; {100 * flops / every:.2g} % of FLOPs)" for (name, why), flops in total.items()]
    return {"unpriced": ", ".join(words), "unpriced_share": sum(total.values()) / every}

