"""Hugging Face `config.json` files, read without the transformers library.

A configuration is read as its class in transformers reads it: an option that is absent has that class's default. The
dimensions of the model have defaults there too (those of one example model), but a file without them is broken or
abridged, so they may not be missing here; only a nested `text_config` may leave them out, as transformers writes it.
What the graph can't express truly is refused, or left out and said so; so is what a file of an unknown type is taken
for.
"""

from __future__ import annotations

from pathlib import Path

from autoplan.errors import InputError
from autoplan.model.importers.huggingface.common import FULL, Fields
from autoplan.model.importers.huggingface.families import FAMILIES, REFUSED, Family
from autoplan.model.importers.huggingface.multimodal import MULTIMODAL, PARTS, multimodal
from autoplan.model.importers.huggingface.unknown import usual
from autoplan.model.importers.keys import Keys
from autoplan.model.spec import TransformerSpec
from autoplan.specs import validated

# Names of transformers' activation functions (transformers.activations.ACT2FN), and Phi-3-small's gegelu. Each is bound
# by memory and costs the same, so the graph doesn't keep which it is.
ACTIVATIONS = frozenset((
    "gegelu", "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu", "relu2", "relu6",
    "sigmoid", "silu", "swish", "tanh", "xielu",
))

# Types that a file without `model_type` has by its keys: all of the first set, and none beyond the second, if given.
GPT2_REQUIRED = frozenset(("n_embd", "n_head", "n_layer", "n_positions", "vocab_size"))
GPT2_KEYS = GPT2_REQUIRED | {
    "activation_function", "architectures", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id",
    "initializer_range", "layer_norm_epsilon", "n_ctx", "n_inner", "n_special", "predict_special_tokens", "resid_pdrop",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "task_specific_params", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
}
DISTILBERT_REQUIRED = frozenset(("dim", "hidden_dim", "n_heads", "n_layers", "sinusoidal_pos_embds", "vocab_size"))

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ChatGLMModel")


def read(path: Path, name: str) -> TransformerSpec:
    """Read a `config.json`.

    path: the file. name: what to call the model.
    Raises InputError that names file and key if the file is malformed, a value is missing or wrong, or the architecture
    can't be read truly.
    """
    return from_keys(Keys.of_json(path), name)


def from_keys(keys: Keys, name: str) -> TransformerSpec:
    """Turn the keys of a `config.json` into a spec; see `read`."""
    model_type = _model_type(keys)
    keys = keys.typed(model_type)
    _refuse(keys, model_type)
    if model_type in MULTIMODAL or (model_type not in FAMILIES and keys.has("text_config")):
        fields = multimodal(keys, model_type, _text)
    else:
        fields = _text(keys, model_type)
    quantised = keys.nested("quantization_config")
    if quantised.data:
        method = quantised.text("quant_method") or "an unnamed method"
        keys.assume(f"weights in the precision planned for, though the file's are quantised ({method})")
    notes = {"assumed": "; ".join(keys.notes.assumed) or None, "left_out": "; ".join(keys.notes.left_out) or None}
    fields = {"name": name, "source": f"Hugging Face config.json ({model_type})", **fields, **notes}
    return validated(TransformerSpec, fields, keys.where)


def _text(keys: Keys, model_type: str) -> Fields:
    """Return the fields of a model of text alone, or of the part of a model that is."""
    _refuse(keys, model_type)
    family = FAMILIES.get(model_type) or Family(usual, experts=True)
    _check(keys, family)
    fields = family.read(keys)
    kinds = set(keys.texts("layer_types") or ()) - {FULL}
    if kinds and not any(fields.get(key) for key in ("pattern", "window", "mixer")):
        raise keys.error("this type of model has no layers of these kinds", "layer_types", FULL)
    return {**fields, **(_head(keys) if family.decoder else {})}


def _refuse(keys: Keys, model_type: str) -> None:
    """Raise InputError if the graph can't express models of this type."""
    if model_type in REFUSED:
        raise keys.error(f"this type of model isn't supported: {REFUSED[model_type]}", "model_type")


def _model_type(keys: Keys) -> str:
    """Return the file's type, or what its architecture's name or its keys tell where that is missing."""
    model_type = keys.text("model_type")
    if model_type is not None:
        return model_type
    names = keys.texts("architectures") or []
    for known in sorted({*FAMILIES, *MULTIMODAL}, key=len, reverse=True):
        if names and names[0].lower().startswith(known.replace("_", "").lower()):
            keys.assume(f"model_type {known} (missing), after the architecture {names[0]}")
            return known
    if keys.data.keys() >= GPT2_REQUIRED and keys.data.keys() <= GPT2_KEYS:
        keys.assume("model_type gpt2 (missing), after the file's keys")
        return "gpt2"
    if keys.data.keys() >= DISTILBERT_REQUIRED:
        keys.assume("model_type distilbert (missing), after the file's keys")
        return "distilbert"
    raise InputError("missing, and neither architectures nor the file's other keys tell it", where=keys.where,
                     key="model_type", allowed="a type that transformers knows, such as llama")


def _check(keys: Keys, family: Family) -> None:
    """Raise InputError if the file asks for what the family's reader doesn't look at."""
    if family.decoder:
        for key in ("is_encoder_decoder", "add_cross_attention"):
            if keys.flag(key, default=False):
                raise keys.error("cross-attention in a decoder of this type isn't supported", key, "false")
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        if keys.text(key, allowed := ", ".join(sorted(ACTIVATIONS))) not in {None, *ACTIVATIONS}:
            raise keys.error("unknown activation function", key, allowed)
    if not family.experts:
        for key in ("num_local_experts", "num_experts", "n_routed_experts"):
            if keys.data.get(key) not in (None, 0, 1):
                raise keys.error("this type of model has no mixture of experts", key)
    uneven = () if keys.text("model_type") in ("deci", "deci_lm", "nemotron-nas") else ("block_configs",)
    for key in (*PARTS, "text_config", "pruned_heads", *uneven):
        if keys.data.get(key):
            raise keys.error("a model of this type has no such part", key)


def _head(keys: Keys) -> Fields:
    """Return the head of a decoder if it isn't a language model's; it has one where no architecture is named."""
    names = keys.texts("architectures")
    if not names or any(name.endswith(LANGUAGE_MODELS) for name in names):
        return {}
    if names[0].endswith("Model"):
        keys.assume(f"no head and no loss ({names[0]})")
        return {"head": "none", "head_bias": False, "tied_embeddings": False, "mtp": 0}
    raise keys.error("a head of this kind isn't supported", "architectures",
                     ", ".join(f"…{name}" for name in (*LANGUAGE_MODELS, "Model")))
