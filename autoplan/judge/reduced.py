"""The same structure in small: every size that a mesh may split keeps the parts it is split into."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autoplan.export.planned import PlannedStage
from autoplan.intraop.strategies import PADDED
from autoplan.model.graph import Dim, Op

Size = Callable[[str, int], int]

WHOLE = ("head_dim", "value_dim", "nope_dim", "rope_dim")  # parts of each other
SIZES = ("kv_heads", "window", "chunk")  # attributes of operators that are sizes


def padded(stage: PlannedStage) -> PlannedStage:
    """Return the stage with its vocabulary padded to what its devices divide, as every runtime does."""
    devices = math.prod(stage.shape)
    return _resized(stage, lambda name, size: -(-size // devices) * devices if name in PADDED else size)


def reduced(stage: PlannedStage) -> PlannedStage:
    """Return the stage in small: each size is what it has in common with twice the number of devices.

    Widths of heads stay, and a window is at most half the sequence.
    """
    most = 2 * math.prod(stage.shape)

    def shrink(name: str, size: int) -> int:
        if name == "window":
            return min(size, max(1, math.gcd(stage.seq_len, most) // 2))
        return size if name in WHOLE else math.gcd(size, most)

    small = _resized(padded(stage), shrink)
    return replace(small, micro_batch=math.gcd(stage.micro_batch, most), seq_len=math.gcd(stage.seq_len, most))


def _resized(stage: PlannedStage, size: Size) -> PlannedStage:
    layers = []
    for one in stage.layers:
        ops = tuple(_resized_op(op, size) for op in one.layer.ops)
        layers.append(replace(one, layer=replace(one.layer, ops=ops)))
    return replace(stage, layers=tuple(layers))


def _resized_op(op: Op, size: Size) -> Op:
    dims = tuple(Dim(dim.name, None if dim.size is None else size(dim.name, dim.size)) for dim in op.dims)
    attrs = tuple((name, size(name, int(value)) if name in SIZES and value else value) for name, value in op.attrs)
    return replace(op, dims=dims, attrs=attrs)
