"""What the readers of families share: the usual keys, and how layers that differ are told apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from autoplan.model.importers.keys import Keys
from autoplan.model.spec import MAX_LAYERS

Fields = dict[str, object]
Axis = Sequence[tuple[str, Fields]]  # for each layer: the name of its kind, and in what it differs from the stack

ALL_BIASES = ("qkv", "o", "mlp")
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"


def depth(keys: Keys, *names: str) -> int:
    """Return the number of layers."""
    layers = keys.size(*names)
    if layers > MAX_LAYERS:
        raise keys.error("too many layers", next(name for name in names if name in keys.data), f"at most {MAX_LAYERS}")
    return layers


def even_heads(keys: Keys, heads_key: str, hidden: int, heads: int) -> None:
    """Raise InputError if the heads don't divide the width of the stream."""
    if hidden % heads:
        raise keys.error(f"doesn't divide the hidden size {hidden}, and no head_dim is given", heads_key)


def groups(keys: Keys, key: str, heads: int, absent: int | None = None) -> int:
    """Return the key and value heads under `key`. Null means as many as query heads; absent: the class's default."""
    kv_heads = keys.optional_size(key, absent=absent) or heads
    if heads % kv_heads:
        if key not in keys.data:
            raise keys.error(f"missing, and its default {kv_heads} doesn't divide the {heads} query heads", key)
        raise keys.error(f"doesn't divide num_attention_heads {heads}", key)
    return kv_heads


def unsupported(keys: Keys, key: str, what: str) -> None:
    """Raise InputError if the option `key` is on: `what` isn't supported."""
    if keys.data.get(key) not in (None, False, 0, []):
        raise keys.error(f"{what} isn't supported", key)


def modern(keys: Keys, *, kv_heads: int | None = None, head_dim: int | None = None, tied: bool = False,
           ffn: bool = True) -> Fields:
    """Return the fields of Llama and its descendants: RMSNorm, rotary positions, gated MLP, grouped heads.

    kv_heads, head_dim, tied: the class's defaults (None: as many as query heads; hidden / heads). ffn: whether the
    `intermediate_size` is the width of an MLP that all tokens pass.
    """
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    width = keys.optional_size("head_dim", absent=head_dim, null=head_dim)
    if width is None:
        even_heads(keys, "num_attention_heads", hidden, heads)
    return {
        "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "kv_heads": groups(keys, "num_key_value_heads", heads, kv_heads), "head_dim": width,
        "ffn": keys.size("intermediate_size") if ffn else None, "gated": True, "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied), "norm": "rms", "positions": "rotary",
        "max_positions": keys.optional_size("max_position_embeddings"),
    }


def attention_bias(keys: Keys, *, default: bool = False, output: bool = True) -> tuple[str, ...]:
    """Return the biases of attention. output: whether its last projection has one too."""
    return (("qkv", "o") if output else ("qkv",)) if keys.flag("attention_bias", default) else ()


def layer_types(keys: Keys, layers: int, default: Callable[[int], str], known: Collection[str]) -> list[str]:
    """Return the kind of every layer. default: the class's rule, from a layer's index to its kind."""
    kinds = keys.texts("layer_types")
    if kinds is None:
        return [default(index) for index in range(layers)]
    if len(kinds) != layers:
        raise keys.error(f"names {len(kinds)} layers of {layers}", "layer_types")
    strange = sorted(set(kinds) - set(known))
    if strange:
        raise keys.error(f"layers of the kind {strange[0]} aren't supported", "layer_types", ", ".join(sorted(known)))
    return kinds


def windows(keys: Keys, layers: int, *, absent: int | None = None, default: Callable[[int], str] | None = None) -> Axis:
    """Return each layer's sliding window.

    absent: the class's default window. default: the class's rule for kinds of layer (None: all slide if there is a
    window).
    """
    window = keys.optional_size("sliding_window", absent)
    if window is None and default is not None and keys.data.get("layer_types") is None:
        default = None  # windows are switched off
    rule = default or (lambda _: FULL if window is None else SLIDING)
    kinds = layer_types(keys, layers, rule, (FULL, SLIDING))
    if window is None and SLIDING in kinds:
        raise keys.error("missing: the window of the sliding layers", "sliding_window", "a positive integer")
    return [("sliding", {"window": window}) if kind == SLIDING else ("full", {"window": None}) for kind in kinds]


def every(period: int, kind: str, other: str) -> Callable[[int], str]:
    """Return the rule that each `period`-th layer, from the period's last on, is `kind`, and the rest are `other`."""
    return lambda index: kind if (index + 1) % period == 0 else other


def per_layer(*axes: Axis) -> Fields:
    """Return how the layers follow each other, as in model files; fields alone if all are alike.

    axes: independent ways in which layers differ, of as many layers each.
    """
    blocks: dict[str, Fields] = {}
    names: dict[str, str] = {}  # the layer's fields, as text → its name
    order = []
    for kinds in zip(*axes, strict=True):
        fields = {key: value for _, own in kinds for key, value in own.items()}
        text = repr(fields)
        if text not in names:
            title = "_".join(name for name, _ in kinds if name)
            names[text] = title if title not in blocks else f"{title}_{len(blocks)}"
            blocks[names[text]] = fields
        order.append(names[text])
    if len(blocks) == 1:
        return next(iter(blocks.values()))
    return {"blocks": blocks, "pattern": _runs(_period(order))}


def _period(order: list[str]) -> list[str]:
    """Return the shortest start of `order` that repeats, and is cut, to the whole."""
    for length in range(1, len(order)):
        if order[length:] == order[:-length]:
            return order[:length]
    return order


def _runs(order: list[str]) -> tuple[str, ...]:
    runs: list[tuple[int, str]] = []
    for name in order:
        if runs and runs[-1][1] == name:
            runs[-1] = (runs[-1][0] + 1, name)
        else:
            runs.append((1, name))
    return tuple(name if count == 1 else f"{count} {name}" for count, name in runs)
