"""State space models, linear attention, and decoders that mix them with attention; layers found by a search.

Each reader's defaults are those of the class that transformers 5 has for the model type, or of the published code that
comes with the checkpoints (DeciLM, MiniMax), recalled.
"""

from __future__ import annotations

import math

from autoplan.model.importers.huggingface.common import (
    FULL,
    LINEAR,
    Axis,
    Fields,
    attention_bias,
    depth,
    even_heads,
    every,
    groups,
    layer_types,
    modern,
    per_layer,
    unsupported,
)
from autoplan.model.importers.huggingface.experts import mixture, qwen_sparse, sparse
from autoplan.model.importers.keys import Keys

_MAMBA_LAYER = {"mlp": "none"}


def mamba(keys: Keys) -> Fields:
    """Mamba and Falcon Mamba: nothing but Mamba-1."""
    unsupported(keys, "use_bias", "a bias of Mamba's projections")
    hidden = keys.size("hidden_size", "d_model")
    inner = keys.size("intermediate_size", absent=int(keys.number("expand", 2) * hidden))
    return {
        "layers": depth(keys, "num_hidden_layers", "n_layer"), "hidden": hidden, "vocab_size": keys.size("vocab_size"),
        "mixer": "mamba", **_MAMBA_LAYER, "norm": "rms",
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "mamba": {"inner": inner, "state": keys.size("state_size", absent=16), "dt_rank": _dt_rank(keys, hidden),
                  "conv": keys.size("conv_kernel", absent=4), "conv_bias": keys.flag("use_conv_bias", default=True)},
    }


def _dt_rank(keys: Keys, hidden: int, key: str = "time_step_rank") -> int:
    """Return the rank of the time steps; `auto`, the default, is a sixteenth of the width."""
    return math.ceil(hidden / 16) if keys.data.get(key) == "auto" else keys.size(key, absent=math.ceil(hidden / 16))


def mamba2(keys: Keys) -> Fields:
    """Mamba-2, such as Codestral Mamba."""
    unsupported(keys, "use_bias", "a bias of Mamba's projections")
    hidden, heads = keys.size("hidden_size"), keys.size("num_heads", absent=128)
    inner = int(keys.number("expand", 2) * hidden)
    if keys.size("head_dim", absent=64) * heads != inner:
        raise keys.error(f"times head_dim is not the inner width {inner}", "num_heads")
    return {
        "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "vocab_size": keys.size("vocab_size"),
        "mixer": "mamba2", **_MAMBA_LAYER, "norm": "rms",
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
        "mamba": {"inner": inner, "state": keys.size("state_size", absent=128), "heads": heads,
                  "groups": keys.size("n_groups", absent=8), "conv": keys.size("conv_kernel", absent=4),
                  "chunk": keys.size("chunk_size", absent=256),
                  "conv_bias": keys.flag("use_conv_bias", default=True)},
    }


def mamba_parts(keys: Keys, hidden: int, *, groups_absent: int = 1) -> Fields:
    """Return Mamba-2's dimensions as Bamba, Granite and Falcon H1 name them."""
    unsupported(keys, "mamba_proj_bias", "a bias of Mamba's projections")
    heads = keys.size("mamba_n_heads", absent=128)
    inner = keys.size("mamba_d_ssm", absent=int(keys.number("mamba_expand", 2) * hidden))
    return {"inner": inner, "state": keys.size("mamba_d_state", absent=256), "heads": heads,
            "groups": keys.size("mamba_n_groups", absent=groups_absent), "conv": keys.size("mamba_d_conv", absent=4),
            "chunk": keys.size("mamba_chunk_size", absent=256),
            "conv_bias": keys.flag("mamba_conv_bias", default=True)}


def nemotron_h(keys: Keys) -> Fields:
    """Nemotron-H and Nemotron 3: every layer is one part: Mamba-2, attention, an MLP, or experts."""
    for key in ("mamba_proj_bias", "use_bias"):
        unsupported(keys, key, "a bias of Mamba's projections")
    order = _nemotron_layers(keys)
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    mlp: Fields = {"mixer": "none", "mlp": "dense"}
    kinds: dict[str, tuple[str, Fields]] = {
        "M": ("mamba", {"mixer": "mamba2", "mlp": "none"}), "-": ("mlp", mlp),
        "*": ("attention", {"mixer": "attention", "mlp": "none"}), "E": ("moe", {"mixer": "none", "mlp": "moe"}),
    }
    fields: Fields = {
        "layers": len(order), "hidden": hidden, "heads": heads,
        "kv_heads": groups(keys, "num_key_value_heads", heads, 8),
        "head_dim": keys.size("attention_head_dim", "head_dim", absent=128), "gated": False, "positions": "none",
        "ffn": keys.size("intermediate_size") if "-" in order else None, "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False), "norm": "rms",
        "max_positions": keys.optional_size("max_position_embeddings"),
        "biases": (*attention_bias(keys), *(("mlp",) if keys.flag("mlp_bias", default=False) else ())),
        **per_layer([kinds[kind] for kind in order]),
    }
    if "M" in order:
        mamba_heads = keys.size("mamba_num_heads")
        fields["mamba"] = {
            "inner": mamba_heads * keys.size("mamba_head_dim"), "heads": mamba_heads,
            "state": keys.size("ssm_state_size"), "groups": keys.size("n_groups", "mamba_n_groups", absent=8),
            "conv": keys.size("conv_kernel", absent=4), "chunk": keys.size("chunk_size", absent=128),
            "conv_bias": keys.flag("use_conv_bias", default=True)}
    if "E" in order:
        shared = keys.count("n_shared_experts", absent=1) * keys.size("moe_shared_expert_intermediate_size")
        fields["moe"] = {**mixture(keys, keys.size("moe_intermediate_size"), experts=("n_routed_experts",)),
                         "shared_ffn": shared or None, "score_bias": True,
                         "latent": keys.optional_size("moe_latent_size")}
    if keys.count("num_nextn_predict_layers"):
        keys.leave_out("modules that predict further tokens (num_nextn_predict_layers)")
    return fields


def _nemotron_layers(keys: Keys) -> str:
    """Return the layers, one letter each: M, *, - or E."""
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern, names = keys.text("hybrid_override_pattern"), keys.texts("layers_block_type")
    if pattern is None and names is None:
        raise keys.error("missing: the kind of each layer", "hybrid_override_pattern or layers_block_type")
    if pattern is None:
        pattern = "".join(letters.get(name, "?") for name in names or ())
    key = "hybrid_override_pattern" if keys.has("hybrid_override_pattern") else "layers_block_type"
    if not pattern or not set(pattern) <= set("M*-E"):
        raise keys.error("names layers of unknown kinds", key, "M, *, -, E")
    layers = keys.optional_size("num_hidden_layers")
    if layers is not None and layers != len(pattern):
        raise keys.error(f"is not the {len(pattern)} layers of {key}", "num_hidden_layers")
    return pattern


def jamba(keys: Keys) -> Fields:
    """Jamba: Mamba-1 with an attention layer each period, and experts in every other layer."""
    unsupported(keys, "mamba_proj_bias", "a bias of Mamba's projections")
    layers, hidden = depth(keys, "num_hidden_layers"), keys.size("hidden_size")
    period, offset = keys.size("attn_layer_period", absent=8), keys.count("attn_layer_offset", absent=4)
    step, start = keys.size("expert_layer_period", absent=2), keys.count("expert_layer_offset", absent=1)
    axis: Axis = [("attention", {"mixer": "attention"}) if index % period == offset else ("mamba", {"mixer": "mamba"})
                  for index in range(layers)]
    fields = modern(keys, kv_heads=8)
    experts = keys.size("num_experts", absent=16)
    moe = mixture(keys, keys.size("intermediate_size"), absent=16, top_k_absent=2) if experts > 1 else None
    keys.leave_out("the norms of Mamba's time steps, B and C")
    return {
        **fields, **per_layer(axis, sparse(layers, lambda index: experts > 1 and index % step == start)), "moe": moe,
        "positions": "none",
        "mamba": {"inner": int(keys.number("mamba_expand", 2) * hidden), "state": keys.size("mamba_d_state", absent=16),
                  "conv": keys.size("mamba_d_conv", absent=4), "dt_rank": _dt_rank(keys, hidden, "mamba_dt_rank"),
                  "conv_bias": keys.flag("mamba_conv_bias", default=True)},
    }


def bamba(keys: Keys) -> Fields:
    """Bamba: Mamba-2 with attention in a few layers."""
    layers, attention = depth(keys, "num_hidden_layers"), set(keys.counts("attn_layer_indices") or ())
    axis: Axis = [("attention", {"mixer": "attention"}) if index in attention else ("mamba", {"mixer": "mamba2"})
                  for index in range(layers)]
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys, kv_heads=8), **per_layer(axis), "mamba": mamba_parts(keys, keys.size("hidden_size")),
            "biases": (*attention_bias(keys), *mlp)}


def falcon_h1(keys: Keys) -> Fields:
    """Falcon H1: attention and Mamba-2 side by side in every layer."""
    unsupported(keys, "projectors_bias", "a bias of Mamba's projections")
    mamba = mamba_parts(keys, keys.size("hidden_size"))
    if not keys.flag("mamba_rms_norm", default=False):
        keys.assume("a norm after Mamba's recurrence, as in Mamba-2 (mamba_rms_norm is false)")
    mlp = ("mlp",) if keys.flag("mlp_bias", default=False) else ()
    return {**modern(keys, kv_heads=8), "mixer": "attention_mamba2", "mamba": mamba,
            "biases": (*attention_bias(keys), *mlp)}


def granite_hybrid(keys: Keys) -> Fields:
    """Granite 4: Mamba-2 and attention, each followed by experts with a shared one, or by that alone."""
    layers = depth(keys, "num_hidden_layers")
    names = keys.texts("layer_types") or keys.texts("layers_block_type")
    if names is None or len(names) != layers or not {*names} <= {"mamba", LINEAR, "attention", FULL}:
        raise keys.error(f"not the kinds of {layers} layers", "layer_types", "mamba, attention")
    axis: Axis = [("attention", {"mixer": "attention"}) if name in ("attention", FULL) else
                  ("mamba", {"mixer": "mamba2"}) for name in names]
    shared, experts = keys.size("shared_intermediate_size", absent=1024), keys.count("num_local_experts", absent=8)
    moe = ({**mixture(keys, keys.size("intermediate_size"), absent=8, top_k_absent=2), "shared_ffn": shared}
           if experts else None)
    rope = keys.text("position_embedding_type") == "rope"
    return {**modern(keys, ffn=False), **per_layer(axis), "moe": moe, "ffn": None if experts else shared,
            "positions": "rotary" if rope else "none", "biases": attention_bias(keys),
            "mamba": mamba_parts(keys, keys.size("hidden_size"))}


def qwen3_next(keys: Keys) -> Fields:
    """Qwen3-Next and Qwen 3.5: the gated delta rule, in each fourth layer gated attention; dense or with experts."""
    layers, kind = depth(keys, "num_hidden_layers"), keys.text("model_type") or ""
    period = keys.size("full_attention_interval", absent=4)
    kinds = layer_types(keys, layers, every(period, FULL, LINEAR), (FULL, LINEAR))
    axis: Axis = [("full", {"mixer": "attention"}) if name == FULL else ("linear", {"mixer": "gated_delta"})
                  for name in kinds]
    experts = "moe" in kind or "next" in kind
    dense = not experts or keys.has("intermediate_size")
    fields = modern(keys, kv_heads=2 if experts else 4, head_dim=256, ffn=dense)
    moe = None
    if experts:
        shared = keys.size("shared_expert_intermediate_size", absent=512)
        top_k = 10 if "next" in kind else 8
        moe = {**mixture(keys, keys.size("moe_intermediate_size", absent=512),
                         absent=512 if "next" in kind else 256, top_k_absent=top_k),
               "shared_ffn": shared, "shared_gate": True}
    linear = {"key_heads": keys.size("linear_num_key_heads", absent=16),
              "value_heads": keys.size("linear_num_value_heads", absent=32),
              "key_dim": keys.size("linear_key_head_dim", absent=128),
              "value_dim": keys.size("linear_value_head_dim", absent=128),
              "conv": keys.size("linear_conv_kernel_dim", absent=4)}
    mlps = qwen_sparse(keys, layers) if experts else sparse(layers, lambda _: False)
    return {**fields, **per_layer(axis, mlps), "moe": moe, "linear": linear, "qk_norm": True,
            "output_gate": keys.flag("attn_output_gate", default=True), "biases": attention_bias(keys),
            "mtp": keys.count("mtp_num_hidden_layers")}


def minimax(keys: Keys) -> Fields:
    """MiniMax-Text-01 and M1: lightning attention, in each eighth layer full attention; experts throughout."""
    layers = depth(keys, "num_hidden_layers")
    marks = keys.counts("attn_type_list")
    if marks is not None and (len(marks) != layers or not {*marks} <= {0, 1}):
        raise keys.error(f"doesn't mark {layers} layers with 0 or 1", "attn_type_list")
    kinds = ([FULL if mark else LINEAR for mark in marks] if marks is not None else
             layer_types(keys, layers, every(2, LINEAR, FULL), (FULL, LINEAR)))
    fields = modern(keys, kv_heads=8, ffn=False)
    heads = keys.size("num_attention_heads")
    width = fields["head_dim"] or keys.size("hidden_size") // heads
    axis: Axis = [("full", {"mixer": "attention"}) if kind == FULL else ("lightning", {"mixer": "lightning"})
                  for kind in kinds]
    moe = mixture(keys, keys.size("intermediate_size"), absent=8, top_k_absent=2)
    return {**fields, **per_layer(axis), "moe": moe,
            "linear": {"key_heads": heads, "value_heads": heads, "key_dim": width, "value_dim": width,
                       "chunk": keys.size("block_size", absent=256)}}


def decilm(keys: Keys) -> Fields:
    """DeciLM and Nemotron NAS: a search has set each layer's heads and width, or emptied it."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    layers = depth(keys, "num_hidden_layers")
    if not keys.has("head_dim"):
        even_heads(keys, "num_attention_heads", hidden, heads)
    fields: Fields = {
        "layers": layers, "hidden": hidden, "heads": heads, "head_dim": keys.optional_size("head_dim"), "gated": True,
        "vocab_size": keys.size("vocab_size"), "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
        "norm": "rms", "max_positions": keys.optional_size("max_position_embeddings"),
        "biases": (*attention_bias(keys), *(("mlp",) if keys.flag("mlp_bias", default=False) else ())),
    }
    per = keys.counts("num_key_value_heads_per_layer")
    if per is not None and keys.data.get("block_configs") is None:
        if len(per) != layers:
            raise keys.error(f"names {len(per)} layers of {layers}", "num_key_value_heads_per_layer")
        return {**fields, **per_layer([(f"kv{count}", {"kv_heads": count}) for count in per]),
                "ffn": keys.size("intermediate_size")}
    blocks = keys.data.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:
        raise keys.error(f"not a list of {layers} blocks", "block_configs")
    return {**fields, **per_layer([_searched(keys, index, block, hidden, heads) for index, block in enumerate(blocks)])}


def _searched(keys: Keys, index: int, block: object, hidden: int, heads: int) -> tuple[str, Fields]:
    """Return one block of a search: attention with grouped heads or none, and an MLP of some width or none."""
    one = Keys({str(index): block}, keys.where, path="block_configs.", notes=keys.notes).nested(str(index))
    attention, mlp = one.nested("attention"), one.nested("ffn")
    names, fields = [], Fields()
    for part in (attention, mlp):
        unsupported(part, "replace_with_linear", "a linear layer in the place of a part")
    unsupported(attention, "num_sink_tokens", "attention to the first tokens and a window")
    if attention.flag("no_op", default=False):
        fields["mixer"] = "none"
    else:
        shared = attention.size("n_heads_in_group")
        if heads % shared:
            raise attention.error(f"doesn't divide num_attention_heads {heads}", "n_heads_in_group")
        fields |= {"mixer": "attention", "kv_heads": heads // shared,
                   "window": attention.optional_size("window_length")}
        names.append(f"kv{heads // shared}")
    if mlp.flag("no_op", default=False):
        fields["mlp"] = "none"
    else:
        width = (mlp.size("intermediate_size") if mlp.has("intermediate_size") else
                 _rounded(2 * mlp.number("ffn_mult", 0) * hidden / 3))
        if width < 1:
            raise mlp.error("missing: the width of the MLP", "ffn_mult", "a positive number")
        fields |= {"mlp": "dense", "ffn": width}
        names.append(f"ffn{width}")
    return "_".join(names) or "empty", fields


def _rounded(width: float) -> int:
    """Return a width as DeciLM's code rounds it: up to a multiple of 256."""
    return -(-int(width) // 256) * 256
