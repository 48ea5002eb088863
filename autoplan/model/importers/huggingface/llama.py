"""Dense decoders that descend from Llama: RMSNorm before each part, rotary positions, gated MLPs; or nearly so.

Each reader's defaults are those of the class that transformers 5 has for the model type, or of the published code that
comes with the checkpoints (Baichuan, ChatGLM, InternLM, MiniCPM, Phi-3-small, Qwen 1), recalled.
"""

from __future__ import annotations

from autoplan.model.importers.huggingface.common import (
    ALL_BIASES,
    FULL,
    SLIDING,
    Axis,
    Fields,
    attention_bias,
    depth,
    even_heads,
    every,
    groups,
    modern,
    per_layer,
    windows,
)
from autoplan.model.importers.keys import Keys


def llama(keys: Keys) -> Fields:
    """Llama 1 to 3, Yi, Granite, Falcon 3, Helium, DeepSeek LLM."""
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys), "biases": (*attention_bias(keys), *mlp)}


def mllama(keys: Keys) -> Fields:
    """Llama 3.2 Vision's decoder: in some layers attention to the image stands in the place of self-attention."""
    layers = depth(keys, "num_hidden_layers")
    crossing = set(keys.counts("cross_attention_layers") or range(3, 40, 5))
    axis: Axis = [("cross", {"mixer": "cross"}) if index in crossing else ("self", {"mixer": "attention"})
                  for index in range(layers)]
    return {**modern(keys, kv_heads=8), **per_layer(axis)}


def mistral(keys: Keys) -> Fields:
    """Mistral 7B and its successors."""
    fields = modern(keys, kv_heads=8)
    return {**fields, **per_layer(windows(keys, depth(keys, "num_hidden_layers"), absent=4096))}


def ministral(keys: Keys) -> Fields:
    """Ministral 8B: three layers with a window, then one without."""
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=4096, default=every(4, FULL, SLIDING))
    return {**modern(keys, kv_heads=8), **per_layer(axis)}


def qwen_windows(keys: Keys, layers: int) -> Axis:
    """Return each layer's window: Qwen slides only if told to, and then in the layers from `max_window_layers` on."""
    if not keys.flag("use_sliding_window", default=False):
        return [("full", {"window": None})] * layers
    full = keys.count("max_window_layers", absent=28)
    return windows(keys, layers, absent=4096, default=lambda index: SLIDING if index >= full else FULL)


def qwen1(keys: Keys) -> Fields:
    """Qwen 1, whose `intermediate_size` counts gate and up projections together."""
    ffn = keys.size("intermediate_size")
    if ffn % 2:
        raise keys.error("odd: it counts both inner projections of the MLP", "intermediate_size")
    return {**modern(keys), "ffn": ffn // 2, "biases": ("qkv",), "head_dim": keys.optional_size("kv_channels"),
            "max_positions": keys.optional_size("max_position_embeddings")}


def qwen2(keys: Keys) -> Fields:
    """Qwen 2 and 2.5."""
    axis = qwen_windows(keys, depth(keys, "num_hidden_layers"))
    return {**modern(keys, kv_heads=32), **per_layer(axis), "biases": ("qkv",)}


def qwen3(keys: Keys) -> Fields:
    """Qwen 3."""
    axis = qwen_windows(keys, depth(keys, "num_hidden_layers"))
    fields = modern(keys, kv_heads=32, head_dim=128)
    return {**fields, **per_layer(axis), "biases": attention_bias(keys), "qk_norm": True}


def gemma(keys: Keys) -> Fields:
    """Gemma 1."""
    return {**modern(keys, kv_heads=16, head_dim=256, tied=True), "biases": attention_bias(keys)}


def gemma2(keys: Keys) -> Fields:
    """Gemma 2: norms around each part; every other layer slides."""
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=4096, default=every(2, FULL, SLIDING))
    return {**modern(keys, kv_heads=4, head_dim=256, tied=True), **per_layer(axis), "norms": "sandwich",
            "biases": attention_bias(keys)}


def gemma3(keys: Keys) -> Fields:
    """Gemma 3 text: five layers with a window, then one without; norms of queries and keys."""
    period = keys.size("sliding_window_pattern", "_sliding_window_pattern", absent=6)
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=4096, default=every(period, FULL, SLIDING))
    return {**modern(keys, kv_heads=4, head_dim=256, tied=True), **per_layer(axis), "norms": "sandwich",
            "qk_norm": True, "biases": attention_bias(keys)}


def phi3(keys: Keys) -> Fields:
    """Phi-3, Phi-3.5 mini and Phi-4."""
    return {**modern(keys), **per_layer(windows(keys, depth(keys, "num_hidden_layers")))}


def phi3small(keys: Keys) -> Fields:
    """Phi-3-small: LayerNorms and biases; gegelu."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    even_heads(keys, "num_attention_heads", hidden, heads)
    if keys.has("blocksparse_block_size"):
        keys.assume("block-sparse attention is priced as dense attention")
    return {
        "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "kv_heads": groups(keys, "num_key_value_heads", heads, 8), "ffn": keys.size("ff_intermediate_size"),
        "gated": True, "vocab_size": keys.size("vocab_size"), "norm": "layer", "biases": ALL_BIASES,
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "max_positions": keys.optional_size("max_position_embeddings"),
    }


def cohere(keys: Keys) -> Fields:
    """Command R: attention and MLP side by side on one norm; norms of each head by itself."""
    return {**modern(keys, tied=True), "norm": "layer_unbiased", "residual": "parallel_shared",
            "qk_norm": "whole" if keys.flag("use_qk_norm", default=False) else False, "biases": attention_bias(keys)}


def cohere2(keys: Keys) -> Fields:
    """Command R7B and A: three layers with a window, then one without window and positions."""
    period = keys.size("sliding_window_pattern", "_sliding_window_pattern", absent=4)
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=4096, default=every(period, FULL, SLIDING))
    full = [(name, {**fields, "positions": "rotary" if fields["window"] else "none"}) for name, fields in axis]
    return {**modern(keys, tied=True), **per_layer(full), "norm": "layer_unbiased", "residual": "parallel_shared",
            "biases": attention_bias(keys)}


def olmo(keys: Keys) -> Fields:
    """OLMo: norms without parameters."""
    return {**modern(keys), "norm": "unscaled", "biases": attention_bias(keys)}


def olmo2(keys: Keys) -> Fields:
    """OLMo 2 and 3: norms after each part; norms of all queries and of all keys. The third has windows."""
    layers = depth(keys, "num_hidden_layers")
    olmo3 = keys.text("model_type") == "olmo3"
    axis = windows(keys, layers, absent=4096, default=every(4, FULL, SLIDING)) if olmo3 else [("", {})] * layers
    return {**modern(keys), **per_layer(axis), "norms": "output", "qk_norm": "whole", "biases": attention_bias(keys)}


def stablelm(keys: Keys) -> Fields:
    """StableLM: LayerNorms; perhaps side by side."""
    parallel = keys.flag("use_parallel_residual", default=False)
    return {**modern(keys, kv_heads=32), "norm": "layer", "residual": "parallel_shared" if parallel else "serial",
            "biases": ("qkv",) if keys.flag("use_qkv_bias", default=False) else (),
            "qk_norm": "whole" if keys.flag("qk_layernorm", default=False) else False}


def starcoder2(keys: Keys) -> Fields:
    """StarCoder 2: LayerNorms and a plain MLP."""
    axis = windows(keys, depth(keys, "num_hidden_layers"))
    return {**modern(keys, kv_heads=2, tied=True), **per_layer(axis), "norm": "layer", "gated": False,
            "biases": ALL_BIASES if keys.flag("use_bias", default=True) else ()}


def nemotron(keys: Keys) -> Fields:
    """Nemotron 4 and Minitron: LayerNorms and a plain MLP."""
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys), "norm": "layer", "gated": False, "biases": (*attention_bias(keys), *mlp)}


def glm(keys: Keys) -> Fields:
    """GLM-4 in transformers' format, and GLM-4-0414, which has norms around each part."""
    return {**modern(keys, kv_heads=2, head_dim=128), "biases": attention_bias(keys, default=True, output=False),
            "norms": "sandwich" if keys.text("model_type") == "glm4" else "pre"}


def chatglm(keys: Keys) -> Fields:
    """ChatGLM 2 and 3 and GLM-4 in their own format."""
    heads, wide = keys.size("num_attention_heads"), keys.flag("add_bias_linear", default=False)
    kv_heads = heads
    if keys.flag("multi_query_attention", default=False):
        kv_heads = groups(keys, "multi_query_group_num", heads, 1)
    qkv = ("qkv",) if keys.flag("add_qkv_bias", default=False) else ()
    return {
        "layers": depth(keys, "num_layers"), "hidden": keys.size("hidden_size"), "heads": heads, "kv_heads": kv_heads,
        "head_dim": keys.size("kv_channels", absent=128), "ffn": keys.size("ffn_hidden_size"), "gated": True,
        "vocab_size": keys.size("padded_vocab_size", "vocab_size"), "biases": ALL_BIASES if wide else qkv,
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
        "norm": "rms" if keys.flag("rmsnorm", default=True) else "layer",
        "final_norm": keys.flag("post_layer_norm", default=True), "max_positions": keys.optional_size("seq_length"),
    }


def smollm3(keys: Keys) -> Fields:
    """SmolLM 3: every fourth layer has no positions."""
    layers = depth(keys, "num_hidden_layers")
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys, kv_heads=4, tied=True),
            **per_layer(rotary_layers(keys, layers), qwen_windows(keys, layers)),
            "biases": (*attention_bias(keys), *mlp)}


def rotary_layers(keys: Keys, layers: int) -> Axis:
    """Return which layers have rotary positions: those marked 1 in `no_rope_layers`, or all but each fourth."""
    marks = keys.counts("no_rope_layers")
    if not marks:
        period = keys.size("no_rope_layer_interval", absent=4)
        marks = [int((index + 1) % period != 0) for index in range(layers)]
    if len(marks) != layers:
        raise keys.error(f"marks {len(marks)} layers of {layers}", "no_rope_layers")
    return [("rotary", {"positions": "rotary"}) if mark else ("nope", {"positions": "none"}) for mark in marks]


def exaone4(keys: Keys) -> Fields:
    """EXAONE 4: norms after each part; some layers with a window."""
    written = isinstance(keys.data.get("sliding_window_pattern"), str)  # as LLLG, which is the default
    period = 4 if written else keys.size("sliding_window_pattern", absent=4)
    axis = windows(keys, depth(keys, "num_hidden_layers"), absent=4096, default=every(period, FULL, SLIDING))
    return {**modern(keys), **per_layer(axis), "norms": "output", "qk_norm": True}


def ernie(keys: Keys) -> Fields:
    """ERNIE 4.5, dense."""
    biases = ALL_BIASES if keys.flag("use_bias", default=False) else ()
    return {**modern(keys, kv_heads=2, head_dim=128, tied=True), "biases": biases}


def seed_oss(keys: Keys) -> Fields:
    """Seed-OSS."""
    output = ("o",) if keys.flag("attention_out_bias", default=False) else ()
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys, kv_heads=8, head_dim=128),
            "biases": (*attention_bias(keys, default=True, output=False), *output, *mlp)}


def hunyuan(keys: Keys) -> Fields:
    """Hunyuan, dense: norms of queries and keys."""
    return {**modern(keys), "qk_norm": True, "biases": attention_bias(keys)}


def internlm(keys: Keys) -> Fields:
    """InternLM 1, 2 and 3: the first has biases in attention unless told otherwise."""
    first = keys.text("model_type") == "internlm"
    attention = ("qkv", "o") if keys.flag("bias", default=first) else ()
    qkv = ("qkv",) if keys.flag("qkv_bias", default=False) else ()
    return {**modern(keys), "biases": attention or qkv}


def baichuan(keys: Keys) -> Fields:
    """Baichuan 1 and 2: the models of 13 billion parameters, 5120 wide, have ALiBi."""
    fields = modern(keys)
    if fields["hidden"] == 4096:
        return fields
    keys.assume("ALiBi, as in Baichuan's code for all widths but 4096")
    return {**fields, "positions": "alibi", "max_positions": keys.optional_size("model_max_length")}


def minicpm(keys: Keys) -> Fields:
    """MiniCPM 1 and 2: the head is the embedding's table unless told otherwise."""
    return modern(keys, tied=True)
