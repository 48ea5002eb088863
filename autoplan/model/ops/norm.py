"""LayerNorm, RMSNorm, batch norm: bound by memory.

The dims that the statistics run over aren't split: those of the parameters, unless the attribute `over` names others
(separated by spaces). A batch norm's run over the tokens of a device, as everywhere but in synchronised batch norm.
"""

from __future__ import annotations

from autoplan.model.graph import UNSPLIT, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every dim that the statistics don't run over."""
    over = op.attr("over")
    normalised = {name for param in op.params for name in param.dims} if over is None else set(str(over).split())
    return tuple(dim.name for dim in op.dims if dim.name not in normalised and dim.name not in UNSPLIT)


def flops(op: Op, sizes: Counts) -> int:
    """Count none: the field's FLOPs are those of the matrix products."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward reads x and writes y; backward reads x and dy and writes dx."""
    each = numerics.element_bytes * volume(sizes, op.output.dims)
    return Work(forward=(Stream(2 * each, "norm"),), backward=(Stream(3 * each, "norm"),), keeps_inputs=True,
                workspace=3 * each)
