"""Operator families: each tells its legal splits, its FLOPs, its kernels and what it keeps for the backward pass."""

from __future__ import annotations

from types import ModuleType

from autoplan.model.graph import Op
from autoplan.model.ops import (
    attention,
    contraction,
    convolution,
    elementwise,
    embedding,
    experts,
    loss,
    norm,
    permutation,
    router,
    scan,
    stream,
)
from autoplan.model.ops.work import Counts, Numerics, Sizes, Work

FAMILIES: dict[str, ModuleType] = {
    "attention": attention,
    "combine": permutation,
    "contraction": contraction,
    "convolution": convolution,
    "dispatch": permutation,
    "elementwise": elementwise,
    "embedding": embedding,
    "experts": experts,
    "loss": loss,
    "norm": norm,
    "router": router,
    "scan": scan,
    "short_convolution": scan,
    "stream": stream,
}


def splittable(op: Op) -> tuple[str, ...]:
    """Return the loop dims of `op` that a mesh axis may split."""
    result: tuple[str, ...] = FAMILIES[op.kind].splittable(op)
    return result


def flops(op: Op, sizes: Counts) -> int:
    """Return the forward FLOPs of `op` at `sizes` (matrix products only; attention without the causal saving)."""
    result: int = FAMILIES[op.kind].flops(op, sizes)
    return result


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Return what `op` makes one device do at the local `sizes` (arrays [K])."""
    result: Work = FAMILIES[op.kind].work(op, sizes, numerics)
    return result
