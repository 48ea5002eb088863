"""Model files: what `models/*.yaml` may say, checked.

A model file describes an architecture by its published dimensions; `autoplan.model.architectures` turns it into an
operator graph. Importers build the same specs from other formats.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationInfo, field_validator

from autoplan.errors import InputError
from autoplan.specs import validated

MAX_LAYERS = 10_000
MAX_SIZE = 2**31  # so that a matrix's elements fit in 64 bits

Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
Bias = Literal["qkv", "o", "mlp"]


class DecoderSpec(BaseModel):
    """A dense decoder-only transformer: GPT, Llama, Qwen, Mistral and their like.

    Every layer is `x += attention(norm(x)); x += mlp(norm(x))`, all layers alike. Sizes are counts of elements.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: StrictStr = Field(min_length=1, description="What plans call the model; the file's name by default.")
    architecture: Literal["decoder"] = "decoder"
    source: StrictStr | None = Field(None, description="Where the figures are published.")

    layers: Annotated[int, Field(strict=True, gt=0, le=MAX_LAYERS, description="Transformer layers.")]
    hidden: Size = Field(description="Width of the residual stream.")
    heads: Size = Field(description="Query heads.")
    kv_heads: Size | None = Field(None, description="Key and value heads; as many as query heads by default.")
    head_dim: Size | None = Field(None, description="Width of one head; hidden / heads by default.")
    ffn: Size = Field(description="Width inside the MLP; of each of the two projections if the MLP is gated.")
    gated: StrictBool = Field(False, description="Gated MLP (SwiGLU, GeGLU): gate and up projections.")
    vocab_size: Size = Field(description="Tokens of the vocabulary.")
    vocab_padding_multiple: Size = Field(1, description="The vocabulary is padded up to a multiple of this.")
    tied_embeddings: StrictBool = Field(False, description="The head uses the embedding's table.")

    norm: Literal["rms", "layer"] = Field("rms", description="RMSNorm (weight) or LayerNorm (weight and bias).")
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    max_positions: Size | None = Field(None, description="Longest sequence; rows of the table of learned positions.")
    biases: tuple[Bias, ...] = Field((), description="The projections that have a bias.")
    qk_norm: StrictBool = Field(False, description="RMSNorm over each query and key head.")
    embedding_norm: StrictBool = Field(False, description="A norm after the embedding (BLOOM).")
    window: Size | None = Field(None, description="Sliding attention window of every layer, in tokens.")

    seq_len: Size | None = Field(None, description="Sequence length planned for by default, in tokens.")
    global_batch_size: Size | None = Field(None, description="Sequences of one step planned for by default.")

    @field_validator("kv_heads")
    @classmethod
    def _kv_heads_divide(cls, value: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if value is not None and heads is not None and heads % value:
            raise ValueError(f"doesn't divide heads {heads}")
        return value

    @field_validator("head_dim")
    @classmethod
    def _head_dim_known(cls, value: int | None, info: ValidationInfo) -> int | None:
        hidden, heads = info.data.get("hidden"), info.data.get("heads")
        if value is None and hidden and heads and hidden % heads:
            raise ValueError(f"needed, because hidden {hidden} isn't a multiple of heads {heads}")
        return value

    @field_validator("max_positions")
    @classmethod
    def _positions_counted(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and info.data.get("positions") == "learned":
            raise ValueError("needed, because positions are learned")
        return value

    @field_validator("seq_len")
    @classmethod
    def _positions_suffice(cls, value: int | None, info: ValidationInfo) -> int | None:
        longest = info.data.get("max_positions")
        if value is not None and longest is not None and info.data.get("positions") == "learned" and value > longest:
            raise ValueError(f"longer than max_positions {longest}")
        return value

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def vocab(self) -> int:
        """Rows of the embedding table: the vocabulary with its padding."""
        return -(-self.vocab_size // self.vocab_padding_multiple) * self.vocab_padding_multiple


def parse(data: object, where: str, name: str) -> DecoderSpec:
    """Check the content of a model file.

    data: what the file holds. where: the file, for errors. name: the model's name if the file gives none.
    Raises InputError for the first thing that's wrong.
    """
    if not isinstance(data, dict):
        raise InputError("a model file holds a mapping of keys to values", where=where, found=type(data).__name__)
    return validated(DecoderSpec, {"name": name, **data}, where)
