"""What a model file may say about one transformer layer, and about a stack of them.

A layer is a *mixer*, which lets tokens see each other (attention and its relatives), and an *MLP*, which doesn't. The
keys of a stack hold for all its layers; `blocks` names the layers that differ and says only in what, and `pattern` says
how they follow each other. Sizes are counts of elements.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_LAYERS = 10_000
MAX_SIZE = 2**31  # so that a matrix's elements fit in 64 bits

Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
Layers = Annotated[int, Field(strict=True, gt=0, le=MAX_LAYERS)]
Bias = Literal["qkv", "q", "k", "v", "o", "mlp", "up", "down", "router"]
Mixer = Literal["attention", "cross", "mla", "mamba", "mamba2", "attention_mamba2", "gated_delta", "lightning", "none"]
Mlp = Literal["dense", "moe", "none"]


def fault(key: str, what: str, found: object = None) -> PydanticCustomError:
    """Return the error that `key` is wrong where several keys are looked at together."""
    return PydanticCustomError("fault", "{what}", {"what": what, "key": key, "found": found})


class Part(BaseModel):
    """A part of a model file: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Moe(Part):
    """A mixture of experts: a router sends each token to `top_k` of `experts` MLPs, of which each is `ffn` wide."""

    experts: Size = Field(description="Experts that the router chooses from.")
    top_k: Size = Field(description="Experts that each token goes to.")
    ffn: Size = Field(description="Width inside one expert.")
    shared_ffn: Size | None = Field(None, description="Width of the MLP that all tokens pass too (shared experts).")
    shared_gate: StrictBool = Field(False, description="The shared MLP's output is scaled by a gate of each token.")
    score_bias: StrictBool = Field(False, description="The router adds a bias to its scores (DeepSeek-V3).")
    latent: Size | None = Field(None, description="Width that the experts read and write, if not the stream's.")
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Room of an expert over its even share, the rest is dropped; none: no token is dropped.")
    imbalance: Annotated[float, Field(ge=1)] = Field(
        1.0, description="Tokens of the busiest device over the mean, where none is dropped; 1: forced balance.")

    @model_validator(mode="after")
    def _chosen_exist(self) -> Self:
        if self.top_k > self.experts:
            raise fault("top_k", f"more than experts {self.experts}", self.top_k)
        return self


class Mla(Part):
    """Multi-head latent attention (DeepSeek-V2): keys and values are made of one narrow vector a token."""

    q_rank: Size | None = Field(None, description="Width that queries are made from; none: from the stream.")
    kv_rank: Size = Field(description="Width that keys and values are made from.")
    nope_dim: Size = Field(description="Part of a query and key head without positions.")
    rope_dim: Size = Field(description="Part of a query and key head with rotary positions; one key for all heads.")
    v_dim: Size = Field(description="Width of a value head.")


class Mamba(Part):
    """A selective state space layer: Mamba-1 (`dt_rank`) or Mamba-2 (`heads`)."""

    inner: Size = Field(description="Width inside the layer; heads × width of a head in Mamba-2.")
    state: Size = Field(description="State of one channel.")
    conv: Size = Field(4, description="Taps of the causal convolution.")
    dt_rank: Size | None = Field(None, description="Width that Mamba-1 makes time steps from.")
    heads: Size | None = Field(None, description="Heads of Mamba-2.")
    groups: Size = Field(1, description="Groups of heads of Mamba-2 that share one B and C.")
    chunk: Size = Field(256, description="Tokens that Mamba-2 treats as one block.")
    conv_bias: StrictBool = Field(True, description="The convolution has a bias.")


class Linear(Part):
    """Linear attention: gated delta rule (Qwen3-Next) or lightning attention (MiniMax-01)."""

    key_heads: Size = Field(description="Query and key heads.")
    value_heads: Size = Field(description="Value heads.")
    key_dim: Size = Field(description="Width of a query and key head.")
    value_dim: Size = Field(description="Width of a value head.")
    conv: Size = Field(4, description="Taps of the causal convolution of the gated delta rule.")
    chunk: Size = Field(64, description="Tokens that are treated as one block.")


class Block(Part):
    """One layer. What isn't given has the value of the stack; what the stack doesn't give is absent."""

    mixer: Mixer | None = Field(None, description="How tokens see each other; attention, or `mla` if its key is given.")
    heads: Size | None = Field(None, description="Query heads.")
    kv_heads: Size | None = Field(None, description="Key and value heads; as many as query heads by default.")
    head_dim: Size | None = Field(None, description="Width of one head; hidden / heads by default.")
    value_head_dim: Size | None = Field(None, description="Width of one value head; head_dim by default.")
    window: Size | None = Field(None, description="Sliding attention window, in tokens.")
    chunk: Size | None = Field(None, description="Tokens attend within chunks of so many (Llama 4).")
    sinks: StrictBool = Field(False, description="A learned logit of each head takes part in the softmax (gpt-oss).")
    qk_norm: StrictBool | Literal["whole", "unscaled"] = Field(
        False, description="Norm of each query and key head; whole: over all heads; unscaled: without parameters.")
    output_gate: StrictBool = Field(False, description="The attention's output is gated (Qwen3-Next).")
    keys_are_values: StrictBool = Field(False, description="The keys serve as values too, without a projection.")
    cross_attention: StrictBool = Field(False, description="A second attention reads the encoder's output.")
    mla: Mla | None = Field(None, description="Dimensions of multi-head latent attention.")
    mamba: Mamba | None = Field(None, description="Dimensions of Mamba layers.")
    linear: Linear | None = Field(None, description="Dimensions of linear attention.")

    mlp: Mlp | None = Field(None, description="`moe` if that key is given, else dense.")
    ffn: Size | None = Field(None, description="Width inside the MLP; of each of both projections if it is gated.")
    gated: StrictBool = Field(False, description="Gated MLPs (SwiGLU, GeGLU): gate and up projections.")
    moe: Moe | None = Field(None, description="A mixture of experts in the place of the MLP.")

    positions: Literal["rotary", "learned", "alibi", "relative", "none"] = Field(
        "rotary", description="rotary, alibi and relative act in the attention; learned are added to the embedding.")
    norm: Literal["rms", "layer", "layer_unbiased", "unscaled"] = Field(
        "rms", description="RMSNorm (weight), LayerNorm (weight and bias; weight alone), or one without parameters.")
    norms: Literal["pre", "post", "sandwich", "output"] = Field(
        "pre", description="Before each part; after its residual add; before and after each part; after it alone.")
    residual: Literal["serial", "parallel", "parallel_shared"] = Field(
        "serial", description="The MLP after the mixer, or beside it with a norm of its own, or with the same norm.")
    biases: tuple[Bias, ...] = Field((), description="The projections that have a bias.")

    @property
    def mixer_kind(self) -> Mixer:
        """The mixer, by default that whose dimensions are given."""
        return self.mixer or ("mla" if self.mla else "attention")

    @property
    def mlp_kind(self) -> Mlp:
        """The MLP, by default that whose dimensions are given."""
        return self.mlp or ("moe" if self.moe else "dense")

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads or 0

    def has_bias(self, projection: Bias) -> bool:
        """Whether a projection (q, k, v, o, up, down, router) has a bias; `qkv` and `mlp` name several at once."""
        several: dict[Bias, Bias] = {"q": "qkv", "k": "qkv", "v": "qkv", "up": "mlp", "down": "mlp"}
        return projection in self.biases or several.get(projection) in self.biases


_ITEM = re.compile(r"(?:(\d+) )?(\S+)")


class Stack(Block):
    """Layers that follow each other. `hidden` is the width of the residual stream."""

    layers: Layers = Field(description="Layers.")
    hidden: Size | None = Field(None, description="Width of the residual stream.")
    blocks: dict[StrictStr, Block] = Field({}, description="Layers that differ from the rest: name → in what.")
    pattern: tuple[StrictStr, ...] = Field(
        (), description="Names of blocks in order, `3 dense` for three; repeated, and cut, to fill the layers.")

    @field_validator("pattern")
    @classmethod
    def _items(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            match = _ITEM.fullmatch(item)
            if match is None or not 0 < int(match[1] or 1) <= MAX_LAYERS:
                raise ValueError("neither the name of a block nor a count and a name, as `3 dense`")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [name for _, name in self._runs()]
        for name in names:
            if name not in self.blocks:
                known = ", ".join(sorted(self.blocks)) or "none given"
                raise fault("pattern", f"names no block of this stack ({known})", name)
        if self.blocks and not names:
            raise fault("pattern", "missing: it says how the blocks follow each other")
        unused = sorted(set(self.blocks) - set(names))
        if unused:
            raise fault(f"blocks.{unused[0]}", "isn't in the pattern")
        if self.hidden is not None:
            for name, block in self.kinds.items():
                _check(block, self.hidden, f"blocks.{name}." if name else "")
        return self

    def _runs(self) -> list[tuple[int, str]]:
        matches = [_ITEM.fullmatch(item) for item in self.pattern]
        return [(int(match[1] or 1), match[2]) for match in matches if match is not None]

    @property
    def kinds(self) -> dict[str, Block]:
        """The kinds of layer by name, in order of their first appearance; one named "" without a pattern."""
        own = {name: getattr(self, name) for name in Block.model_fields}
        if not self.blocks:
            return {"": self._filled(own)}
        order = dict.fromkeys(self.order)
        return {name: self._filled(own | {key: getattr(self.blocks[name], key)
                                          for key in self.blocks[name].model_fields_set}) for name in order}

    @property
    def order(self) -> tuple[str, ...]:
        """The kind of each layer, by name."""
        period = [name for count, name in self._runs() for _ in range(count)] or [""]
        return tuple(period[index % len(period)] for index in range(self.layers))

    def _filled(self, fields: dict[str, Any]) -> Block:
        """Return a layer with its defaults filled in: head_dim and kv_heads."""
        heads, mla = fields["heads"], fields["mla"]
        if mla is not None and fields["mixer"] in (None, "mla"):
            fields["head_dim"] = mla.nope_dim + mla.rope_dim
        if heads is not None:
            fields["kv_heads"] = fields["kv_heads"] or heads
            if fields["head_dim"] is None and self.hidden is not None and self.hidden % heads == 0:
                fields["head_dim"] = self.hidden // heads
        return Block.model_construct(**fields)


def _check(block: Block, hidden: int, prefix: str) -> None:
    """Raise the fault of a layer that lacks what its kind needs, or contradicts itself."""
    mixer, mlp = block.mixer_kind, block.mlp_kind
    if mixer in ("attention", "cross", "mla", "attention_mamba2") or block.cross_attention:
        if block.heads is None:
            raise fault(prefix + "heads", "this key is missing: query heads")
        if block.heads % block.num_kv_heads:
            raise fault(prefix + "kv_heads", f"doesn't divide heads {block.heads}", block.kv_heads)
        if block.head_dim is None and mixer != "mla":
            raise fault(prefix + "head_dim", f"needed, because hidden {hidden} isn't a multiple of heads {block.heads}")
    needed: dict[str, tuple[str, object]] = {
        "mla": ("mla", block.mla), "mamba": ("mamba", block.mamba), "mamba2": ("mamba", block.mamba),
        "attention_mamba2": ("mamba", block.mamba),
        "gated_delta": ("linear", block.linear), "lightning": ("linear", block.linear),
        "dense": ("ffn", block.ffn), "moe": ("moe", block.moe),
    }
    for kind in (mixer, mlp):
        key, value = needed.get(kind, ("", True))
        if value is None:
            raise fault(prefix + key, f"this key is missing: a {kind} layer needs it")
    if block.mamba is not None:
        _check_mamba(mixer, block.mamba, prefix + "mamba.")
    if block.linear is not None and block.linear.value_heads % block.linear.key_heads:
        raise fault(prefix + "linear.value_heads", f"no multiple of key_heads {block.linear.key_heads}",
                    block.linear.value_heads)
    if block.residual != "serial" and "none" in (mixer, mlp):
        raise fault(prefix + "residual", "needs both a mixer and an MLP", block.residual)
    if block.window is not None and block.chunk is not None:
        raise fault(prefix + "chunk", "given together with window", block.chunk)


def _check_mamba(mixer: Mixer, mamba: Mamba, prefix: str) -> None:
    if mixer == "mamba" and mamba.dt_rank is None:
        raise fault(prefix + "dt_rank", "this key is missing: Mamba-1 needs it")
    if mixer in ("mamba2", "attention_mamba2"):
        if mamba.heads is None:
            raise fault(prefix + "heads", "this key is missing: Mamba-2 needs it")
        if mamba.inner % mamba.heads:
            raise fault(prefix + "heads", f"doesn't divide inner {mamba.inner}", mamba.heads)
        if mamba.heads % mamba.groups:
            raise fault(prefix + "groups", f"doesn't divide heads {mamba.heads}", mamba.groups)
