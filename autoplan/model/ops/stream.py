"""Whatever else is bound by memory: reductions, pooling, concatenations, softmaxes outside of attention, look-ups by
data. Each input is read and the output written.

Attributes: `function`, for people; `whole`, the dims it works along (separated by spaces), which are not split.
"""

from __future__ import annotations

from autoplan.model.graph import UNSPLIT, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """The dims that the output and all inputs have, but for those it works along."""
    whole = {*str(op.attr("whole") or "").split(), "hidden"}
    shared = set(op.output.dims).intersection(*(operand.dims for operand in op.inputs)) - whole - UNSPLIT
    return tuple(dim.name for dim in op.dims if dim.name in shared)


def flops(op: Op, sizes: Counts) -> int:
    """Count none: the field's FLOPs are those of the matrix products."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Backward reads the gradient and what was read, and writes a gradient for each input."""
    element = numerics.element_bytes
    written = element * volume(sizes, op.output.dims)
    read = sum((element * volume(sizes, operand.dims) for operand in op.inputs), 0.0 * written)
    return Work(
        forward=(Stream(read + written, "mixed"),),
        backward=(Stream(2 * read + written, "mixed"),),
        keeps_inputs=True,
        workspace=read + written,
    )
