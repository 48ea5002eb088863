"""Decoders with mixtures of experts, but for those that mix kinds of layers (`hybrid`).

Each reader's defaults are those of the class that transformers 5 has for the model type, or of the published code that
comes with the checkpoints (Grok, Kimi, MiniMax), recalled.
"""

from __future__ import annotations

from collections.abc import Callable

from autoplan.model.importers.huggingface.common import (
    ALL_BIASES,
    CHUNKED,
    FULL,
    SLIDING,
    Axis,
    Fields,
    attention_bias,
    depth,
    every,
    groups,
    layer_types,
    modern,
    per_layer,
    unsupported,
    windows,
)
from autoplan.model.importers.huggingface.llama import qwen_windows, rotary_layers
from autoplan.model.importers.keys import Keys

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def mixture(keys: Keys, ffn: int, *, experts: tuple[str, ...] = EXPERTS[:2], absent: int | None = None,
            top_k: tuple[str, ...] = ("num_experts_per_tok",), top_k_absent: int | None = None) -> Fields:
    """Return the experts. ffn: each one's width. experts, top_k: the keys of the counts, absent: their defaults."""
    return {"experts": keys.size(*experts, absent=absent), "top_k": keys.size(*top_k, absent=top_k_absent), "ffn": ffn}


def sparse(layers: int, chosen: Callable[[int], bool]) -> Axis:
    """Return which layers have experts, and which a dense MLP."""
    return [("moe", {"mlp": "moe"}) if chosen(index) else ("dense", {"mlp": "dense"}) for index in range(layers)]


def mixtral(keys: Keys) -> Fields:
    """Mixtral."""
    fields = modern(keys, kv_heads=8, ffn=False)
    moe = mixture(keys, keys.size("intermediate_size"), absent=8, top_k_absent=2)
    return {**fields, **per_layer(windows(keys, depth(keys, "num_hidden_layers"))), "moe": moe}


def phimoe(keys: Keys) -> Fields:
    """Phi-3.5-MoE: LayerNorms, biases in attention and head."""
    fields = mixtral(keys) | {"norm": "layer", "biases": attention_bias(keys),
                              "head_bias": keys.flag("lm_head_bias", default=False)}
    longest = keys.optional_size("max_position_embeddings")
    if longest is not None and fields.get("window") is not None and keys.count("sliding_window") >= longest:
        fields["window"] = None  # a window that holds every sequence
    return fields


def qwen_sparse(keys: Keys, layers: int) -> Axis:
    """Return which layers of Qwen have experts: each `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step, dense = keys.size("decoder_sparse_step", absent=1), set(keys.counts("mlp_only_layers") or ())
    return sparse(layers, lambda index: index not in dense and (index + 1) % step == 0)


def qwen2_moe(keys: Keys) -> Fields:
    """Qwen 1.5 and 2 with experts: a gated shared expert."""
    layers = depth(keys, "num_hidden_layers")
    shared = keys.size("shared_expert_intermediate_size", absent=5632)
    moe = mixture(keys, keys.size("moe_intermediate_size", absent=1408), absent=60, top_k_absent=4)
    return {**modern(keys, kv_heads=16), **per_layer(qwen_sparse(keys, layers), qwen_windows(keys, layers)),
            "biases": ("qkv",) if keys.flag("qkv_bias", default=True) else (),
            "moe": {**moe, "shared_ffn": shared, "shared_gate": True}}


def qwen3_moe(keys: Keys) -> Fields:
    """Qwen 3 with experts."""
    layers = depth(keys, "num_hidden_layers")
    moe = mixture(keys, keys.size("moe_intermediate_size", absent=768), absent=128, top_k_absent=8)
    return {**modern(keys, kv_heads=4, head_dim=128 if keys.has("head_dim") else None),
            **per_layer(qwen_sparse(keys, layers), qwen_windows(keys, layers)),
            "biases": attention_bias(keys), "qk_norm": True, "moe": moe}


def olmoe(keys: Keys) -> Fields:
    """OLMoE."""
    moe = mixture(keys, keys.size("intermediate_size"), absent=64, top_k_absent=8)
    return {**modern(keys, ffn=False), "biases": attention_bias(keys), "qk_norm": "whole", "moe": moe}


def granitemoe(keys: Keys) -> Fields:
    """Granite with experts, perhaps a shared one too."""
    moe = mixture(keys, keys.size("intermediate_size"), absent=8, top_k_absent=2)
    shared = keys.count("shared_intermediate_size")
    return {**modern(keys, ffn=False), "biases": attention_bias(keys), "moe": {**moe, "shared_ffn": shared or None}}


def gpt_oss(keys: Keys) -> Fields:
    """gpt-oss: biases throughout, sinks, every other layer with a window."""
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=128, default=every(2, FULL, SLIDING))
    top_k = ("num_experts_per_tok", "experts_per_token")
    moe = mixture(keys, keys.size("intermediate_size"), absent=128, top_k=top_k, top_k_absent=4)
    return {**modern(keys, kv_heads=8, head_dim=64, ffn=False), **per_layer(axis), "sinks": True, "moe": moe,
            "biases": (*attention_bias(keys, default=True), "mlp", "router")}


def dbrx(keys: Keys) -> Fields:
    """DBRX: LayerNorms without biases."""
    attention, ffn = keys.nested("attn_config"), keys.nested("ffn_config")
    hidden, heads = keys.size("d_model"), keys.size("n_heads")
    moe = {"experts": ffn.size("moe_num_experts"), "top_k": ffn.size("moe_top_k"), "ffn": ffn.size("ffn_hidden_size")}
    return {
        "layers": depth(keys, "n_layers"), "hidden": hidden, "heads": heads, "gated": True,
        "kv_heads": groups(attention, "kv_n_heads", heads, 1), "moe": moe, "vocab_size": keys.size("vocab_size"),
        "norm": "layer_unbiased", "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
        "max_positions": keys.optional_size("max_seq_len"),
    }


def grok(keys: Keys) -> Fields:
    """Grok 1: norms around each part; the head is the embedding's table."""
    moe = mixture(keys, keys.size("moe_intermediate_size", "intermediate_size"))
    return {**modern(keys, tied=True, ffn=False), "norms": "sandwich", "moe": moe}


def deepseek(keys: Keys) -> Fields:
    """DeepSeek V2 and V3, Kimi K2: latent attention, first layers dense, shared experts, modules for further tokens."""
    layers, v3 = depth(keys, "num_hidden_layers"), keys.text("model_type") != "deepseek_v2"
    experts = keys.optional_size("n_routed_experts")
    fields = latent(keys, q_rank=1536)
    if experts is None:
        return fields
    first, step = keys.count("first_k_dense_replace"), keys.size("moe_layer_freq", absent=1)
    axis = sparse(layers, lambda index: index >= first and index % step == 0)
    return {**fields, **per_layer(axis), "moe": _deepseek_experts(keys, score_bias=v3),
            "mtp": keys.count("num_nextn_predict_layers")}


def latent(keys: Keys, *, q_rank: int | None, tied: bool = False) -> Fields:
    """Return the fields of a decoder with latent attention. q_rank: its class's default; null: queries of full rank."""
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    mla = {"q_rank": keys.optional_size("q_lora_rank", absent=q_rank), "kv_rank": keys.size("kv_lora_rank"),
           "nope_dim": keys.size("qk_nope_head_dim"), "rope_dim": keys.size("qk_rope_head_dim"),
           "v_dim": keys.size("v_head_dim", absent=hidden // heads)}
    if not keys.has("v_head_dim"):
        keys.assume(f"v_head_dim {hidden // heads}, that is hidden_size / num_attention_heads")
    return {
        "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads, "mla": mla,
        "ffn": keys.size("intermediate_size"), "gated": True, "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied), "biases": attention_bias(keys),
        "max_positions": keys.optional_size("max_position_embeddings"),
    }


def _deepseek_experts(keys: Keys, *, score_bias: bool) -> Fields:
    """Return DeepSeek's experts; the shared ones count as one wide MLP."""
    ffn = keys.size("moe_intermediate_size")
    shared = keys.count("n_shared_experts") * ffn
    return {**mixture(keys, ffn, experts=("n_routed_experts",)), "shared_ffn": shared or None,
            "score_bias": score_bias}


def minicpm3(keys: Keys) -> Fields:
    """MiniCPM 3: latent attention in a dense decoder; the head is the embedding's table unless told otherwise."""
    return latent(keys, q_rank=768, tied=True)


def glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5 and 4.6: DeepSeek's experts with grouped attention."""
    first = keys.count("first_k_dense_replace", absent=1)
    axis = sparse(depth(keys, "num_hidden_layers"), lambda index: index >= first)
    return {**modern(keys, kv_heads=8), **per_layer(axis), "biases": attention_bias(keys, output=False),
            "qk_norm": keys.flag("use_qk_norm", default=False), "moe": _deepseek_experts(keys, score_bias=True),
            "mtp": keys.count("num_nextn_predict_layers", absent=1)}


def dots1(keys: Keys) -> Fields:
    """dots.llm1."""
    layers, first = depth(keys, "num_hidden_layers"), keys.count("first_k_dense_replace")
    axis = sparse(layers, lambda index: index >= first)
    return {**modern(keys), **per_layer(axis), "biases": attention_bias(keys), "qk_norm": True,
            "moe": _deepseek_experts(keys, score_bias=True)}


def minimax_m2(keys: Keys) -> Fields:
    """MiniMax M2: norms of all queries and all keys."""
    moe = mixture(keys, keys.size("intermediate_size"), absent=256, top_k_absent=8)
    shared = keys.count("shared_intermediate_size")
    mtp = keys.count("num_mtp_modules", absent=1) if keys.flag("use_mtp", default=False) else 0
    if keys.count("mtp_transformer_layers", absent=1) > 1:
        raise keys.error("modules of several layers aren't supported", "mtp_transformer_layers", "1")
    whole = keys.text("qk_norm_type") in (None, "per_layer")
    return {**modern(keys, kv_heads=8, head_dim=128, ffn=False),
            "qk_norm": ("whole" if whole else True) if keys.flag("use_qk_norm", default=True) else False, "mtp": mtp,
            "moe": {**moe, "shared_ffn": shared or None, "score_bias": keys.flag("use_routing_bias", default=True)}}


def ernie_moe(keys: Keys) -> Fields:
    """ERNIE 4.5 with experts, in part of the layers."""
    layers = depth(keys, "num_hidden_layers")
    start, step = keys.count("moe_layer_start_index", absent=1), keys.size("moe_layer_interval", absent=1)
    end = layers - 1 if keys.data.get("moe_layer_end_index") in (None, -1) else keys.count("moe_layer_end_index")
    ffn = keys.size("moe_intermediate_size")
    moe = mixture(keys, ffn, experts=("moe_num_experts",), top_k=("moe_k", "num_experts_per_tok"))
    shared = keys.count("moe_num_shared_experts", absent=2) * ffn
    axis = sparse(layers, lambda index: (index + 1) % step == 0 and start <= index <= end)
    return {**modern(keys, kv_heads=4, tied=True), **per_layer(axis), "moe": {**moe, "shared_ffn": shared or None,
            "score_bias": True}, "biases": ALL_BIASES if keys.flag("use_bias", default=False) else ()}


def llama4(keys: Keys) -> Fields:
    """Llama 4: attention in chunks with positions, in each fourth layer full without; one shared expert."""
    layers, chunk = depth(keys, "num_hidden_layers"), keys.optional_size("attention_chunk_size", absent=8192)
    rotary = rotary_layers(keys, layers)
    kinds = layer_types(keys, layers, lambda index: CHUNKED if chunk and rotary[index][0] == "rotary" else FULL,
                        (CHUNKED, FULL))
    unscaled = keys.flag("use_qk_norm", default=True)
    attention: Axis = [
        (f"{'chunked' if kind == CHUNKED else 'full'}" + ("" if name == "rotary" else "_nope"), {
            **fields, "chunk": chunk if kind == CHUNKED else None,
            "qk_norm": "unscaled" if unscaled and name == "rotary" else False,
        }) for kind, (name, fields) in zip(kinds, rotary, strict=True)]
    step = keys.size("interleave_moe_layer_step", absent=1)
    chosen = keys.counts("moe_layers")
    experts = set(range(step - 1, layers, step) if chosen is None else chosen)
    expert = keys.size("intermediate_size")
    moe = {**mixture(keys, expert, absent=16, top_k_absent=1), "shared_ffn": expert}
    fields = modern(keys, kv_heads=8, head_dim=128)
    return {**fields, **per_layer(attention, sparse(layers, experts.__contains__)), "moe": moe,
            "ffn": keys.size("intermediate_size_mlp", absent=16384), "biases": attention_bias(keys)}


def gemma4(keys: Keys) -> Fields:
    """Gemma 4 text: wider heads, and perhaps keys that are the values, in the full layers; experts beside the MLP."""
    unsupported(keys, "hidden_size_per_layer_input", "an embedding of each layer's own")
    unsupported(keys, "num_kv_shared_layers", "sharing keys and values between layers")
    layers, heads = depth(keys, "num_hidden_layers"), keys.size("num_attention_heads")
    window = keys.size("sliding_window", absent=512)
    kinds = layer_types(keys, layers, every(6, FULL, SLIDING), (FULL, SLIDING))
    fields = modern(keys, kv_heads=4, head_dim=256, tied=True)
    same = keys.flag("attention_k_eq_v", default=False)
    full: Fields = {"window": None, "head_dim": keys.size("global_head_dim", absent=512), "keys_are_values": same}
    if same and keys.has("num_global_key_value_heads"):
        full["kv_heads"] = groups(keys, "num_global_key_value_heads", heads)
    axis: Axis = [("full", full) if kind == FULL else ("sliding", {"window": window}) for kind in kinds]
    moe = None
    if keys.flag("enable_moe_block", default=False):
        moe = {**mixture(keys, keys.size("moe_intermediate_size"), top_k=("top_k_experts",)),
               "shared_ffn": keys.size("intermediate_size")}
        keys.leave_out("the norms around Gemma's experts")
    return {**fields, **per_layer(axis), "norms": "sandwich", "qk_norm": True, "moe": moe,
            "biases": attention_bias(keys)}
