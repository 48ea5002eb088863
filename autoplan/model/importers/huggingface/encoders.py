"""Encoders (BERT and its relatives, ViT) and encoder-decoders (T5, BART, Whisper).

Each reader's defaults are those of the class that transformers 5 has for the model type.
"""

from __future__ import annotations

from autoplan.model.importers.huggingface.common import ALL_BIASES, Fields, depth, even_heads, unsupported
from autoplan.model.importers.keys import Keys

_SEQUENCE_TO_SEQUENCE = ("ForConditionalGeneration", "MTModel", "T5WithLMHeadModel")


def bert(keys: Keys) -> Fields:
    """BERT and RoBERTa; the head is that of the file's architecture."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    even_heads(keys, "num_attention_heads", hidden, heads)
    position = keys.text("position_embedding_type")
    if position not in (None, "absolute"):
        raise keys.error("positions of this kind aren't supported", "position_embedding_type", "absolute")
    for key in ("is_decoder", "add_cross_attention"):
        unsupported(keys, key, "a decoder of BERT's kind")
    rows, unused = keys.size("max_position_embeddings"), 0 if keys.text("model_type") == "bert" else 2
    if rows <= unused:
        raise keys.error("too few: RoBERTa's tokens start at the third", "max_position_embeddings")
    return {
        "architecture": "encoder", "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "seq_len": rows - unused,
        "ffn": keys.size("intermediate_size"), "vocab_size": keys.size("vocab_size"), "norm": "layer", "norms": "post",
        "positions": "learned", "max_positions": rows, "embedding_norm": True,
        "token_types": keys.count("type_vocab_size", absent=2) or None, "biases": ALL_BIASES,
        **encoder_head(keys, hidden, pooler=True),
    }


def distilbert(keys: Keys) -> Fields:
    """DistilBERT."""
    hidden, heads = keys.size("dim"), keys.size("n_heads")
    even_heads(keys, "n_heads", hidden, heads)
    return {
        "architecture": "encoder", "layers": depth(keys, "n_layers"), "hidden": hidden, "heads": heads,
        "ffn": keys.size("hidden_dim"), "vocab_size": keys.size("vocab_size"), "norm": "layer", "norms": "post",
        "positions": "learned", "max_positions": keys.size("max_position_embeddings", absent=512),
        "embedding_norm": True, "biases": ALL_BIASES, **encoder_head(keys, hidden, pooler=False),
    }


def encoder_head(keys: Keys, hidden: int, *, pooler: bool) -> Fields:
    """Return the head of an encoder, by the name of its architecture. pooler: whether the bare model has one."""
    names = keys.texts("architectures")
    name = names[0] if names else ""
    if name.endswith(("ForMaskedLM", "ForPreTraining")):
        if name.endswith("ForPreTraining"):
            keys.leave_out(f"the pooler and the head of a next sentence ({hidden**2 + 3 * hidden + 2:,} parameters)")
        return {"head": "mlm", "head_bias": True,
                "tied_embeddings": keys.flag("tie_word_embeddings", default=True)}
    if name.endswith("ForSequenceClassification"):
        return {"head": "classes", "classes": classes(keys), "head_bias": True, "pooler": True}
    if name and not name.endswith("Model"):
        raise keys.error("a head of this kind isn't supported", "architectures",
                         "…Model, …ForMaskedLM, …ForPreTraining, …ForSequenceClassification")
    if not name:
        keys.assume("the bare encoder without a head (architectures is missing)")
    return {"head": "none", "pooler": pooler}


def classes(keys: Keys) -> int:
    """Return the classes of a classifier: those that have labels, two by default."""
    labels = keys.data.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else keys.size("num_labels", absent=2)


def vit(keys: Keys) -> Fields:
    """ViT and DeiT."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    even_heads(keys, "num_attention_heads", hidden, heads)
    names = keys.texts("architectures") or [""]
    head: Fields = {"head": "none"}
    if names[0].endswith("ForImageClassification"):
        head = {"head": "classes", "classes": classes(keys), "head_bias": True}
    elif names[0] and not names[0].endswith("Model"):
        raise keys.error("a head of this kind isn't supported", "architectures", "…Model, …ForImageClassification")
    qkv = ("qkv",) if keys.flag("qkv_bias", default=True) else ()
    return {
        "architecture": "encoder", "layers": depth(keys, "num_hidden_layers"), "hidden": hidden, "heads": heads,
        "ffn": keys.size("intermediate_size"), "norm": "layer", "positions": "learned", "biases": (*qkv, "o", "mlp"),
        "patches": {"image": keys.size("image_size", absent=224), "patch": keys.size("patch_size", absent=16),
                    "channels": keys.size("num_channels", absent=3), "class_token": True}, **head,
    }


def t5(keys: Keys) -> Fields:
    """T5, FLAN-T5, mT5."""
    hidden, heads, layers = keys.size("d_model"), keys.size("num_heads"), depth(keys, "num_layers")
    kind = keys.text("feed_forward_proj") or ("gated-gelu" if keys.text("model_type") == "mt5" else "relu")
    decoder = keys.size("num_decoder_layers", absent=layers)
    return {
        "architecture": "encoder_decoder", "layers": decoder, "hidden": hidden, "heads": heads,
        "head_dim": keys.size("d_kv"), "ffn": keys.size("d_ff"), "gated": kind.startswith("gated-"), "norm": "rms",
        "positions": "relative", "relative_buckets": keys.size("relative_attention_num_buckets", absent=32),
        "vocab_size": keys.size("vocab_size"), "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "cross_attention": True, "encoder": {"layers": layers}, **_whole(keys),
    }


def bart(keys: Keys) -> Fields:
    """BART, and mBART with its norms before each part; two rows of positions before the first."""
    pre = keys.text("model_type") == "mbart"
    return {
        **_seq2seq(keys), "positions": "learned", "max_positions": keys.size("max_position_embeddings") + 2,
        "seq_len": keys.size("max_position_embeddings"),
        "embedding_norm": True, "norms": "pre" if pre else "post",
        "encoder": {**_encoder(keys), "max_positions": keys.size("max_position_embeddings") + 2},
    }


def whisper(keys: Keys) -> Fields:
    """Whisper: an encoder of log-mel frames; no bias of the keys."""
    frames = keys.size("max_source_positions", absent=1500)
    return {
        **_seq2seq(keys), "positions": "learned", "max_positions": keys.size("max_target_positions", absent=448),
        "biases": ("q", "v", "o", "mlp"),
        "encoder": {**_encoder(keys), "seq_len": frames, "max_positions": frames,
                    "mel_bins": keys.size("num_mel_bins", absent=80)},
    }


def _seq2seq(keys: Keys) -> Fields:
    hidden, heads = keys.size("d_model"), keys.size("decoder_attention_heads")
    even_heads(keys, "decoder_attention_heads", hidden, heads)
    even_heads(keys, "encoder_attention_heads", hidden, keys.size("encoder_attention_heads"))
    return {
        "architecture": "encoder_decoder", "layers": depth(keys, "decoder_layers"), "hidden": hidden, "heads": heads,
        "ffn": keys.size("decoder_ffn_dim"), "vocab_size": keys.size("vocab_size"), "norm": "layer",
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True), "cross_attention": True,
        "biases": ALL_BIASES, **_whole(keys),
    }


def _whole(keys: Keys) -> Fields:
    """Return the head of an encoder-decoder: a language model's, or none."""
    names = keys.texts("architectures")
    if not names or names[0].endswith(_SEQUENCE_TO_SEQUENCE):
        return {}
    if names[0].endswith("Model") and not names[0].endswith(("LMHeadModel", "EncoderModel")):
        keys.assume(f"no head and no loss ({names[0]})")
        return {"head": "none", "tied_embeddings": False}
    raise keys.error("a part of an encoder-decoder, or a head of this kind, isn't supported", "architectures",
                     "…ForConditionalGeneration, …Model")


def _encoder(keys: Keys) -> Fields:
    return {"layers": depth(keys, "encoder_layers"), "heads": keys.size("encoder_attention_heads"),
            "ffn": keys.size("encoder_ffn_dim")}
