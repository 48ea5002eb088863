"""Residual adds, rotary and learned positions, activation functions: bound by memory, one pass each way.

The attribute `function` tells which: "add", "rotary", "position", "pass" (the first tensor as it is; nothing is
done), "pool" (one vector for a sequence), or the name of an activation function.
"""

from __future__ import annotations

from autoplan.model.graph import KV_SEQ, SEQ, UNSPLIT, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, StreamKind, Work, volume

BY_OUTPUT = ("relu", "sigmoid", "tanh")  # functions whose backward pass needs their output alone
LINEAR = ("add", "rotary", "position", "pass", "pool")  # functions whose backward pass needs none of their inputs


def splittable(op: Op) -> tuple[str, ...]:
    """Every dim but `hidden`, `kv_seq` and those of `UNSPLIT`: the residual stream is split along tokens only."""
    whole = ("hidden", KV_SEQ, *((SEQ,) if op.attr("function") == "pool" else ()))
    return tuple(dim.name for dim in op.dims if dim.name not in UNSPLIT and dim.name not in whole)


def flops(op: Op, sizes: Counts) -> int:
    """Count none: the field's FLOPs are those of the matrix products."""
    return 0


def is_linear(op: Op) -> bool:
    """Whether the gradient needs no input of the forward pass."""
    return op.attr("function") in LINEAR


def kind_of(op: Op) -> StreamKind:
    """Return the measured kernels that the function runs as fast as."""
    kinds: dict[object, StreamKind] = {"add": "elementwise", "position": "elementwise", "rotary": "rotary"}
    return kinds.get(op.attr("function"), "activation")


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward reads each input and writes the output; backward of an add only passes its gradient on.

    With dropout, which is fused into the residual add, a mask of a byte an element is kept, and backward applies it.
    """
    each = numerics.element_bytes * op.output.density * volume(sizes, op.output.dims)
    inputs = len(op.inputs)
    if op.attr("function") == "pass":
        return Work(forward=(), backward=(), keeps_inputs=False)
    add = op.attr("function") == "add"
    linear = is_linear(op)
    kind = kind_of(op)
    mask = each / numerics.element_bytes if add and numerics.dropout else 0.0 * each
    moved_back = (2 * each + mask) * (mask > 0) if add else each * (1 + inputs + (0 if linear else inputs))
    return Work(
        forward=(Stream(each * (inputs + 1) + mask, kind),),
        backward=(Stream(moved_back, kind),),
        keeps_inputs=not linear and op.attr("function") not in BY_OUTPUT,
        keeps_output=op.attr("function") in BY_OUTPUT,
        extra_saved=mask,
        workspace=each * (inputs + 1),
    )
