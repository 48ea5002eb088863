"""Contractions: `out[…] = Σ x[…] · w[…]`, the heavy ones. Loop dims split into tokens m, outputs n, contracted k."""

from __future__ import annotations

import math

from autoplan.model.graph import TOKEN_DIMS, Op
from autoplan.model.ops.work import Counts, Gemm, Numerics, Sizes, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every loop dim but `head_dim`: half a head is no unit of attention or of rotary embedding."""
    return tuple(dim.name for dim in op.dims if dim.name != "head_dim")


def flops(op: Op, sizes: Counts) -> int:
    """Return forward FLOPs: a multiply and an add for each point of the loop nest."""
    return 2 * math.prod(sizes[dim.name] for dim in op.dims)


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward GEMM (m, n, k); backward dX = dY·Wᵀ is (m, k, n) and dW = Xᵀ·dY is (k, n, m)."""
    m = volume(sizes, TOKEN_DIMS)
    n = volume(sizes, tuple(name for name in op.output.dims if name not in TOKEN_DIMS))
    k = volume(sizes, op.contracted)
    return Work(
        forward=(Gemm(m, n, k),),
        backward=(Gemm(m, k, n), Gemm(k, n, m)),
        keeps_inputs=True,
        workspace=numerics.element_bytes * m * (n + k),
    )
