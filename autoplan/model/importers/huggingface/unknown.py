"""The best reading of a decoder whose type nobody knows here, from the keys that most types share."""

from __future__ import annotations

import re

from autoplan.errors import InputError
from autoplan.model.importers.huggingface.common import ALL_BIASES, Axis, Fields, depth, modern, per_layer, windows
from autoplan.model.importers.huggingface.experts import EXPERTS, latent, mixture, sparse
from autoplan.model.importers.keys import Keys

# Keys of parts that no reading from the usual keys would see: another kind of layer, or another kind of model.
_TELLING = re.compile(
    r"mamba|ssm|state_size|conv|linear_|lru|rwkv|altup|laurel|block_configs|block_types|layers_block_type|hybrid|"
    r"d_state|encoder|decoder_layers|cross_attention|attn_type_list|mlp_only_layers|layer_period|num_kv_shared_layers|"
    r"per_layer_input|loop")
_STEPS = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")
_LAYER_NORM = ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")
_BIASES = {"attention_bias": ("qkv", "o"), "qkv_bias": ("qkv",), "use_bias": ALL_BIASES, "bias": ALL_BIASES,
           "mlp_bias": ("mlp",)}
_GATED = ("silu", "swish", "gelu_pytorch_tanh", "swiglu", "geglu")


def usual(keys: Keys) -> Fields:
    """Read a decoder of an unknown type by its usual keys, and note all that this rests on."""
    model_type = keys.text("model_type")
    _refuse_strangers(keys, model_type)
    layers = depth(keys, "num_hidden_layers")
    count = next((key for key in EXPERTS if keys.count(key) > 1), None)
    if keys.has("kv_lora_rank"):
        fields = latent(keys, q_rank=None)
    else:
        fields = modern(keys, ffn=count is None or keys.has("moe_intermediate_size"))
    layer_norm = any(map(keys.has, _LAYER_NORM)) and not keys.has("rms_norm_eps")
    gated = (keys.text("hidden_act") or keys.text("hidden_activation") or "silu") in _GATED
    biased = [key for key in _BIASES if keys.flag(key, default=False)]
    qk_norm = any(keys.flag(key, default=False) for key in ("use_qk_norm", "qk_layernorm", "qk_norm"))
    fields |= {"norm": "layer" if layer_norm else "rms", "gated": gated, "qk_norm": qk_norm,
               "biases": tuple(dict.fromkeys(name for key in biased for name in _BIASES[key]))}
    said = [
        f"{'LayerNorms' if layer_norm else 'RMSNorms'} before attention and MLP",
        "latent attention" if keys.has("kv_lora_rank") else "rotary positions",
        "gated MLPs" if gated else "plain MLPs",
        f"biases as {' and '.join(biased)} name them" if biased else "no biases",
    ]
    if qk_norm:
        said.append("a norm of each query and key head")
    if not keys.has("tie_word_embeddings"):
        said.append("a head of its own")
    axes: list[Axis] = []
    if keys.has("layer_types") or (keys.has("sliding_window") and keys.flag("use_sliding_window", default=True)):
        axes.append(windows(keys, layers))
        said.append("windows in the layers that layer_types names" if keys.has("layer_types") else
                    "the window in all layers")
    if count is not None:
        first = keys.count("first_k_dense_replace")
        axes.append(sparse(layers, lambda index: index >= first))
        moe = fields["moe"] = _experts(keys, count)
        said.append(f"experts in all layers from layer {first} on, {'with' if moe['shared_ffn'] else 'without'} "
                    "shared ones")
    if keys.count("num_nextn_predict_layers"):
        keys.leave_out("modules that predict further tokens (num_nextn_predict_layers)")
    keys.assume(f"model_type {model_type} isn't known here: read as a decoder with {', '.join(said)}")
    return {**fields, **(per_layer(*axes) if axes else {})}


def _refuse_strangers(keys: Keys, model_type: str | None) -> None:
    """Raise InputError if the usual keys are missing, or others tell that they don't tell all."""
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
                     if _TELLING.search(key) and value not in (None, False, 0, [], "", {}))
    strange += [key for key in _STEPS if keys.size(key, absent=1) != 1]
    if strange:
        raise InputError("this type of model isn't known, and such a key tells of layers that can't be guessed",
                         where=keys.where, key=keys.path + strange[0], found=model_type)


def _experts(keys: Keys, count: str) -> Fields:
    """Return the experts of an unknown type, whose number is under the key `count`."""
    expert = keys.size("moe_intermediate_size" if keys.has("moe_intermediate_size") else "intermediate_size")
    shared = (keys.count("n_shared_experts") or keys.count("num_shared_experts")) * expert
    shared = shared or keys.count("shared_expert_intermediate_size")
    moe = mixture(keys, expert, experts=(count,), top_k=("num_experts_per_tok",))
    return {**moe, "shared_ffn": shared or None}
