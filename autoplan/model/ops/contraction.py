"""Contractions: `out[…] = Σ x[…] · w[…]`, the heavy ones. Loop dims split into tokens m, outputs n, contracted k."""

from __future__ import annotations

import math

from autoplan.model.graph import TOKEN_DIMS, UNSPLIT, Op
from autoplan.model.ops.work import Counts, Gemm, Numerics, Sizes, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every loop dim but those of `UNSPLIT`: half a head is no unit of attention or of rotary embedding."""
    return tuple(dim.name for dim in op.dims if dim.name not in UNSPLIT)


def flops(op: Op, sizes: Counts) -> int:
    """Return forward FLOPs: a multiply and an add for each point of the loop nest."""
    return 2 * math.prod(sizes[dim.name] for dim in op.dims)


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Forward GEMM (m, n, k); backward dX = dY·Wᵀ is (m, k, n), where X is no data, and dW = Xᵀ·dY is (k, n, m)."""
    m = volume(sizes, TOKEN_DIMS)
    n = volume(sizes, tuple(name for name in op.output.dims if name not in TOKEN_DIMS))
    k = volume(sizes, op.contracted)
    return Work(
        forward=(Gemm(m, n, k),),
        backward=((Gemm(m, k, n),) if op.inputs else ()) + (Gemm(k, n, m, gradient=True),),
        keeps_inputs=not numerics.frozen,  # they are for the weight's gradient
        workspace=numerics.element_bytes * m * (n + k),
    )
