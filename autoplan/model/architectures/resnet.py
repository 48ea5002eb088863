"""The operator graph of ResNet and Wide-ResNet: a chain of residual blocks of convolutions.

The pixels of an image lie along `seq`, whose size is each stage's own, so an image counts as one sequence. Each block
is a layer; the first of a stage, which halves height and width, has a projection on its shortcut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.model.architectures.wiring import Wiring
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, TOKEN_DIMS, LayerClass, ModelGraph, Op, Operand, Param

if TYPE_CHECKING:
    from autoplan.model.spec import ResNetSpec

IMAGE = (*TOKEN_DIMS, "channels")
INNER = (*TOKEN_DIMS, "ffn")
EXPANSION = {"bottleneck": 4, "basic": 1}  # channels of a block's output over those inside
COLOURS = 3
STEM = 4  # the stem divides height and width by so much, half of it by its convolution


def resnet(spec: ResNetSpec) -> ModelGraph:
    """Build the graph: a stem, the blocks of all stages, and the head with the loss."""
    classes = [_stem(spec)]
    layers = [0]
    channels, side = spec.channels, spec.image // STEM
    for stage, blocks in enumerate(spec.stages):
        halves = stage > 0
        inner = spec.channels * 2**stage
        out = inner * EXPANSION[spec.block]
        for place in ("first", "other")[:blocks]:
            first = place == "first"
            stride = 2 if first and halves else 1
            sides = (side, side // stride)
            ops = _block(spec, channels if first else out, inner, sides)
            name = f"stage{stage + 1}" + ("_first" if first else "")
            classes.append(LayerClass(name, tuple(ops), Operand("x", IMAGE), ops[-1].output))
            side = sides[1]
        layers += [len(classes) - min(blocks, 2), *[len(classes) - 1] * (blocks - 1)]
        channels = out
    classes.append(_head(spec, channels, side**2))
    facts: dict[str, int | float | bool | str | None] = {
        "architecture": spec.architecture, "source": spec.source, "layers": sum(spec.stages), "hidden": spec.channels,
        "image": spec.image, "classes": spec.classes, "seq_len": 1, "global_batch_size": spec.global_batch_size}
    return ModelGraph(spec.name, tuple(classes), (*layers, len(classes) - 1),
                      {key: value for key, value in facts.items() if value is not None})


def _stem(spec: ResNetSpec) -> LayerClass:
    """A convolution of 7 × 7 with stride 2, its norm and activation, and a maximum over 3 × 3 with stride 2."""
    half, quarter = (spec.image // 2) ** 2, (spec.image // STEM) ** 2
    w = Wiring({"channels": spec.channels, "pixels": COLOURS, "taps": 49, SEQ: half})
    pooled = w.sized(seq=quarter, seq_in=half)
    ops = (
        w.op("stem", "convolution", (*IMAGE, "pixels", "taps"), (), IMAGE,
             (Param("weight", ("taps", "pixels", "channels")),)),
        *_normed(w, "stem", IMAGE),
        pooled.op("stem_pool", "stream", (*IMAGE, "seq_in"), (Operand("stem_act", (BATCH, "seq_in", "channels")),),
                  IMAGE, attrs=(("function", "maximum"),)),
    )
    return LayerClass("stem", ops, None, ops[-1].output)


def _block(spec: ResNetSpec, channels: int, inner: int, sides: tuple[int, int]) -> list[Op]:
    """`act(shortcut(x) + convolutions(x))`. sides: height before and after the block's stride."""
    out = inner * EXPANSION[spec.block]
    wide = inner * spec.width_factor
    narrow = inner if spec.widened == "middle" else wide
    before = Wiring({"channels": channels, "taps": 1, SEQ: sides[0] ** 2})
    after = Wiring({SEQ: sides[1] ** 2, "seq_in": sides[0] ** 2})
    strided = sides[0] != sides[1]
    if spec.block == "bottleneck":
        first = before.sized(ffn=narrow)
        ops = [first.op("conv1", "convolution", (*INNER, "channels", "taps"), (Operand("x", IMAGE),), INNER,
                        (Param("weight", ("taps", "channels", "ffn")),))]
        ops += _normed(first, "conv1", INNER)
        ops.append(_conv(after.sized(inputs=narrow, ffn=wide, taps=9), "conv2", "conv1_act", "ffn", strided))
        ops += _normed(after.sized(ffn=wide), "conv2", INNER)
        last = after.sized(ffn=wide, channels=out, taps=1)
        ops.append(_from_inner(last, "conv3", "conv2_act"))
        ops += _normed(last, "conv3", IMAGE)[:1]
    else:
        ops = [_conv(after.sized(inputs=channels, ffn=wide, taps=9), "conv1", "x", "ffn", strided)]
        ops += _normed(after.sized(ffn=wide), "conv1", INNER)
        last = after.sized(ffn=wide, channels=out, taps=9)
        ops.append(_from_inner(last, "conv2", "conv1_act"))
        ops += _normed(last, "conv2", IMAGE)[:1]
    branch, shortcut = ops[-1].name, "x"
    if strided or channels != out:
        beside = after.sized(inputs=channels, channels=out, taps=1)
        ops += [_conv(beside, "shortcut", "x", "channels", strided), *_normed(beside, "shortcut", IMAGE)[:1]]
        shortcut = ops[-1].name
    whole = after.sized(channels=out)
    return [*ops, whole.elementwise("add", "add", (shortcut, branch), IMAGE),
            whole.elementwise("out", "relu", ("add",), IMAGE)]


def _conv(w: Wiring, name: str, x: str, out: str, strided: bool) -> Op:
    """A convolution over `inputs` channels."""
    pixels = "seq_in" if strided else SEQ
    dims = (*TOKEN_DIMS, *(("seq_in",) if strided else ()), "inputs", out, "taps")
    return w.op(name, "convolution", dims, (Operand(x, (BATCH, pixels, "inputs")),), (*TOKEN_DIMS, out),
                (Param("weight", ("taps", "inputs", out)),))


def _from_inner(w: Wiring, name: str, x: str) -> Op:
    """The convolution back from a block's inside to its output."""
    return w.op(name, "convolution", (*TOKEN_DIMS, "ffn", "channels", "taps"), (Operand(x, INNER),), IMAGE,
                (Param("weight", ("taps", "ffn", "channels")),))


def _normed(w: Wiring, x: str, dims: tuple[str, ...]) -> list[Op]:
    """Batch norm with weight and bias, over the tokens of a device; and an activation."""
    norm = w.norm(f"{x}_norm", x, dims, width=dims[-1:], over="", kind="layer")
    return [norm, w.elementwise(f"{x}_act", "relu", (norm.name,), dims)]


def _head(spec: ResNetSpec, channels: int, pixels: int) -> LayerClass:
    """The mean over an image's pixels, the projection to classes and the loss."""
    w = Wiring({"channels": channels, "vocab": spec.classes, SEQ: 1, KV_SEQ: pixels})
    logits = (*TOKEN_DIMS, "vocab")
    ops = (
        w.op("pool", "elementwise", (*IMAGE, KV_SEQ), (Operand("x", (BATCH, KV_SEQ, "channels")),), IMAGE,
             attrs=(("function", "pool"),)),
        w.op("head", "contraction", (*IMAGE, "vocab"), (Operand("pool", IMAGE),), logits,
             (Param("weight", ("channels", "vocab")), Param("bias", ("vocab",), after_reduction=True))),
        w.op("loss", "loss", logits, (Operand("head", logits),), TOKEN_DIMS),
    )
    return LayerClass("head", ops, Operand("x", IMAGE), None)
