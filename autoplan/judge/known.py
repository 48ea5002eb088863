"""What XLA on CPU is known to do otherwise than we price it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.intraop.strategies import NONE, OpStrategies
from autoplan.model.graph import SEQ
from autoplan.sharding import PARTIAL

# It sends more than we price:
AXIS_BY_AXIS = "a gradient summed over two dims, on two axes, is reduced axis by axis, not over both at once"
REPEATED_HEADS = "gradients of key and value heads on several devices are summed each micro-batch, not once a step"
PLACES = "a token's place with an expert is counted along the whole sequence, not by device"
# It sends less, where runtimes do as we price:
OWN_ROWS = "of learned positions each device's rows of the gradient are gathered, not the whole table reduced"
NO_TABLE = "a table of embeddings isn't gathered again for the backward pass, which doesn't need it"


def habit(chosen: OpStrategies, k: int, shape: Sequence[int], zero: int = 0) -> str | None:
    """Return what XLA does otherwise with strategy `k` of an operator on a mesh, None where it does what we price.

    zero: the ZeRO stage of the operator's parameters.
    """
    op, sizes = chosen.op, np.array(shape)
    dims = [dim.name for dim in op.dims]
    used = {dims[at] for at, size in zip(chosen.assign[k], shape, strict=True) if at != NONE and size > 1}
    if op.kind == "attention":
        parts = sizes[chosen.assign[k] == dims.index("heads")].prod()
        return REPEATED_HEADS if parts > int(op.attr("kv_heads") or 1) else None
    if op.kind == "dispatch" and SEQ in used:
        return PLACES
    if op.kind == "embedding" and zero == 3:
        return NO_TABLE
    if op.attr("function") == "position" and SEQ in used:
        return OWN_ROWS
    summed = [layouts[k] for layouts in (*chosen.params, *chosen.gradients)]
    twice = any(((layout == PARTIAL) & (sizes > 1)).sum() > 1 for layout in summed)
    return AXIS_BY_AXIS if twice and len(used) > 1 else None
