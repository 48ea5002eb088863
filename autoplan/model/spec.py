"""Model files: what `models/*.yaml` may say, checked.

A model file describes an architecture by its published dimensions; `autoplan.model.architectures` turns it into an
operator graph. Importers build the same specs from other formats.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from autoplan.errors import InputError, nearest

MAX_LAYERS = 10_000

Size = Annotated[int, Field(strict=True, gt=0)]
Bias = Literal["qkv", "o", "mlp"]


class DecoderSpec(BaseModel):
    """A dense decoder-only transformer: GPT, Llama, Qwen, Mistral and their like.

    Every layer is `x += attention(norm(x)); x += mlp(norm(x))`, all layers alike. Sizes are counts of elements.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    biases: frozenset[Bias] = Field(frozenset(), description="The projections that have a bias.")
    qk_norm: StrictBool = Field(False, description="RMSNorm over each query and key head.")
    embedding_norm: StrictBool = Field(False, description="A norm after the embedding (BLOOM).")
    window: Size | None = Field(None, description="Sliding attention window of every layer, in tokens.")

    seq_len: Size | None = Field(None, description="Sequence length planned for by default, in tokens.")
    global_batch_size: Size | None = Field(None, description="Sequences of one step planned for by default.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head_dim is None and self.hidden % self.heads:
            raise _inconsistent("heads", f"hidden {self.hidden} isn't a multiple of it; give head_dim", self.heads)
        if self.heads % self.num_kv_heads:
            raise _inconsistent("kv_heads", f"it doesn't divide heads {self.heads}", self.kv_heads)
        if self.positions == "learned" and self.max_positions is None:
            raise _inconsistent("max_positions", "learned positions need it", None)
        if self.positions == "learned" and self.seq_len is not None and self.seq_len > (self.max_positions or 0):
            raise _inconsistent("seq_len", f"longer than max_positions {self.max_positions}", self.seq_len)
        return self

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
        raise InputError("a model file holds a mapping of keys to values", where=where, found=data)
    try:
        return DecoderSpec.model_validate({"name": name, **data})
    except ValidationError as error:
        raise _input_error(error, where) from None


def _inconsistent(key: str, what: str, found: object) -> PydanticCustomError:
    return PydanticCustomError("inconsistent", "{what}", {"what": what, "key": key, "found": found})


def _input_error(error: ValidationError, where: str) -> InputError:
    first = error.errors(include_url=False)[0]
    kind, context = first["type"], first.get("ctx", {})
    key = ".".join(str(part) for part in first["loc"])
    if kind == "inconsistent":
        return InputError(context["what"], where=where, key=context["key"], found=context["found"])
    if kind == "extra_forbidden":
        allowed = ", ".join(DecoderSpec.model_fields)
        hint = nearest(key, DecoderSpec.model_fields)
        return InputError(f"unknown key{'; ' + hint if hint else ''}", where=where, key=key, allowed=allowed)
    if kind == "missing":
        return InputError("missing", where=where, key=key)
    found = first["input"]
    what = "is null" if found is None else "not a value that is allowed"
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return InputError(what, where=where, key=key, found=found, allowed=allowed)
