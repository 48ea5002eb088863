"""Models of several parts: a decoder under `text_config`, a vision tower, an audio tower.

Towers of the kinds that the graph can hold are read: CLIP, SigLIP, and Qwen's. Other towers are left out, and said so
with about how many parameters they have. Defaults are those of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoplan.model.importers.huggingface.common import ALL_BIASES, Fields, depth, groups
from autoplan.model.importers.keys import Keys

PARTS = ("vision_config", "audio_config")

# The decoder's type where `text_config` names none, or the file is flat.
MULTIMODAL: Mapping[str, str] = {
    "llava": "llama", "llava_next": "llama", "llava_onevision": "qwen2", "paligemma": "gemma",
    "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe",
    "qwen2_audio": "qwen2", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "gemma3": "gemma3_text",
    "gemma4": "gemma4_text", "llama4": "llama4_text", "mistral3": "mistral", "pixtral": "mistral",
    "kimi_vl": "deepseek_v3", "kimi_k25": "deepseek_v3", "internvl": "qwen2", "idefics3": "llama", "smolvlm": "llama",
    "mllama": "mllama_text_model",
}
# A decoder's type inside such a model → the type that it's read as.
_READ_AS: Mapping[str, str] = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe",
    "ministral3": "mistral",
}
# Dimensions that transformers leaves out of a nested configuration because they are its class's defaults.
_CLASS_SIZES: Mapping[str, Mapping[str, int]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 32000},
    "mistral": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                "vocab_size": 32000},
    "qwen2": {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 151936},
    "qwen3": {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 151936},
    "gemma": {"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
              "vocab_size": 256000},
    "gemma2": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
               "vocab_size": 256000},
    "gemma3_text": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                    "vocab_size": 262208},
    "gemma4_text": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
                    "vocab_size": 262144},
    "llama4_text": {"hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 40,
                    "vocab_size": 202048},
    "clip_vision_model": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                          "num_attention_heads": 12, "image_size": 224, "patch_size": 32},
    "siglip_vision_model": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                            "num_attention_heads": 12, "image_size": 224, "patch_size": 16},
    "mllama": {"hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16,
               "intermediate_size": 5120, "image_size": 448, "patch_size": 14},
    "mllama_text_model": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
                          "num_attention_heads": 32, "vocab_size": 128256},
    "gemma4_vision": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "patch_size": 16,
                      "num_attention_heads": 12},
    "qwen2_vl": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "patch_size": 14},
    "qwen2_5_vl": {"hidden_size": 3584, "depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14},
    "qwen3_vl": {"hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16},
}
IMAGE = 448  # pixels, where a tower takes images of any size

_NO_PARTS = ("text_config", "vision_config", "quantization_config", "generation_config")

Text = Callable[[Keys, str], Fields]


def multimodal(keys: Keys, model_type: str, text: Text) -> Fields:
    """Read a model of several parts. text: reads the part that is a decoder, given its keys and type."""
    kind = keys.nested("text_config").text("model_type") or MULTIMODAL.get(model_type, model_type)
    kind = _READ_AS.get(kind, MULTIMODAL.get(kind, kind))
    if keys.has("text_config"):
        inner = keys.nested("text_config", defaults=_CLASS_SIZES.get(kind))
    else:
        inner = Keys({key: value for key, value in keys.data.items() if key not in PARTS}, keys.where,
                     notes=keys.notes)
    fields = text(_tied(keys, inner).typed(kind), kind)
    alone = any(name.endswith("ForCausalLM") for name in keys.texts("architectures") or ())
    if alone and model_type in MULTIMODAL:
        return fields
    if keys.has("vision_config") and model_type in _TOWERS:
        fields["vision"] = _TOWERS[model_type](keys)
    elif keys.has("vision_config"):
        _left_out(keys, "vision_config", "the vision tower and its projector")
    elif model_type in MULTIMODAL and model_type != "qwen2_audio":
        keys.leave_out("the vision tower (the file has no vision_config)")
    for key, value in keys.data.items():
        if key.endswith("_config") and isinstance(value, dict) and key not in _NO_PARTS:
            _left_out(keys, key, "the audio tower and its projector" if key == "audio_config" else f"the part {key}")
    return fields


def _tied(keys: Keys, inner: Keys) -> Keys:
    """Return the decoder's keys, with what the whole model's say of its head and its architecture."""
    data = dict(inner.data)
    flag = keys.data.get("tie_word_embeddings")
    if flag is not None:
        data["tie_word_embeddings"] = flag
    data.pop("architectures", None)  # a language model's, though what is read may be less
    names = keys.texts("architectures")
    if names and names[0].endswith("Model"):
        data["architectures"] = names
    return Keys(data, inner.where, path=inner.path, defaults=inner.defaults, notes=inner.notes)


def _left_out(keys: Keys, key: str, what: str) -> None:
    """Note a part that is left out, with about how many parameters its layers have, if its keys tell."""
    part = keys.nested(key)

    def first(*names: str) -> int | None:
        return next((value for name in names if type(value := part.data.get(name)) is int and value > 0), None)

    width, layers = first("embed_dim", "d_model", "hidden_size"), first("num_hidden_layers", "depth", "encoder_layers")
    if width is None or layers is None:
        keys.leave_out(f"{what} ({key})")
        return
    ffn = first("intermediate_size", "encoder_ffn_dim") or (first("mlp_ratio") or 4) * width
    inner = 3 if part.data.get("hidden_act") == "silu" or part.data.get("model_type") == "pixtral" else 2  # gated
    size = layers * (4 * width**2 + inner * width * ffn)
    keys.leave_out(f"{what}, about {size / 1e6:,.0f} million parameters ({key})")


def _clip(part: Keys) -> Fields:
    """Return a CLIP tower: a class token, norms before the first layer and after the last."""
    return {**_square(part), "input_norm": True, "patches": {**_patches(part), "class_token": True, "bias": False}}


def _square(part: Keys) -> Fields:
    """Return what CLIP and SigLIP have in common."""
    return {"layers": depth(part, "num_hidden_layers"), "hidden": part.size("hidden_size"),
            "heads": part.size("num_attention_heads"), "ffn": part.size("intermediate_size"), "norm": "layer",
            "positions": "learned", "biases": ALL_BIASES, "patches": _patches(part)}


def _patches(part: Keys) -> Fields:
    """Return the patches of an image; what doesn't fill one is cut off."""
    patch = part.size("patch_size")
    return {"image": part.size("image_size") // patch * patch, "patch": patch,
            "channels": part.size("num_channels", absent=3)}


def _image_tower(keys: Keys) -> tuple[str, Fields]:
    """Return a tower of CLIP's or SigLIP's kind, and which it is."""
    kind = keys.nested("vision_config").text("model_type") or "clip_vision_model"
    part = keys.nested("vision_config", defaults=_CLASS_SIZES.get(kind))
    if kind == "clip_vision_model":
        return kind, _clip(part)
    if kind == "siglip_vision_model":
        return kind, _square(part)
    raise part.error("a vision tower of this kind isn't supported", "model_type",
                     "clip_vision_model, siglip_vision_model")


def _llava(keys: Keys) -> Fields:
    """LLaVA: a CLIP tower and two projections; the layers after the one that is read are held all the same."""
    _, tower = _image_tower(keys)
    layer = keys.data.get("vision_feature_layer", -2)
    if layer != -1:
        keys.assume(f"all layers of the vision tower run, though the projector reads its layer {layer}")
    return {**tower, "projector": "mlp", "projector_bias": keys.flag("multimodal_projector_bias", default=True)}


def _llava_tiles(keys: Keys) -> Fields:
    """LLaVA-NeXT and OneVision: as LLaVA, but large images are cut to tiles."""
    keys.assume("one tile, one image a sequence")
    return _llava(keys)


def _mllama(keys: Keys) -> Fields:
    """Llama 3.2 Vision: four tiles of an image at once; the decoder reads them in layers of cross-attention."""
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["mllama"])
    hidden, tiles = part.size("hidden_size"), part.size("max_num_tiles", absent=4)
    image, patch, side = part.size("image_size"), part.size("patch_size"), round(tiles**0.5)
    if side**2 != tiles:
        raise part.error("not a square", "max_num_tiles")
    keys.assume(f"an image of {side * image} × {side * image} pixels a sequence")
    taps = len(part.counts("intermediate_layers_indices") or [3, 7, 15, 23, 30])
    out = keys.nested("text_config", defaults=_CLASS_SIZES["mllama_text_model"]).size("hidden_size")
    keys.leave_out(f"{taps} more outputs of inner layers in the vision projector's input "
                   f"({taps * hidden * out:,} parameters)")
    rows = (image // patch) ** 2 + 1
    shapes = part.data.get("supported_aspect_ratios")
    ratios = len(shapes) if isinstance(shapes, list) else 8
    tables = (ratios + 1) * tiles * (rows + 2) * hidden + rows * hidden
    held = (side**2 * (image // patch) ** 2 + 1) * hidden
    keys.leave_out(f"the vision tower's tables of positions by shape of image ({tables - held:,} parameters)")
    layers = part.size("num_hidden_layers") + part.size("num_global_layers")
    return {"layers": layers, "hidden": hidden, "heads": part.size("attention_heads"), "norm": "layer",
            "ffn": part.size("intermediate_size"), "positions": "learned", "input_norm": True, "biases": ("mlp",),
            "patches": {"image": side * image, "patch": patch, "channels": part.size("num_channels", absent=3),
                        "class_token": True, "bias": False}, "projector": "linear"}


def _gemma3(keys: Keys) -> Fields:
    """Gemma 3: SigLIP, whose patches are averaged to 256 tokens, normed and projected."""
    _, tower = _image_tower(keys)
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["siglip_vision_model"])
    tokens = (part.size("image_size") // part.size("patch_size")) ** 2
    out = keys.size("mm_tokens_per_image", absent=256)
    if tokens % out:
        raise keys.error(f"doesn't divide the image's {tokens} patches", "mm_tokens_per_image")
    return {**tower, "pool": tokens // out, "projector": "linear", "projector_bias": False, "projector_norm": True}


def _gemma4(keys: Keys) -> Fields:
    """Gemma 4: Gemma's own layers on patches, of which nine are averaged to a token."""
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["gemma4_vision"])
    hidden, heads, patch = part.size("hidden_size"), part.size("num_attention_heads"), part.size("patch_size")
    pool = part.size("pooling_kernel_size", absent=3)
    image = 16 * pool * patch
    keys.assume(f"images of {image} × {image} pixels, one a sequence (the vision tower takes any size)")
    rows = part.size("position_embedding_size", absent=10240)
    keys.leave_out(f"the vision tower's tables of positions ({2 * rows * hidden:,} parameters)")
    return {"layers": depth(part, "num_hidden_layers"), "hidden": hidden, "heads": heads,
            "kv_heads": groups(part, "num_key_value_heads", heads, 12), "head_dim": part.size("head_dim", absent=64),
            "ffn": part.size("intermediate_size"), "gated": True, "norms": "sandwich", "qk_norm": True,
            "patches": {"image": image, "patch": patch, "bias": False}, "final_norm": False, "pool": pool**2,
            "projector": "linear", "projector_bias": False}


def _paligemma(keys: Keys) -> Fields:
    """PaliGemma: SigLIP and one projection."""
    return {**_image_tower(keys)[1], "projector": "linear"}


def _qwen2_vl(keys: Keys) -> Fields:
    """Qwen2-VL: rotary positions; four patches, of two frames each, are merged into a token."""
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["qwen2_vl"])
    hidden = part.size("embed_dim")
    return {**_merging(keys, part, hidden, IMAGE), "norm": "layer", "ffn": int(hidden * part.number("mlp_ratio", 4)),
            "positions": "rotary", "final_norm": False}


def _qwen25_vl(keys: Keys) -> Fields:
    """Qwen2.5-VL: gated MLPs and RMSNorms; most layers attend in windows."""
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["qwen2_5_vl"])
    keys.assume("attention over the whole image in all layers of the vision tower")
    return {**_merging(keys, part, part.size("hidden_size"), IMAGE), "norm": "rms", "gated": True,
            "ffn": part.size("intermediate_size"), "positions": "rotary", "final_norm": False}


def _qwen3_vl(keys: Keys) -> Fields:
    """Qwen3-VL and Qwen 3.5: a table of positions, which is interpolated for other sizes of image."""
    part = keys.nested("vision_config", defaults=_CLASS_SIZES["qwen3_vl"])
    rows, patch = part.size("num_position_embeddings", absent=2304), part.size("patch_size")
    side = round(rows**0.5)
    if side**2 != rows:
        raise part.error("not a square", "num_position_embeddings")
    fields = _merging(keys, part, part.size("hidden_size"), side * patch, bias=True)
    hidden, merge = part.size("hidden_size"), part.size("spatial_merge_size", absent=2) ** 2
    deep = len(part.counts("deepstack_visual_indexes") or ())
    if deep:
        wide, out = hidden * merge, part.size("out_hidden_size")
        each = 2 * wide + wide * wide + wide + wide * out + out
        keys.leave_out(f"{deep} projectors from inside the vision tower ({deep * each:,} parameters)")
    return {**fields, "norm": "layer", "ffn": part.size("intermediate_size"), "positions": "learned",
            "final_norm": False}


def _merging(keys: Keys, part: Keys, hidden: int, image: int, *, bias: bool = False) -> Fields:
    """Return what Qwen's towers have in common. image: pixels of an image's sides. bias: of the patches' product."""
    patch, merge = part.size("patch_size"), part.size("spatial_merge_size", absent=2) ** 2
    keys.assume(f"images of {image} × {image} pixels, one a sequence (the vision tower takes any size)")
    channels = part.size("in_channels", "in_chans", absent=3) * part.size("temporal_patch_size", absent=2)
    return {
        "layers": depth(part, "depth"), "hidden": hidden, "heads": part.size("num_heads"), "biases": ALL_BIASES,
        "patches": {"image": image, "patch": patch, "channels": channels, "bias": bias}, "merge": merge,
        "projector": "mlp", "projector_hidden": hidden * merge, "projector_norm": True,
    }


_TOWERS: Mapping[str, Callable[[Keys], Fields]] = {
    "llava": _llava, "llava_next": _llava_tiles, "llava_onevision": _llava_tiles, "mllama": _mllama,
    "gemma3": _gemma3, "gemma4": _gemma4, "paligemma": _paligemma, "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen25_vl, "qwen3_vl": _qwen3_vl, "qwen3_vl_moe": _qwen3_vl, "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
}
