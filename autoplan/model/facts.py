"""Facts of a model, counted on its graph: parameters, model FLOPs, key/value cache."""

from __future__ import annotations

import math

from autoplan.model.graph import BATCH, EXPERTS, KV_SEQ, SEQ, TOKEN_DIMS, LayerClass, ModelGraph, Op

DEFAULT_SEQ_LEN = 8192  # tokens, where a model allows more and names no length of its own


def parameters(graph: ModelGraph) -> dict[str, int]:
    """Count parameters; one tied to another layer's counts there, once.

    total: of the model, without the modules that only training has (mtp), as it is published. active: those that a
    token passes through (all of them in a dense model, `top_k` of the experts). embedding, layers, head: the parts of
    the total in the layers that look up tokens or cut images to patches, that end in the loss, and between. experts:
    those of all experts, and mtp: of the modules that predict further tokens; each only where there are any.
    """
    parts = {"embedding": 0, "layers": 0, "head": 0, "mtp": 0}
    experts = active_experts = 0
    for index in graph.layers:
        layer = graph.classes[index]
        parts[_part(layer)] += layer.num_params()
        if _part(layer) != "mtp":
            for op in layer.ops:
                numel = sum(op.numel(param) for param in op.params) if op.kind == "experts" else 0
                experts += numel
                active_experts += numel * int(op.attr("top_k") or 1) // op.static_sizes.get(EXPERTS, 1)
    mtp = parts.pop("mtp")
    total = sum(parts.values())
    some = {"experts": experts, "mtp": mtp}
    return {"total": total, "active": total - experts + active_experts, **parts,
            **{name: count for name, count in some.items() if count}}


def forward_flops_per_token(graph: ModelGraph, seq_len: int) -> int:
    """Return the model FLOPs of one token's forward pass in a sequence of `seq_len` tokens, whole FLOPs.

    What a sequence has once (its images, an encoder's input of fixed length) is shared by its tokens. Each operator's
    family counts its own (`autoplan.model.ops`): a contraction takes 2 · ∏(its loop dims other than tokens), an
    attention 4 · heads · head_dim · keys, where every token meets all `seq_len` keys (at most a window of them) though
    a causal mask hides half; look-ups, norms and elementwise work count as nothing. This is the convention of MFU
    (PaLM, Chowdhery et al., 2022, appendix B), whose 6N + 12LHQT for forward and backward is three times this.
    """
    from autoplan.model import ops  # imports numpy, which facts alone don't need

    sizes = {BATCH: 1, SEQ: seq_len, KV_SEQ: seq_len}
    per_class = [sum(ops.flops(op, sizes | op.static_sizes) for op in layer.ops) for layer in graph.classes]
    return sum(per_class[index] for index in graph.layers) // seq_len


def unmasked_flops_per_token(graph: ModelGraph, seq_len: int) -> float:
    """Return `forward_flops_per_token` without what a causal mask hides: what no kernel can do without.

    Over a sequence of s tokens with a window of w (s where there is none) a token attends to w − w²/2s keys on average,
    in chunks of c to c/2.
    """
    from autoplan.model import ops

    per_class = [0.0] * len(graph.classes)
    for index, layer in enumerate(graph.classes):
        for op in layer.ops:
            if op.kind == "attention" and op.attr("causal"):
                seen = min(int(op.attr("window") or op.attr("chunk") or seq_len), seq_len)
                keys = seen / 2 if op.attr("chunk") else seen - seen**2 / (2 * seq_len)
                per_class[index] += keys * ops.flops(op, {BATCH: 1, SEQ: 1, KV_SEQ: 1} | op.static_sizes)
            else:
                sizes = {BATCH: 1, SEQ: seq_len, KV_SEQ: seq_len} | op.static_sizes
                per_class[index] += ops.flops(op, sizes) / seq_len
    return sum(per_class[index] for index in graph.layers)


def kv_elements_per_token(graph: ModelGraph) -> int:
    """Return the elements of keys and values that a token adds to the cache, over all layers."""
    per_class = [sum(_kv_elements(op) for op in layer.ops) for layer in graph.classes]
    return sum(per_class[index] for index in graph.layers)


def default_seq_len(graph: ModelGraph) -> int:
    """Return the model's own training length, else the shorter of its longest and `DEFAULT_SEQ_LEN`."""
    own, longest = graph.facts.get("seq_len"), graph.facts.get("max_positions")
    if isinstance(own, int):
        return own
    return min(longest, DEFAULT_SEQ_LEN) if isinstance(longest, int) else DEFAULT_SEQ_LEN


def describe(graph: ModelGraph) -> dict[str, object]:
    """Return what there is to tell about a model, ready for JSON.

    FLOPs are for sequences of `seq_len` tokens (see `default_seq_len`), those of a class for one of its layers.
    `kv_bytes_per_token` is for a cache of 16-bit elements.
    """
    seq_len = default_seq_len(graph)
    alone = [ModelGraph(layer.name, (layer,), (0,)) for layer in graph.classes]
    return {
        "name": graph.name,
        "facts": dict(graph.facts),
        "parameters": parameters(graph),
        "seq_len": seq_len,
        "forward_flops_per_token": forward_flops_per_token(graph, seq_len),
        "kv_bytes_per_token": 2 * kv_elements_per_token(graph),
        "num_layers": graph.num_layers,
        "classes": [
            {"name": layer.name, "key": layer.key, "layers": graph.layers.count(index), "operators": len(layer.ops),
             "parameters": layer.num_params(), "parameters_with_tied": layer.num_params(tied=True),
             "forward_flops_per_token": forward_flops_per_token(alone[index], seq_len)}
            for index, layer in enumerate(graph.classes)
        ],
    }


def _part(layer: LayerClass) -> str:
    if layer.output is None:
        return "head"
    if layer.name == "mtp":
        return "mtp"
    reads = layer.input is None or any(op.kind == "embedding" for op in layer.ops)
    return "embedding" if reads else "layers"


def _kv_elements(op: Op) -> int:
    """Elements of the keys and values of an attention that grows with the tokens, or what is cached in their place."""
    if op.kind != "attention" or not op.attr("causal"):
        return 0
    if op.attr("cached") is not None:
        return int(op.attr("cached") or 0)
    sizes = op.static_sizes | {name: value for name, value in op.attrs if isinstance(value, int)}
    return sum(
        math.prod(sizes[name] for name in operand.dims if name not in (*TOKEN_DIMS, KV_SEQ))
        for operand in op.inputs if KV_SEQ in operand.dims
    )
