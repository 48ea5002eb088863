"""The best reading of a decoder whose type nobody knows here, from the keys that most types share."""

from __future__ import annotations

import re

from autoplan.errors import InputError
from autoplan.model.importers.huggingface.common import FULL, SLIDING, Fields, depth, layer_types, modern, per_layer
from autoplan.model.importers.huggingface.experts import EXPERTS, latent, mixture, sparse
from autoplan.model.importers.keys import Keys

# Keys of parts that no reading from the usual keys would see: another kind of layer, or another kind of model.
_TELLING = re.compile(
    r"mamba|ssm|state_size|conv|linear_|lru|rwkv|altup|laurel|block_configs|block_types|layers_block_type|hybrid|"
    r"d_state|encoder|decoder_layers|cross_attention|attn_type_list|num_kv_shared_layers|per_layer_input|loop")
_GATED = ("silu", "swish", "gelu_pytorch_tanh", "swiglu", "geglu")


def usual(keys: Keys) -> Fields:
    """Read a decoder of an unknown type by its usual keys, and note all that this rests on."""
    model_type = keys.text("model_type")
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in needed if not keys.has(key) and key not in keys.defaults]
    if missing:
        raise InputError(f"this type of model isn't known, and without {missing[0]} it can't be guessed",
                         where=keys.where, key=keys.path + "model_type", found=model_type)
    names = keys.texts("architectures")
    if names and not names[0].endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        raise InputError("this type of model isn't known, nor is its architecture a language model's",
                         where=keys.where, key=keys.path + "architectures", found=names[0])
    strange = sorted(key for key, value in keys.data.items()
                     if _TELLING.search(key) and value not in (None, False, 0, [], "", {}) and "sparse" not in key)
    if strange:
        raise InputError("this type of model isn't known, and such a key tells of layers that can't be guessed",
                         where=keys.where, key=keys.path + strange[0], found=model_type)
    layers = depth(keys, "num_hidden_layers")
    biased = [key for key in ("attention_bias", "qkv_bias", "use_bias", "bias", "mlp_bias") if keys.flag(key, False)]
    counts = [key for key in EXPERTS if keys.count(key) > 1]
    if keys.has("kv_lora_rank"):
        fields, attention = latent(keys, q_rank=None), "latent attention"
    else:
        fields = modern(keys, ffn=not counts or keys.has("moe_intermediate_size"))
        attention = "rotary positions"
    fields |= {"norm": "layer" if _layer_norms(keys) else "rms", "gated": _gated(keys)}
    mlp = "gated MLPs" if fields["gated"] else "plain MLPs"
    said = [f"{'LayerNorms' if fields['norm'] == 'layer' else 'RMSNorms'} before attention and MLP", attention, mlp]
    fields["biases"] = tuple(dict.fromkeys(name for key in biased for name in {
        "attention_bias": ("qkv", "o"), "qkv_bias": ("qkv",), "mlp_bias": ("mlp",)}.get(key, ("qkv", "o", "mlp"))))
    said.append("biases as " + " and ".join(biased) + " name them" if biased else "no biases")
    if not keys.has("tie_word_embeddings"):
        said.append("a head of its own")
    if counts:
        fields |= _experts(keys, counts[0], layers, said)
    if keys.flag("use_qk_norm", False) or keys.flag("qk_layernorm", False) or keys.flag("qk_norm", False):
        fields["qk_norm"] = True
        said.append("a norm of each query and key head")
    window = keys.optional_size("sliding_window")
    if keys.has("layer_types"):
        kinds = layer_types(keys, layers, lambda _: FULL, (FULL, SLIDING))
        fields |= per_layer([("sliding", {"window": window}) if kind == SLIDING else ("full", {}) for kind in kinds])
    elif window is not None and keys.flag("use_sliding_window", default=True):
        fields["window"] = window
        said.append("the window in all layers")
    keys.assume(f"model_type {model_type} isn't known here: read as a decoder with {', '.join(said)}")
    return fields


def _layer_norms(keys: Keys) -> bool:
    names = [key for key in keys.data if key in ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")]
    return bool(names) and not keys.has("rms_norm_eps")


def _gated(keys: Keys) -> bool:
    activation = keys.text("hidden_act") or keys.text("hidden_activation") or "silu"
    return activation in _GATED


def _experts(keys: Keys, count: str, layers: int, said: list[str]) -> Fields:
    """Return the experts of an unknown type, adding to what was said of it."""
    expert = keys.size("moe_intermediate_size" if keys.has("moe_intermediate_size") else "intermediate_size")
    first = keys.count("first_k_dense_replace")
    shared = keys.count("n_shared_experts") * expert or keys.count("shared_expert_intermediate_size")
    said.append(f"experts in all layers from layer {first} on, {'with' if shared else 'without'} shared ones")
    moe = mixture(keys, expert, experts=(count,), top_k=("num_experts_per_tok",))
    return {**per_layer(sparse(layers, lambda index: index >= first)), "moe": {**moe, "shared_ffn": shared or None}}
