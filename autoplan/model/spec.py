"""Model files: what `models/*.yaml` may say, checked.

A model file describes an architecture by its published dimensions; `autoplan.model.architectures` turns it into an
operator graph. Importers build the same specs from other formats.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictStr, model_validator

from autoplan.errors import InputError, kind_of, nearest
from autoplan.model.blocks import MAX_LAYERS, MAX_SIZE, Block, Part, Size, Stack, fault
from autoplan.specs import validated

__all__ = ["MAX_LAYERS", "MAX_SIZE", "Patches", "ResNetSpec", "Spec", "TransformerSpec", "Vision", "parse"]

Name = Annotated[StrictStr, Field(min_length=1, description="What plans call the model; the file's name by default.")]
Source = Annotated[StrictStr | None, Field(description="Where the figures are published.")]


class Patches(Part):
    """Square images, cut into square patches, as the input of a stack; each patch is a token."""

    image: Size = Field(description="Height and width of an image, in pixels.")
    patch: Size = Field(description="Height and width of a patch, in pixels.")
    channels: Size = Field(3, description="Colours; times the frames that one patch spans, for videos.")
    bias: StrictBool = Field(True, description="The projection of the patches has a bias.")
    class_token: StrictBool = Field(False, description="A learned token is put before the patches.")

    @model_validator(mode="after")
    def _whole_patches(self) -> Self:
        if self.image % self.patch:
            raise fault("patch", f"doesn't divide image {self.image}", self.patch)
        return self

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return (self.image // self.patch) ** 2 + self.class_token


class Encoder(Stack):
    """The encoder of an encoder-decoder. What isn't given is as in the decoder, but for blocks and pattern."""

    seq_len: Size | None = Field(None, description="Its sequence length where it isn't the workload's (Whisper).")
    max_positions: Size | None = Field(None, description="Rows of its table of learned positions, if it has one.")
    mel_bins: Size | None = Field(None, description="It reads log-mel frames, not tokens (Whisper).")


class Vision(Stack):
    """The vision tower of a vision-language model, whose output a projector turns into tokens of the decoder."""

    hidden: Size = Field(description="Width of the tower's residual stream.")
    patches: Patches = Field(description="The images.")
    final_norm: StrictBool = Field(True, description="A norm after the last layer.")
    input_norm: StrictBool = Field(False, description="A norm before the first layer (CLIP).")
    merge: Size = Field(1, description="Tokens that the projector merges into one.")
    pool: Size = Field(1, description="Tokens whose mean the projector reads (Gemma 3).")
    projector: Literal["linear", "mlp"] = Field("mlp", description="One projection, or two with an activation.")
    projector_hidden: Size | None = Field(None, description="Width between both projections; the decoder's by default.")
    projector_bias: StrictBool = Field(True, description="The projections have a bias.")
    projector_norm: StrictBool = Field(False, description="A norm before the projector.")

    @property
    def output_tokens(self) -> int:
        """Tokens that the decoder sees of an image."""
        return self.patches.tokens // self.merge // self.pool


class TransformerSpec(Stack):
    """A transformer or one of its relatives: decoder, encoder, both, or a vision transformer.

    A decoder masks what comes later and predicts the next token; an encoder sees all. An encoder-decoder's decoder is
    described at the top, its encoder under `encoder`.
    """

    name: Name
    architecture: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    source: Source = None
    assumed: StrictStr | None = Field(None, description="What the source doesn't say and this rests on.")
    left_out: StrictStr | None = Field(None, description="What the model has and this doesn't describe.")

    hidden: Size = Field(description="Width of the residual stream.")
    vocab_size: Size | None = Field(None, description="Tokens of the vocabulary; none for images (`patches`).")
    vocab_padding_multiple: Size = Field(1, description="The vocabulary is padded up to a multiple of this.")
    tied_embeddings: StrictBool = Field(False, description="The head uses the embedding's table.")
    embedding_width: Size | None = Field(None, description="Width of the embedding's table, if not that of the stream.")
    max_positions: Size | None = Field(None, description="Longest sequence; rows of the table of learned positions.")
    relative_buckets: Size = Field(32, description="Rows of the table of relative positions (T5).")
    token_types: Size | None = Field(None, description="Rows of the table of token types (BERT).")
    embedding_norm: StrictBool = Field(False, description="A norm after the embedding (BLOOM, BERT).")
    patches: Patches | None = Field(None, description="Images are read, not tokens (ViT).")

    final_norm: StrictBool | None = Field(None, description="A norm after the last layer; there is unless norms: post.")
    head: Literal["lm", "mlm", "classes", "none"] = Field(
        "lm", description="Next token; masked token (a dense layer and a norm before it, BERT); classes; none.")
    head_bias: StrictBool = Field(False, description="The head has a bias.")
    classes: Size | None = Field(None, description="Classes of the head.")
    pooler: StrictBool = Field(False, description="A dense layer on the first token (BERT).")
    mtp: Annotated[int, Field(strict=True, ge=0, le=MAX_LAYERS)] = Field(
        0, description="Modules that predict a further token each (DeepSeek-V3); their parameters count apart.")

    encoder: Encoder | None = Field(None, description="The encoder of an encoder-decoder.")
    vision: Vision | None = Field(None, description="The vision tower of a vision-language model.")

    seq_len: Size | None = Field(None, description="Sequence length planned for by default, in tokens.")
    global_batch_size: Size | None = Field(None, description="Sequences of one step planned for by default.")

    @model_validator(mode="before")
    @classmethod
    def _encoder_inherits(cls, data: Any) -> Any:
        """Give the encoder what it shares with the decoder."""
        if not isinstance(data, dict) or not isinstance(data.get("encoder"), dict):
            return data
        shared = {key: data[key] for key in (*Block.model_fields, "hidden") if key in data and key != "cross_attention"}
        return {**data, "encoder": shared | data["encoder"]}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.vocab_size is None) == (self.patches is None):
            raise fault("vocab_size", "this key is missing: tokens of the vocabulary" if self.patches is None
                        else "given together with patches", self.vocab_size)
        if (self.encoder is None) == (self.architecture == "encoder_decoder"):
            raise fault("encoder", "needed by an encoder_decoder, and by nothing else")
        if self.positions == "learned" and self.max_positions is None and self.patches is None:
            raise fault("max_positions", "needed, because positions are learned")
        if (self.positions == "learned" and self.seq_len is not None and self.max_positions is not None
                and self.seq_len > self.max_positions):
            raise fault("seq_len", f"longer than max_positions {self.max_positions}", self.seq_len)
        if (self.head == "classes") != (self.classes is not None):
            raise fault("classes", "needed by a head of classes, and by nothing else", self.classes)
        if self.head in ("lm", "mlm") and self.vocab_size is None:
            raise fault("head", "predicts tokens, and there is no vocabulary", self.head)
        if self.tied_embeddings and (self.head not in ("lm", "mlm")):
            raise fault("tied_embeddings", f"there is no table to share with a head of {self.head}", True)
        crossing = any(block.cross_attention for block in self.kinds.values())
        if crossing and self.encoder is None:
            raise fault("cross_attention", "needs an encoder to read", True)
        if self.encoder is None and self.vision is None and any(
                block.mixer_kind == "cross" for block in self.kinds.values()):
            raise fault("mixer", "needs an encoder or a vision tower to read", "cross")
        return self

    @property
    def causal(self) -> bool:
        """Whether tokens see only those before them."""
        return self.architecture != "encoder"

    @property
    def vocab(self) -> int:
        """Rows of the embedding table: the vocabulary with its padding."""
        return -(-(self.vocab_size or 0) // self.vocab_padding_multiple) * self.vocab_padding_multiple

    @property
    def ends_in_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return self.norms != "post" if self.final_norm is None else self.final_norm


class ResNetSpec(Part):
    """ResNet and Wide-ResNet: stages of residual blocks of convolutions, each half as high and wide as the last."""

    name: Name
    architecture: Literal["resnet"]
    source: Source = None
    image: Size = Field(224, description="Height and width of an image, in pixels.")
    channels: Size = Field(64, description="Channels of the stem and of the first stage; each stage doubles them.")
    width_factor: Size = Field(1, description="A block is so many times wider inside (Wide-ResNet).")
    widened: Literal["inner", "middle"] = Field(
        "inner", description="What is wider: all inside a block, or only between its last two convolutions (Alpa).")
    stages: tuple[Size, ...] = Field(min_length=1, description="Residual blocks of each stage.")
    block: Literal["bottleneck", "basic"] = Field("bottleneck", description="Three convolutions, or two.")
    classes: Size = Field(description="Classes of the head.")
    global_batch_size: Size | None = Field(None, description="Images of one step planned for by default.")


Spec = TransformerSpec | ResNetSpec
_BY_ARCHITECTURE: dict[str, type[TransformerSpec] | type[ResNetSpec]] = {
    "decoder": TransformerSpec, "encoder": TransformerSpec, "encoder_decoder": TransformerSpec, "resnet": ResNetSpec,
}


def parse(data: object, where: str, name: str) -> Spec:
    """Check the content of a model file.

    data: what the file holds. where: the file, for errors. name: the model's name if the file gives none.
    Raises InputError for the first thing that's wrong.
    """
    if not isinstance(data, dict):
        raise InputError("a model file holds a mapping of keys to values", where=where, found=kind_of(data),
                         allowed="a mapping")
    architecture = data.get("architecture", "decoder")
    model = _BY_ARCHITECTURE.get(architecture) if isinstance(architecture, str) else None
    if model is None:
        hint = nearest(str(architecture), _BY_ARCHITECTURE)
        raise InputError("unknown architecture" + (f"; {hint}" if hint else ""), where=where, key="architecture",
                         found=architecture, allowed=", ".join(_BY_ARCHITECTURE))
    return validated(model, {"name": name, **data}, where)
