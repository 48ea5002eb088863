"""The operator graph of a dense decoder-only transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoplan.errors import InputError
from autoplan.model.graph import (
    BATCH,
    KV_SEQ,
    SEQ,
    STREAM,
    TOKEN_DIMS,
    Dim,
    LayerClass,
    ModelGraph,
    Op,
    Operand,
    Param,
)

if TYPE_CHECKING:
    from autoplan.model.blocks import Block
    from autoplan.model.spec import TransformerSpec

QUERY = (*TOKEN_DIMS, "heads", "head_dim")
KEY = (*TOKEN_DIMS, "kv_heads", "head_dim")
INNER = (*TOKEN_DIMS, "ffn")
LOGITS = (*TOKEN_DIMS, "vocab")


def transformer(spec: TransformerSpec) -> ModelGraph:
    """Build the graph: an embedding layer, `spec.layers` equal transformer layers, and the head with the loss.

    An operator's name is its output tensor's name; a layer's input is the tensor "x". `kv_seq` is `seq` as the keys and
    values of an attention see it. Each layer is `add1 = x + o(attention(norm1(x)))`, `add2 = add1 + mlp(norm2(add1))`.
    """
    block = next(iter(spec.kinds.values()))
    if (len(spec.kinds) > 1 or block.mixer_kind != "attention" or block.mlp_kind != "dense" or block.norms != "pre"
            or block.residual != "serial" or spec.architecture != "decoder" or spec.patches or spec.vision):
        raise InputError("the graph of this architecture isn't supported yet", where=spec.name)
    build = _Builder(spec, block)
    classes = (build.embedding(), build.layer(), build.head())
    facts: dict[str, int | float | bool | str | None] = {
        "architecture": spec.architecture, "source": spec.source,
        "hidden": spec.hidden, "layers": spec.layers, "heads": block.heads, "kv_heads": block.kv_heads,
        "head_dim": block.head_dim, "ffn": block.ffn, "vocab": spec.vocab, "max_positions": spec.max_positions,
        "seq_len": spec.seq_len, "global_batch_size": spec.global_batch_size,
    }
    return ModelGraph(
        name=spec.name, classes=classes, layers=(0, *[1] * spec.layers, 2),
        facts={key: value for key, value in facts.items() if value is not None},
    )


class _Builder:
    """Makes operators whose dims have the spec's sizes."""

    def __init__(self, spec: TransformerSpec, block: Block) -> None:
        self.spec, self.block = spec, block
        self.sizes = {
            "hidden": spec.hidden, "heads": block.heads, "kv_heads": block.kv_heads, "head_dim": block.head_dim,
            "ffn": block.ffn, "vocab": spec.vocab, "positions": spec.max_positions,
        }

    def embedding(self) -> LayerClass:
        ops = [self.op("embedding", "embedding", (*TOKEN_DIMS, "vocab", "hidden"), (), STREAM,
                       (Param("table", ("vocab", "hidden")),))]
        if self.spec.positions == "learned":
            ops.append(self.op("position", "elementwise", (*STREAM, "positions"), (Operand(ops[-1].name, STREAM),),
                               STREAM, (Param("position", ("positions", "hidden")),),
                               attrs=(("function", "position"),)))
        if self.spec.embedding_norm:
            ops.append(self.norm("embedding_norm", ops[-1].name))
        return LayerClass("embedding", tuple(ops), None, ops[-1].output)

    def layer(self) -> LayerClass:
        ops = (*self.attention("x"), *self.mlp("add1"))
        return LayerClass("layer", ops, Operand("x", STREAM), ops[-1].output)

    def head(self) -> LayerClass:
        weight = Param("weight", ("hidden", "vocab"), tied="embedding.table" if self.spec.tied_embeddings else None)
        loss = self.op("loss", "loss", LOGITS, (Operand("head", LOGITS),), TOKEN_DIMS)
        ops = (
            self.norm("final_norm", "x"),
            self.op("head", "contraction", (*STREAM, "vocab"), (Operand("final_norm", STREAM),), LOGITS, (weight,)),
            loss,
        )
        return LayerClass("head", ops, Operand("x", STREAM), None)

    def attention(self, x: str) -> Iterator[Op]:
        """The attention block on the residual stream `x`, its result `add1` included."""
        spec = self.spec
        yield self.norm("norm1", x)
        yield self.projection("q", "norm1", ("hidden",), ("heads", "head_dim"), bias="qkv" in spec.biases)
        yield self.projection("k", "norm1", ("hidden",), ("kv_heads", "head_dim"), bias="qkv" in spec.biases)
        yield self.projection("v", "norm1", ("hidden",), ("kv_heads", "head_dim"), bias="qkv" in spec.biases)
        q, k = "q", "k"
        if spec.qk_norm:
            weight = (Param("weight", ("head_dim",)),)
            yield self.op("norm_q", "norm", QUERY, (Operand(q, QUERY),), QUERY, weight)
            yield self.op("norm_k", "norm", KEY, (Operand(k, KEY),), KEY, weight)
            q, k = "norm_q", "norm_k"
        if spec.positions == "rotary":
            yield self.op("rotary_q", "elementwise", QUERY, (Operand(q, QUERY),), QUERY,
                          attrs=(("function", "rotary"),))
            yield self.op("rotary_k", "elementwise", KEY, (Operand(k, KEY),), KEY,
                          attrs=(("function", "rotary"),))
            q, k = "rotary_q", "rotary_k"
        memory = (BATCH, KV_SEQ, "kv_heads", "head_dim")
        yield self.op(
            "attention", "attention", (BATCH, SEQ, KV_SEQ, "heads", "head_dim"),
            (Operand(q, QUERY), Operand(k, memory), Operand("v", memory)), QUERY,
            grouped=(("kv_heads", "heads"),),
            attrs=(("causal", True), ("head_dim", self.block.head_dim or 0), ("kv_heads", self.block.num_kv_heads),
                   ("window", spec.window or 0)),
        )
        yield self.projection("o", "attention", ("heads", "head_dim"), ("hidden",), bias="o" in spec.biases)
        yield self.op("add1", "elementwise", STREAM, (Operand(x, STREAM), Operand("o", STREAM)), STREAM,
                      attrs=(("function", "add"),))

    def mlp(self, x: str) -> Iterator[Op]:
        """The MLP block on the residual stream `x`, its result `add2` included."""
        bias = "mlp" in self.spec.biases
        yield self.norm("norm2", x)
        inner = ("gate", "up") if self.spec.gated else ("up",)
        for name in inner:
            yield self.projection(name, "norm2", ("hidden",), ("ffn",), bias=bias)
        yield self.op("act", "elementwise", INNER, tuple(Operand(name, INNER) for name in inner), INNER,
                      attrs=(("function", "silu" if self.spec.gated else "gelu"),))
        yield self.projection("down", "act", ("ffn",), ("hidden",), bias=bias)
        yield self.op("add2", "elementwise", STREAM, (Operand(x, STREAM), Operand("down", STREAM)), STREAM,
                      attrs=(("function", "add"),))

    def norm(self, name: str, x: str) -> Op:
        params = (Param("weight", ("hidden",)), Param("bias", ("hidden",)))
        return self.op(name, "norm", STREAM, (Operand(x, STREAM),), STREAM,
                       params if self.spec.norm == "layer" else params[:1])

    def projection(self, name: str, x: str, into: tuple[str, ...], out: tuple[str, ...], *, bias: bool) -> Op:
        """`name[batch, seq, out] = Σ_into x[batch, seq, into] · weight[into, out] (+ bias[out])`."""
        params = (Param("weight", (*into, *out)), *((Param("bias", out, after_reduction=True),) if bias else ()))
        return self.op(name, "contraction", (*TOKEN_DIMS, *into, *out), (Operand(x, (*TOKEN_DIMS, *into)),),
                       (*TOKEN_DIMS, *out), params)

    def op(self, name: str, kind: str, dims: tuple[str, ...], inputs: tuple[Operand, ...], output: tuple[str, ...],
           params: tuple[Param, ...] = (), grouped: tuple[tuple[str, str], ...] = (),
           attrs: tuple[tuple[str, int | float | bool | str], ...] = ()) -> Op:
        sized = tuple(Dim(dim, self.sizes.get(dim)) for dim in dims)
        return Op(name, kind, sized, inputs, Operand(name, output), params, grouped, attrs)
