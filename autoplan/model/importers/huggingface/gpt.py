"""Dense decoders in GPT's manner: LayerNorms, plain MLPs, biases; positions learned, rotary or ALiBi.

Each reader's defaults are those of the class that transformers 5 has for the model type.
"""

from __future__ import annotations

from autoplan.model.importers.huggingface.common import (
    ALL_BIASES,
    Axis,
    Fields,
    depth,
    even_heads,
    groups,
    per_layer,
    unsupported,
)
from autoplan.model.importers.keys import Keys


def _named(keys: Keys, *names: str) -> str:
    """Return which of `names` the file has, the first if none."""
    return next((name for name in names if name in keys.data), names[0])


def _stream(keys: Keys, hidden: tuple[str, ...], heads: tuple[str, ...], layers: tuple[str, ...]) -> Fields:
    """Return what all have: the width, evenly cut to heads, and the layers. Arguments: the keys' names."""
    width, count = keys.size(*hidden), keys.size(*heads)
    even_heads(keys, _named(keys, *heads), width, count)
    return {"layers": depth(keys, *layers), "hidden": width, "heads": count, "vocab_size": keys.size("vocab_size"),
            "norm": "layer", "biases": ALL_BIASES}


def gpt2(keys: Keys) -> Fields:
    """GPT-2."""
    fields = _stream(keys, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"),
                     ("n_layer", "num_hidden_layers"))
    return {**fields, "ffn": keys.optional_size("n_inner") or 4 * keys.size("n_embd", "hidden_size"),
            "tied_embeddings": keys.flag("tie_word_embeddings", default=True), "positions": "learned",
            "max_positions": keys.size("n_positions", "max_position_embeddings")}


def gpt_bigcode(keys: Keys) -> Fields:
    """SantaCoder and StarCoder: one key and value head."""
    return {**gpt2(keys), "kv_heads": 1 if keys.flag("multi_query", default=True) else None}


def gpt_neo(keys: Keys) -> Fields:
    """GPT-Neo: every other layer has a window."""
    fields = _stream(keys, ("hidden_size",), ("num_heads", "num_attention_heads"), ("num_layers", "num_hidden_layers"))
    layers = depth(keys, "num_layers", "num_hidden_layers")
    window, kinds = keys.size("window_size", absent=256), keys.texts("attention_layers")
    if kinds is None:
        if keys.has("attention_types"):
            keys.assume("global and local layers by turns (attention_layers is missing)")
        kinds = [("global", "local")[index % 2] for index in range(layers)]
    if len(kinds) != layers or not {*kinds} <= {"global", "local"}:
        raise keys.error(f"not {layers} kinds of layer", "attention_layers", "global, local")
    axis: Axis = [(kind, {"window": window if kind == "local" else None}) for kind in kinds]
    return {**fields, **per_layer(axis), "ffn": keys.optional_size("intermediate_size") or 4 * keys.size("hidden_size"),
            "tied_embeddings": keys.flag("tie_word_embeddings", default=True), "positions": "learned",
            "max_positions": keys.size("max_position_embeddings"), "biases": ("o", "mlp")}


def gptj(keys: Keys) -> Fields:
    """GPT-J and CodeGen: attention and MLP side by side on one norm."""
    hidden = keys.size("n_embd", "hidden_size")
    return {**_stream(keys, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"),
                      ("n_layer", "num_hidden_layers")),
            "ffn": keys.optional_size("n_inner") or 4 * hidden, "positions": "rotary", "residual": "parallel_shared",
            "tied_embeddings": keys.flag("tie_word_embeddings", default=False), "biases": ("mlp",), "head_bias": True,
            "max_positions": keys.optional_size("n_positions")}


def gpt_neox(keys: Keys) -> Fields:
    """GPT-NeoX and Pythia: attention and MLP side by side, behind a norm each, unless told otherwise."""
    parallel = keys.flag("use_parallel_residual", default=True)
    return {**_stream(keys, ("hidden_size",), ("num_attention_heads",), ("num_hidden_layers",)),
            "ffn": keys.size("intermediate_size"), "positions": "rotary",
            "residual": "parallel" if parallel else "serial",
            "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
            "max_positions": keys.optional_size("max_position_embeddings"),
            "biases": ALL_BIASES if keys.flag("attention_bias", default=True) else ("mlp",)}


def opt(keys: Keys) -> Fields:
    """OPT: its table of positions has two rows before the first; the smallest but one norms after each part."""
    hidden, before = keys.size("hidden_size"), keys.flag("do_layer_norm_before", default=True)
    width = keys.optional_size("word_embed_proj_dim") or hidden
    if not keys.flag("layer_norm_elementwise_affine", default=True):
        raise keys.error("norms without parameters aren't supported", "layer_norm_elementwise_affine", "true")
    return {**_stream(keys, ("hidden_size",), ("num_attention_heads",), ("num_hidden_layers",)),
            "ffn": keys.size("ffn_dim"), "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
            "positions": "learned", "max_positions": keys.size("max_position_embeddings") + 2,
            "seq_len": keys.size("max_position_embeddings"), "norms": "pre" if before else "post",
            "final_norm": before and not keys.flag("_remove_final_layer_norm", default=False),
            "embedding_width": None if width == hidden else width,
            "biases": ALL_BIASES if keys.flag("enable_bias", default=True) else ()}


def bloom(keys: Keys) -> Fields:
    """BLOOM: ALiBi; a norm after the embedding."""
    unsupported(keys, "apply_residual_connection_post_layernorm", "a residual stream taken after the norm")
    fields = _stream(keys, ("hidden_size", "n_embed"), ("n_head", "num_attention_heads"),
                     ("n_layer", "num_hidden_layers"))
    return {**fields, "ffn": 4 * keys.size("hidden_size", "n_embed"), "positions": "alibi", "embedding_norm": True,
            "tied_embeddings": keys.flag("tie_word_embeddings", default=True)}


def mpt(keys: Keys) -> Fields:
    """MPT: no biases, ALiBi."""
    attention = keys.nested("attn_config")
    hidden, heads = keys.size("d_model"), keys.size("n_heads")
    alibi = attention.flag("alibi", default=True)
    plain = keys.flag("no_bias", default=True)
    ratio = keys.number("expansion_ratio", absent=4)
    if ratio * hidden % 1:
        raise keys.error(f"makes no whole width of d_model {hidden}", "expansion_ratio")
    norm = keys.text("norm_type") or "low_precision_layernorm"
    grouped = attention.optional_size("kv_n_heads") or (1 if attention.text("attn_type") == "multiquery_attention"
                                                        else heads)
    if heads % grouped:
        raise attention.error(f"doesn't divide n_heads {heads}", "kv_n_heads")
    return {**_stream(keys, ("d_model",), ("n_heads",), ("n_layers",)), "kv_heads": grouped,
            "ffn": int(ratio * hidden), "positions": "alibi" if alibi else "learned",
            "max_positions": keys.size("max_seq_len"),
            "norm": "rms" if "rms" in norm else "layer_unbiased" if plain else "layer",
            "qk_norm": "whole" if attention.flag("qk_ln", default=False) else False,
            "tied_embeddings": keys.flag("tie_word_embeddings", default=True), "biases": () if plain else ALL_BIASES}


def falcon(keys: Keys) -> Fields:
    """Falcon, also by its first names: multi-query or grouped, attention and MLP mostly side by side."""
    unsupported(keys, "apply_residual_connection_post_layernorm", "a residual stream taken after the norm")
    heads_keys, kv_keys = ("num_attention_heads", "n_head"), ("num_kv_heads", "n_head_kv")
    fields = _stream(keys, ("hidden_size", "n_embed"), heads_keys, ("num_hidden_layers", "n_layer"))
    heads, hidden = keys.size(*heads_keys), keys.size("hidden_size", "n_embed")
    grouped = keys.flag("new_decoder_architecture", default=keys.text("model_type") == "RefinedWeb")
    if grouped:
        kv_heads, residual = groups(keys, _named(keys, *kv_keys), heads), "parallel"
        if keys.count("num_ln_in_parallel_attn", absent=2) == 1:
            residual = "parallel_shared"
    else:
        kv_heads = 1 if keys.flag("multi_query", default=True) else heads
        residual = "parallel_shared" if keys.flag("parallel_attn", default=True) else "serial"
    return {**fields, "kv_heads": kv_heads, "residual": residual,
            "ffn": keys.optional_size("ffn_hidden_size") or 4 * hidden,
            "positions": "alibi" if keys.flag("alibi", default=False) else "rotary",
            "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
            "max_positions": keys.optional_size("max_position_embeddings"),
            "biases": ALL_BIASES if keys.flag("bias", default=False) else ()}


def phi(keys: Keys) -> Fields:
    """Phi-1, 1.5 and 2: attention and MLP side by side on one norm; a bias of the head."""
    unsupported(keys, "qk_layernorm", "a LayerNorm of queries and keys")
    heads = keys.size("num_attention_heads")
    return {**_stream(keys, ("hidden_size",), ("num_attention_heads",), ("num_hidden_layers",)),
            "kv_heads": groups(keys, "num_key_value_heads", heads), "ffn": keys.size("intermediate_size"),
            "positions": "rotary", "residual": "parallel_shared", "head_bias": True,
            "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
            "max_positions": keys.optional_size("max_position_embeddings")}
