"""Hugging Face `config.json` files, read without the transformers library.

A configuration is read as its class in transformers reads it: an option that is absent has that class's documented
default. The dimensions of the model have defaults there too (those of one example model), but a file without them is
broken or abridged, so they may not be missing here. What the decoder's graph can't express truly (experts, parallel
residuals, layers of different kinds, other heads than a language model's) is refused, never approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from autoplan.errors import InputError
from autoplan.model.importers.keys import Keys
from autoplan.model.spec import MAX_LAYERS, TransformerSpec
from autoplan.specs import validated

Fields = dict[str, object]

ALL_BIASES = ("qkv", "o", "mlp")

# Names of transformers' activation functions (transformers.activations.ACT2FN), and Phi-3-small's gegelu. Each is bound
# by memory and costs the same, so the graph doesn't keep which it is.
ACTIVATIONS = frozenset((
    "gegelu", "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu", "relu2", "relu6",
    "sigmoid", "silu", "swish", "tanh", "xielu",
))

# Without `model_type`, as in GPT-2's first files: a file of nothing but GPT2Config's keys is GPT-2's.
GPT2_REQUIRED = frozenset(("n_embd", "n_head", "n_layer", "n_positions", "vocab_size"))
GPT2_KEYS = GPT2_REQUIRED | {
    "activation_function", "architectures", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id",
    "initializer_range", "layer_norm_epsilon", "n_ctx", "n_inner", "n_special", "predict_special_tokens", "resid_pdrop",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "task_specific_params", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
}


def read(path: Path, name: str) -> TransformerSpec:
    """Read a `config.json`.

    path: the file. name: what to call the model.
    Raises InputError that names file and key if the file is malformed, a value is missing or wrong, or the architecture
    isn't supported yet.
    """
    return from_keys(Keys.of_json(path), name)


def from_keys(keys: Keys, name: str) -> TransformerSpec:
    """Turn the keys of a `config.json` into a spec; see `read`."""
    model_type = _model_type(keys)
    architecture, family = FAMILIES[model_type]
    _refuse_what_no_family_has(keys, architecture)
    fields = {"name": name, "source": f"Hugging Face config.json ({model_type})", **family(keys)}
    return validated(TransformerSpec, fields, keys.where)


def _model_type(keys: Keys) -> str:
    model_type = keys.text("model_type")
    if model_type is None and keys.data.keys() >= GPT2_REQUIRED and keys.data.keys() <= GPT2_KEYS:
        return "gpt2"
    supported = ", ".join(sorted(FAMILIES))
    if model_type is None:
        raise InputError("missing", where=keys.where, key="model_type", allowed=supported)
    if model_type not in FAMILIES:
        raise keys.error("this architecture isn't supported yet", "model_type", supported)
    return model_type


def _refuse_what_no_family_has(keys: Keys, architecture: str) -> None:
    """Raise InputError if the file asks for more than a dense decoder with a language model's head."""
    architectures = keys.texts("architectures")
    if architectures and architecture not in architectures:
        raise keys.error("this architecture isn't supported yet", "architectures", architecture)
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if keys.flag(key, default=False):
            raise keys.error("cross-attention isn't supported yet", key, "false")
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        if keys.text(key, allowed := ", ".join(sorted(ACTIVATIONS))) not in {None, *ACTIVATIONS}:
            raise keys.error("unknown activation function", key, allowed)
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if keys.data.get(key) not in (None, 0, 1):
            raise keys.error("mixtures of experts aren't supported yet", key)
    for key in ("text_config", "vision_config", "audio_config", "pruned_heads", "block_configs"):
        if keys.data.get(key):
            raise InputError("models of several or uneven parts aren't supported yet", where=keys.where, key=key)


def _layers(keys: Keys, *names: str) -> int:
    layers = keys.size(*names)
    if layers > MAX_LAYERS:
        raise keys.error("too many layers", next(name for name in names if name in keys.data), f"at most {MAX_LAYERS}")
    return layers


def _even_heads(keys: Keys, heads_key: str, hidden: int, heads: int) -> None:
    if hidden % heads:
        raise keys.error(f"doesn't divide the hidden size {hidden}, and no head_dim is given", heads_key)


def _window(keys: Keys, absent: int | None, slides: bool) -> int | None:
    """Return the window of every layer. absent: the class's default. slides: whether the model has windows at all."""
    window = keys.optional_size("sliding_window", absent) if slides else None
    kinds = set(keys.texts("layer_types") or ())
    if kinds == {"full_attention"}:
        return None
    if kinds and (window is None or kinds != {"sliding_attention"}):
        raise keys.error("layers of these kinds aren't supported yet", "layer_types", "full_attention in all layers")
    return window


def _modern(keys: Keys, *, kv_heads: int | None = None, head_dim: int | None = None, tied: bool = False,
            slides: bool = False, window: int | None = None) -> Fields:
    """Return the fields of Llama and its descendants: RMSNorm, rotary positions, gated MLP, grouped heads.

    kv_heads, head_dim, tied, window: the class's defaults (None: as many as query heads; hidden / heads; no window). A
    null `num_key_value_heads` means the query heads in each of these classes. slides: whether it may have a window.
    """
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    width = keys.optional_size("head_dim", absent=head_dim, null=head_dim)
    if width is None:
        _even_heads(keys, "num_attention_heads", hidden, heads)
    groups = keys.optional_size("num_key_value_heads", absent=kv_heads) or heads
    if heads % groups:
        if "num_key_value_heads" not in keys.data:
            raise keys.error(f"missing, and its default {groups} doesn't divide num_attention_heads {heads}",
                             "num_key_value_heads")
        raise keys.error(f"doesn't divide num_attention_heads {heads}", "num_key_value_heads")
    return {
        "layers": _layers(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads, "kv_heads": groups,
        "head_dim": width, "ffn": keys.size("intermediate_size"), "gated": True, "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied), "norm": "rms", "positions": "rotary",
        "max_positions": keys.optional_size("max_position_embeddings"), "window": _window(keys, window, slides),
    }


def _attention_bias(keys: Keys) -> tuple[str, ...]:
    return ("qkv", "o") if keys.flag("attention_bias", default=False) else ()


def _llama(keys: Keys) -> Fields:
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**_modern(keys), "biases": (*_attention_bias(keys), *mlp)}


def _mistral(keys: Keys) -> Fields:
    return _modern(keys, kv_heads=8, slides=True, window=4096)


def _qwen_slides(keys: Keys) -> bool:
    """Qwen slides a window only if told to, and then in the layers from `max_window_layers` on."""
    slides = keys.flag("use_sliding_window", default=False)
    if not slides or keys.data.get("layer_types") is not None:
        return slides
    full, layers = keys.data.get("max_window_layers", 28), _layers(keys, "num_hidden_layers")
    if isinstance(full, bool) or not isinstance(full, int) or full < 0:
        raise keys.error("not a number of layers", "max_window_layers", "a whole number")
    if 0 < full < layers:
        raise keys.error("full and windowed layers in one model aren't supported yet", "max_window_layers",
                         f"0, or at least num_hidden_layers {layers}")
    return full == 0


def _qwen2(keys: Keys) -> Fields:
    return {**_modern(keys, kv_heads=32, slides=_qwen_slides(keys), window=4096), "biases": ("qkv",)}


def _qwen3(keys: Keys) -> Fields:
    fields = _modern(keys, kv_heads=32, head_dim=128, slides=_qwen_slides(keys), window=4096)
    return {**fields, "biases": _attention_bias(keys), "qk_norm": True}


def _gemma(keys: Keys) -> Fields:
    return {**_modern(keys, kv_heads=16, head_dim=256, tied=True), "biases": _attention_bias(keys)}


def _phi3(keys: Keys) -> Fields:
    return _modern(keys, slides=True)


def _gpt2(keys: Keys) -> Fields:
    hidden, heads = keys.size("n_embd", "hidden_size"), keys.size("n_head", "num_attention_heads")
    _even_heads(keys, "n_head" if "n_head" in keys.data else "num_attention_heads", hidden, heads)
    return {
        "layers": _layers(keys, "n_layer", "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "ffn": keys.optional_size("n_inner") or 4 * hidden, "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True), "norm": "layer", "positions": "learned",
        "max_positions": keys.size("n_positions", "max_position_embeddings"), "biases": ALL_BIASES,
    }


def _gpt_bigcode(keys: Keys) -> Fields:
    return {**_gpt2(keys), "kv_heads": 1 if keys.flag("multi_query", default=True) else None}


def _gpt_neox(keys: Keys) -> Fields:
    if keys.flag("use_parallel_residual", default=True):
        raise InputError("attention and MLP in parallel aren't supported yet", where=keys.where,
                         key="use_parallel_residual", found=True, allowed="false")
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    _even_heads(keys, "num_attention_heads", hidden, heads)
    return {
        "layers": _layers(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "ffn": keys.size("intermediate_size"), "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False), "norm": "layer", "positions": "rotary",
        "max_positions": keys.optional_size("max_position_embeddings"),
        "biases": ALL_BIASES if keys.flag("attention_bias", default=True) else ("mlp",),
    }


def _bloom(keys: Keys) -> Fields:
    if keys.flag("apply_residual_connection_post_layernorm", default=False):
        raise keys.error("a residual stream taken after the norm isn't supported yet",
                         "apply_residual_connection_post_layernorm", "false")
    hidden, heads = keys.size("hidden_size", "n_embed"), keys.size("n_head", "num_attention_heads")
    _even_heads(keys, "n_head" if "n_head" in keys.data else "num_attention_heads", hidden, heads)
    return {
        "layers": _layers(keys, "n_layer", "num_hidden_layers"), "hidden": hidden, "heads": heads, "ffn": 4 * hidden,
        "vocab_size": keys.size("vocab_size"), "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "norm": "layer", "positions": "alibi", "embedding_norm": True, "biases": ALL_BIASES,
    }


FAMILIES: Mapping[str, tuple[str, Callable[[Keys], Fields]]] = {
    "bloom": ("BloomForCausalLM", _bloom),
    "gemma": ("GemmaForCausalLM", _gemma),
    "gpt2": ("GPT2LMHeadModel", _gpt2),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", _gpt_bigcode),
    "gpt_neox": ("GPTNeoXForCausalLM", _gpt_neox),
    "llama": ("LlamaForCausalLM", _llama),
    "mistral": ("MistralForCausalLM", _mistral),
    "phi3": ("Phi3ForCausalLM", _phi3),
    "qwen2": ("Qwen2ForCausalLM", _qwen2),
    "qwen3": ("Qwen3ForCausalLM", _qwen3),
}
