"""The operator graph of a transformer: a chain of layers from the embedding to the loss.

An operator's name is its output tensor's name; a layer's input is the tensor "x". `kv_seq` is `seq` as the keys and
values of an attention see it. A layer is `add1 = x + mixer(norm1(x))`, `add2 = add1 + mlp(norm2(add1))`, where norms
stand before; other places of norms and parallel residuals are wired by `layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from autoplan.model.architectures.ends import Ends
from autoplan.model.architectures.mixers import cross_attention, mixer
from autoplan.model.architectures.mlps import mlp
from autoplan.model.architectures.wiring import Wiring
from autoplan.model.graph import STREAM, LayerClass, ModelGraph, Op, Operand

if TYPE_CHECKING:
    from autoplan.model.blocks import Block, Stack
    from autoplan.model.spec import TransformerSpec

Part = Callable[[str], Iterator[Op]]  # from its input tensor to its operators
Fact = int | float | bool | str


class _Chain:
    """Layer classes as they are first met, and the chain of their indices."""

    def __init__(self) -> None:
        self.classes: list[LayerClass] = []
        self.layers: list[int] = []

    def append(self, layer: LayerClass) -> None:
        """Put one layer at the end."""
        self.stack({layer.name: layer}, (layer.name,))

    def stack(self, classes: dict[str, LayerClass], order: tuple[str, ...]) -> None:
        """Put layers, given by name, at the end."""
        first = {name: len(self.classes) + index for index, name in enumerate(classes)}
        self.classes += classes.values()
        self.layers += [first[name] for name in order]


def transformer(spec: TransformerSpec) -> ModelGraph:
    """Build the graph: what is read, the layers in order, and the head with the loss.

    A vision tower and an encoder stand before the decoder. The vision tower's output, projected, joins the decoder's
    embedding; the encoder's is carried to every layer of the decoder.
    """
    chain = _Chain()
    ends = Ends(spec)
    before: str | None = None  # what the decoder's embedding finds on the stream
    carried: tuple[Operand, ...] = ()
    sizes: dict[str, int | None] = {"hidden": spec.hidden, "vocab": spec.vocab or None}
    if spec.vision is not None:
        chain.append(ends.image_input(spec.vision))
        wiring = Wiring({"hidden": spec.vision.hidden}, norm_kind=spec.vision.norm,
                        seq_len=spec.vision.patches.tokens)
        chain.stack(*_layers(spec.vision, wiring, "vision", causal=False))
        before = "vision"
        sizes |= {"memory_hidden": spec.hidden, "memory_seq": spec.vision.output_tokens}
    if spec.encoder is not None:
        chain.append(ends.encoder_input(spec.encoder))
        wiring = Wiring({"hidden": spec.encoder.hidden}, norm_kind=spec.encoder.norm, seq_len=spec.encoder.seq_len)
        chain.stack(*_layers(spec.encoder, wiring, "encoder", causal=False))
        before = "encoder"
        sizes |= {"memory_hidden": spec.encoder.hidden, "memory_seq": spec.encoder.seq_len}
    if any(block.cross_attention or block.mixer_kind == "cross" for block in spec.kinds.values()):
        carried = (Operand("memory", STREAM),)
    wiring = Wiring(sizes, norm_kind=spec.norm)
    chain.append(ends.input(before, carried))
    chain.stack(*_layers(spec, wiring, "layer", causal=spec.causal, carried=carried))
    if spec.mtp:
        block = spec.kinds[spec.order[-1]]
        chain.stack({"mtp": ends.mtp(layer(block, wiring, "mtp_x", causal=True))}, ("mtp",) * spec.mtp)
    chain.append(ends.head())
    return ModelGraph(name=spec.name, classes=tuple(chain.classes), layers=tuple(chain.layers), facts=_facts(spec))


def _layers(stack: Stack, wiring: Wiring, name: str, *, causal: bool,
            carried: tuple[Operand, ...] = ()) -> tuple[dict[str, LayerClass], tuple[str, ...]]:
    """Return the classes of a stack's layers, and each layer's by its key."""
    classes = {}
    for kind, block in stack.kinds.items():
        ops = layer(block, wiring, "x", causal=causal)
        title = name if not kind else kind if name == "layer" else f"{name}_{kind}"
        classes[kind] = LayerClass(title, tuple(ops), Operand("x", STREAM), ops[-1].output, carried)
    return classes, stack.order


def layer(block: Block, wiring: Wiring, x: str, *, causal: bool) -> list[Op]:
    """Return the operators of one layer on the stream `x`; the last one's output is the stream again."""
    w = Wiring(wiring.sizes, norm_kind=block.norm)
    parts: list[tuple[str, Part]] = []
    if block.mixer_kind != "none":
        parts.append(("1", partial(mixer, block, w, causal=causal)))
    if block.cross_attention:
        parts.append(("_cross", partial(cross_attention, block, w)))
    if block.mlp_kind != "none":
        parts.append(("2", partial(mlp, block, w)))
    if not parts:  # a layer that a search for smaller networks has emptied
        return [w.elementwise("same", "pass", (x,))]
    return _serial(block, w, x, parts) if block.residual == "serial" else _parallel(block, w, x, parts)


def _serial(block: Block, w: Wiring, x: str, parts: list[tuple[str, Part]]) -> list[Op]:
    """Each part on what the part before has left, added to it."""
    ops: list[Op] = []
    for suffix, part in parts:
        into = x
        if block.norms in ("pre", "sandwich"):
            ops.append(w.norm(f"norm{suffix}", x))
            into = ops[-1].name
        ops += part(into)
        if block.norms in ("sandwich", "output"):
            ops.append(w.norm(f"post_norm{suffix}", ops[-1].name))
        ops.append(w.add(f"add{suffix}", x, ops[-1].name))
        if block.norms == "post":
            ops.append(w.norm(f"norm{suffix}", ops[-1].name))
        x = ops[-1].name
    return ops


def _parallel(block: Block, w: Wiring, x: str, parts: list[tuple[str, Part]]) -> list[Op]:
    """All parts on the stream, behind a norm each or one for all; their results are added at once."""
    ops: list[Op] = []
    results = [x]
    for suffix, part in parts:
        own = block.residual == "parallel" or suffix == parts[0][0]
        if own:
            ops.append(w.norm(f"norm{suffix}", x))
        ops += part(f"norm{suffix if own else parts[0][0]}")
        results.append(ops[-1].name)
    ops.append(w.add("add2", *results))
    return ops


def _facts(spec: TransformerSpec) -> dict[str, Fact]:
    """Return what people ask of an architecture, of its first kind of layer where there are several."""
    block = next(iter(spec.kinds.values()))
    moe = next((one.moe for one in spec.kinds.values() if one.mlp_kind == "moe"), None)
    experts = {"experts": moe.experts, "top_k": moe.top_k, "expert_ffn": moe.ffn} if moe is not None else {}
    tokens = spec.patches.tokens if spec.patches is not None else None
    facts: dict[str, Fact | None] = {
        "architecture": spec.architecture, "source": spec.source, "assumed": spec.assumed, "left_out": spec.left_out,
        "hidden": spec.hidden, "layers": spec.layers, "heads": block.heads, "kv_heads": block.kv_heads,
        "head_dim": block.head_dim, "ffn": block.ffn, "vocab": spec.vocab or None,
        **experts,
        "encoder_layers": None if spec.encoder is None else spec.encoder.layers,
        "vision_layers": None if spec.vision is None else spec.vision.layers,
        "max_positions": spec.max_positions, "seq_len": spec.seq_len or tokens,
        "global_batch_size": spec.global_batch_size,
    }
    return {key: value for key, value in facts.items() if value is not None}
