"""LayerNorm and RMSNorm: bound by memory; the normalised dim is not split (its statistics would need an exchange)."""

from __future__ import annotations

from autoplan.model.graph import Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every dim that the norm's parameters don't span."""
    normalised = {name for param in op.params for name in param.dims}
    return tuple(dim.name for dim in op.dims if dim.name not in normalised and dim.name != "head_dim")


def flops(op: Op, sizes: Counts) -> int:
    """Count none: the field's FLOPs are those of the matrix products."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward reads x and writes y; backward reads x and dy and writes dx."""
    each = numerics.element_bytes * volume(sizes, op.output.dims)
    return Work(forward=(Stream(2 * each, "norm"),), backward=(Stream(3 * each, "norm"),), keeps_inputs=True,
                workspace=3 * each)
