"""The ways to the experts and back: `dispatch` copies each token to its experts' places, `combine` sums what returns.

Both work on the tokens a device has, so they are split along tokens; that experts live elsewhere shows in the
conversion of the dispatched tensor from a split of `batch` or `seq` to one of `experts`: an all-to-all. The routing
weights are applied inside the experts (as in Megatron Core), so `combine` is a plain sum and keeps nothing.
"""

from __future__ import annotations

from autoplan.model.graph import BATCH, EXPERTS, SEQ, TOKEN_DIMS, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume

INDEX_BYTES = 8  # of a token's place: where it goes, and its weight


def splittable(op: Op) -> tuple[str, ...]:
    """Tokens."""
    return (BATCH, SEQ)


def flops(op: Op, sizes: Counts) -> int:
    """Count none: copies and sums."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Each way reads one side and writes the other: a token once, and the places of its copies."""
    tensor = op.output if op.kind == "dispatch" else op.inputs[0]
    copies = volume(sizes, (*TOKEN_DIMS, EXPERTS)) * tensor.density
    moved = numerics.element_bytes * sizes[op.output.dims[-1]] * (volume(sizes, TOKEN_DIMS) + copies)
    return Work(
        forward=(Stream(moved, "mixed"),),
        backward=(Stream(moved, "mixed"),),
        keeps_inputs=False,
        extra_saved=INDEX_BYTES * copies if op.kind == "dispatch" else 0.0,
        workspace=moved,
    )
