"""Products of tensors as drafts: every loop dim once, also where a tensor has the same dim as another in two roles."""

from __future__ import annotations

from collections.abc import Callable

from autoplan.model.normalise.axes import Dims, Level
from autoplan.model.normalise.draft import Draft, Read
from autoplan.model.normalise.trace import Node, Trace

Holder = Callable[[str], str]  # value → the tensor that holds it


def einsum(trace: Trace, dims: Dims, node: Node, tensor: Holder) -> Draft:
    """Draft a contraction of two operands, of which at least one is data.

    A summed dim that the output has too (a square weight on the residual stream) is a loop dim of its own.
    """
    output = dict(zip(node.attrs["out"], dims.of(node.output), strict=True))
    labelled = [dict(zip(node.attrs[side], dims.of(name), strict=True)) for side, name in
                zip(("a", "b"), node.inputs, strict=True)]
    taken = {atom for axis in output.values() for atom in axis}
    loop = dict(output)
    for side in labelled:
        for label, axis in side.items():
            if label not in loop:
                loop[label] = tuple(dims.table.fresh(dims.table.size(atom)) if atom in taken else atom for atom in axis)
    reads: list[Read] = []
    weight: tuple[int, ...] = ()
    for name, side in zip(node.inputs, labelled, strict=True):
        swap = {own: new for label, axis in side.items() if len(axis) == len(loop[label])
                for own, new in zip(axis, loop[label], strict=True) if own != new}
        if dims.levels[name] is Level.DATA:
            reads.append(Read(tensor(name), swap))
        elif dims.levels[name] is Level.WEIGHT:
            weight = tuple(atom for label in side for atom in loop[label])
    every = tuple(atom for axis in loop.values() for atom in axis)
    return Draft("contraction", node.function, node.output, reads, dims.flat(node.output), every,
                 flops=trace.flops(node), weight=weight)


def convolution(trace: Trace, dims: Dims, node: Node, tensor: Holder) -> Draft:
    """Draft a convolution with the loop dims of `autoplan.model.ops.convolution`: pixels out, channels, inputs, taps.

    Input pixels are a dim of their own, and so are input channels where they are the output's too.
    """
    table = dims.table
    x, weight, out = dims.of(node.inputs[0]), dims.of(node.inputs[1]), dims.of(node.output)
    groups = node.attrs["groups"]
    inputs = tuple(table.fresh(table.size(atom)) for atom in weight[1])
    pixels = tuple(table.fresh(table.size(atom)) for axis in x[2:] for atom in axis)
    taps = tuple(atom for axis in weight[2:] for atom in axis)
    swap = dict(zip((atom for axis in x[2:] for atom in axis), pixels, strict=True))
    if groups == 1:
        swap |= dict(zip(x[1], inputs, strict=True))
    called = {**dict.fromkeys(out[1], "channels"), **dict.fromkeys(inputs, "inputs"), **dict.fromkeys(taps, "taps"),
              **dict.fromkeys(pixels, "seq_in"), **{atom: "seq" for axis in out[2:] for atom in axis}}
    loop = (*out[0], *(atom for axis in out[2:] for atom in axis), *pixels, *out[1], *inputs, *taps)
    draft = Draft("convolution", node.function, node.output, [Read(tensor(node.inputs[0]), swap)],
                  dims.flat(node.output), loop, called=called, flops=trace.flops(node),
                  weight=(*out[1], *inputs, *taps))
    if groups > 1:
        draft.attrs["groups"] = groups
    return draft
