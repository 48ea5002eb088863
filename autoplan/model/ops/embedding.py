"""Token embedding: a look-up. A split of the vocabulary is a masked look-up (no FLOPs) whose results are summed."""

from __future__ import annotations

from autoplan.model.graph import BATCH, SEQ, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Tokens and vocabulary."""
    return (BATCH, SEQ, "vocab")


def flops(op: Op, sizes: Counts) -> int:
    """Count none: nothing is multiplied."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward reads a row a token and writes it; backward adds each gradient row into the table's gradient."""
    each = numerics.element_bytes * volume(sizes, op.output.dims)
    return Work(forward=(Stream(2 * each, "embedding"),), backward=(Stream(3 * each, "embedding", gradient=True),),
                keeps_inputs=False, workspace=each)
