"""The layers that are no transformer layers: embeddings, image patches, projectors, heads with their losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.model.architectures.wiring import Wiring
from autoplan.model.graph import BATCH, KV_SEQ, STREAM, TOKEN_DIMS, LayerClass, Op, Operand, Param

if TYPE_CHECKING:
    from autoplan.model.spec import Encoder, Patches, TransformerSpec, Vision

LOGITS = (*TOKEN_DIMS, "vocab")
LATENT = (*TOKEN_DIMS, "latent")


class Ends:
    """Makes the ends of the stacks of one model."""

    def __init__(self, spec: TransformerSpec) -> None:
        self.spec = spec
        self.wiring = Wiring({"hidden": spec.hidden, "vocab": spec.vocab or None, "positions": spec.max_positions,
                              "types": spec.token_types, "latent": spec.embedding_width}, norm_kind=spec.norm)

    def input(self, before: str | None, carried: tuple[Operand, ...]) -> LayerClass:
        """The first layer of the stack that ends in the head.

        before: which stack, if any, stands before it on the stream: "vision", whose output is projected and joins the
        embedding (or is carried to cross-attention), or "encoder", whose output is carried to all layers.
        """
        spec = self.spec
        if spec.patches is not None:
            rows = spec.patches.tokens if spec.positions == "learned" else None
            ops = self._patches(spec.patches, self.wiring.sized(positions=rows))
            if spec.embedding_norm:
                ops.append(self.wiring.norm("embedding_norm", ops[-1].name))
            return LayerClass("embedding", tuple(ops), None, ops[-1].output)
        embedding = self._embedding(self.wiring, spec.positions, tied=before == "encoder")
        if before is None:
            return LayerClass("embedding", tuple(embedding), None, embedding[-1].output)
        if before == "encoder":
            assert spec.encoder is not None
            ending = Wiring({"hidden": spec.encoder.hidden}, norm_kind=spec.encoder.norm,
                            seq_len=spec.encoder.seq_len)
            memory = (ending.norm("memory", "x") if spec.encoder.norms != "post" else
                      ending.elementwise("memory", "pass", ("x",)))
            ops = [memory, *embedding]
            return LayerClass("decoder_embedding", tuple(ops), Operand("x", STREAM), ops[-1].output, carried)
        assert spec.vision is not None
        ops = [*self._projector(spec.vision), *embedding]
        if not carried:  # images take the places of tokens
            tokens = spec.vision.output_tokens
            ops.append(self.wiring.sized(kv_seq=tokens).op(
                "merge", "elementwise", (*STREAM, KV_SEQ),
                (Operand(ops[-1].name, STREAM), Operand("memory", (BATCH, KV_SEQ, "hidden"))), STREAM,
                attrs=(("function", "pass"),)))
        return LayerClass("text_embedding", tuple(ops), Operand("x", STREAM), ops[-1].output, carried)

    def encoder_input(self, encoder: Encoder) -> LayerClass:
        """The first layer of an encoder: the embedding that it shares with the decoder, or two convolutions."""
        w = Wiring({**self.wiring.sizes, "hidden": encoder.hidden, "positions": encoder.max_positions},
                   norm_kind=encoder.norm, seq_len=encoder.seq_len)
        if encoder.mel_bins is None:
            ops = self._embedding(w, encoder.positions, tied=False, heads=encoder.heads)
            return LayerClass("encoder_embedding", tuple(ops), None, ops[-1].output)
        frames = 2 * (encoder.seq_len or 0)
        first = w.sized(seq=frames, pixels=encoder.mel_bins, taps=3)
        second = w.sized(seq_in=frames, latent=encoder.hidden, taps=3)
        ops = [
            first.op("conv1", "convolution", (*STREAM, "pixels", "taps"), (), STREAM, _weights(("taps", "pixels"))),
            first.elementwise("conv1_act", "gelu", ("conv1",)),
            second.op("conv2", "convolution", (*STREAM, "seq_in", "latent", "taps"),
                      (Operand("conv1_act", (BATCH, "seq_in", "latent")),), STREAM, _weights(("taps", "latent"))),
            w.elementwise("conv2_act", "gelu", ("conv2",)),
            self._position(w, "conv2_act"),
        ]
        return LayerClass("encoder_embedding", tuple(ops), None, ops[-1].output)

    def image_input(self, vision: Vision) -> LayerClass:
        """The first layer of a vision tower."""
        tokens = vision.patches.tokens
        w = Wiring({"hidden": vision.hidden, "positions": tokens if vision.positions == "learned" else None},
                   norm_kind=vision.norm, seq_len=tokens)
        ops = self._patches(vision.patches, w)
        if vision.input_norm:
            ops.append(w.norm("input_norm", ops[-1].name))
        return LayerClass("image_embedding", tuple(ops), None, ops[-1].output)

    def mtp(self, block: list[Op]) -> LayerClass:
        """A module that predicts one token further, from the stream and the next token's embedding, by one layer and
        the model's own head. block: the layer's operators on "mtp_x". The stream itself goes on to the head."""
        w = self.wiring.sized(latent=self.spec.hidden)
        token = w.op("mtp_token", "embedding", (*TOKEN_DIMS, "vocab", "hidden"), (), STREAM,
                     (Param("table", ("vocab", "hidden"), tied="embedding.table"),))
        ops = [token, w.norm("mtp_token_norm", "mtp_token"), w.norm("mtp_stream_norm", "x")]
        for name in ("mtp_token", "mtp_stream"):
            ops.append(w.op(f"{name}_projected", "contraction", (*TOKEN_DIMS, "latent", "hidden"),
                            (Operand(f"{name}_norm", LATENT),), STREAM, (Param("weight", ("latent", "hidden")),)))
        ops += [w.add("mtp_x", "mtp_token_projected", "mtp_stream_projected"), *block,
                w.norm("mtp_norm", block[-1].name), self._logits("mtp_head", "mtp_norm", tied="head.weight"),
                _loss(w, "mtp_loss", "mtp_head"), w.elementwise("stream", "pass", ("x",))]
        return LayerClass("mtp", tuple(ops), Operand("x", STREAM), ops[-1].output)

    def head(self) -> LayerClass:
        """The last layer: the final norm, the projection to the vocabulary or to classes, and the loss."""
        spec, w = self.spec, self.wiring
        ops = [w.norm("final_norm", "x")] if spec.ends_in_norm else []
        x = ops[-1].name if ops else "x"
        if spec.pooler or spec.head in ("classes", "none"):
            return LayerClass("head", (*ops, *self._pooled(x)), Operand("x", STREAM), None)
        if spec.head == "mlm":
            w = w.sized(latent=spec.hidden)
            ops += [_biased(w, "transform", x, ("hidden",), ("latent",)), w.elementwise("transform_act", "gelu",
                    ("transform",), LATENT), w.norm("transform_norm", "transform_act", LATENT, width=("latent",))]
            x = ops[-1].name
        elif spec.embedding_width is not None:
            ops.append(w.projection("narrow", x, ("hidden",), ("latent",)))
            x = "narrow"
        ops += [self._logits("head", x, tied="embedding.table" if spec.tied_embeddings else None),
                _loss(w, "loss", "head")]
        return LayerClass("head", tuple(ops), Operand("x", STREAM), None)

    def _logits(self, name: str, x: str, tied: str | None) -> Op:
        spec = self.spec
        narrow = name == "head" and (spec.head == "mlm" or spec.embedding_width is not None)
        width = "latent" if narrow else "hidden"
        w = self.wiring.sized(latent=spec.embedding_width or spec.hidden)
        bias = (Param("bias", ("vocab",), after_reduction=True),) * spec.head_bias
        return w.op(name, "contraction", (*TOKEN_DIMS, width, "vocab"), (Operand(x, (*TOKEN_DIMS, width)),), LOGITS,
                    (Param("weight", (width, "vocab"), tied=tied), *bias))

    def _pooled(self, x: str) -> list[Op]:
        """One vector for each sequence, and what is made of it: a dense layer, classes, both, or neither."""
        spec = self.spec
        w = self.wiring.sized(seq=1, latent=spec.hidden, vocab=spec.classes)
        ops = [w.op("pool", "elementwise", (*STREAM, KV_SEQ), (Operand(x, (BATCH, KV_SEQ, "hidden")),), STREAM,
                    attrs=(("function", "pool"),))]
        width = "hidden"
        if spec.pooler:
            ops += [_biased(w, "pooler", "pool", ("hidden",), ("latent",)),
                    w.elementwise("pooler_act", "tanh", ("pooler",), LATENT)]
            width = "latent"
        if spec.head == "classes":
            bias = (Param("bias", ("vocab",), after_reduction=True),) * spec.head_bias
            ops += [w.op("head", "contraction", (*TOKEN_DIMS, width, "vocab"),
                         (Operand(ops[-1].name, (*TOKEN_DIMS, width)),), LOGITS,
                         (Param("weight", (width, "vocab")), *bias)), _loss(w, "loss", "head")]
        return ops

    def _embedding(self, w: Wiring, positions: str, *, tied: bool, heads: int | None = None) -> list[Op]:
        """The look-up of tokens, with what is added to it. tied: the table is the encoder's."""
        spec = self.spec
        width = "latent" if spec.embedding_width is not None else "hidden"
        dims = [*TOKEN_DIMS, "vocab", width]
        shared = "encoder_embedding.table" if tied and self._shared_table else None
        params = [Param("table", ("vocab", width), tied=shared)]
        if spec.token_types is not None:
            dims.append("types")
            params.append(Param("types", ("types", width)))
        if positions == "relative":
            w = w.sized(buckets=spec.relative_buckets, heads=heads or spec.heads)
            dims += ["buckets", "heads"]
            params.append(Param("relative", ("buckets", "heads")))
        ops = [w.op("embedding", "embedding", tuple(dims), (), (*TOKEN_DIMS, width), tuple(params))]
        if width == "latent":
            ops.append(w.projection("widen", "embedding", ("latent",), ("hidden",)))
        if positions == "learned":
            ops.append(self._position(w, ops[-1].name))
        if spec.embedding_norm:
            ops.append(w.norm("embedding_norm", ops[-1].name))
        return ops

    @property
    def _shared_table(self) -> bool:
        """Whether the encoder looks up tokens too: then in the decoder's table."""
        return self.spec.encoder is not None and self.spec.encoder.mel_bins is None

    @staticmethod
    def _position(w: Wiring, x: str) -> Op:
        return w.op("position", "elementwise", (*STREAM, "positions"), (Operand(x, STREAM),), STREAM,
                    (Param("position", ("positions", "hidden")),), attrs=(("function", "position"),))

    def _patches(self, patches: Patches, wiring: Wiring) -> list[Op]:
        """Patches by one product with all their pixels; a class token; learned positions."""
        w = wiring.sized(pixels=patches.channels * patches.patch**2)
        params = [Param("weight", ("pixels", "hidden"))]
        if patches.bias:
            params.append(Param("bias", ("hidden",), after_reduction=True))
        if patches.class_token:
            params.append(Param("class_token", ("hidden",), after_reduction=True))
        ops = [w.op("patches", "contraction", (*STREAM, "pixels"), (), STREAM, tuple(params))]
        if "positions" in w.sizes:
            ops.append(self._position(w, "patches"))
        return ops

    def _projector(self, vision: Vision) -> list[Op]:
        """From the tower's stream to "memory": tokens of the decoder."""
        tokens = vision.output_tokens
        w = Wiring({"merged": vision.hidden * vision.merge, "ffn": vision.projector_hidden or self.spec.hidden,
                    "hidden": self.spec.hidden}, norm_kind=vision.norm, seq_len=tokens)
        tower = Wiring({"hidden": vision.hidden}, norm_kind=vision.norm, seq_len=vision.patches.tokens)
        ops = [tower.norm("tower_norm", "x")] if vision.final_norm else []
        if vision.pool > 1:
            tower = tower.sized(seq=vision.patches.tokens // vision.pool)
            ops.append(tower.op("pooled", "elementwise", (*STREAM, KV_SEQ),
                                (Operand(ops[-1].name if ops else "x", (BATCH, KV_SEQ, "hidden")),), STREAM,
                                attrs=(("function", "pool"),)))
        if vision.projector_norm:
            ops.append(tower.norm("projector_norm", ops[-1].name if ops else "x"))
        x, bias = ops[-1].name if ops else "x", vision.projector_bias
        if vision.projector == "linear":
            return [*ops, w.projection("memory", x, ("merged",), ("hidden",), bias=bias)]
        inner = (*TOKEN_DIMS, "ffn")
        return [*ops, w.projection("projector_up", x, ("merged",), ("ffn",), bias=bias),
                w.elementwise("projector_act", "gelu", ("projector_up",), inner),
                w.projection("memory", "projector_act", ("ffn",), ("hidden",), bias=bias)]



def _loss(w: Wiring, name: str, logits: str) -> Op:
    return w.op(name, "loss", LOGITS, (Operand(logits, LOGITS),), TOKEN_DIMS)


def _biased(w: Wiring, name: str, x: str, into: tuple[str, ...], out: tuple[str, ...]) -> Op:
    return w.projection(name, x, into, out, bias=True)


def _weights(dims: tuple[str, ...]) -> tuple[Param, ...]:
    return Param("weight", (*dims, "hidden")), Param("bias", ("hidden",), after_reduction=True)
