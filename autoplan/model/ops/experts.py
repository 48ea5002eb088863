"""Products with the weights of experts: a matrix product for each expert, over the tokens that were sent to it.

`out[batch, seq, experts, …] = Σ x[batch, seq, experts, …] · w[experts, …]`, where of all pairs of a token and an expert
only a few exist: the operands' `density`. A split of `experts` gives each device whole experts; its tokens come and go
by the conversions of x and of the output. Splits of `batch` or `seq` split each expert's tokens.
"""

from __future__ import annotations

import math

from autoplan.model.graph import EXPERTS, TOKEN_DIMS, UNSPLIT, Op
from autoplan.model.ops.work import Counts, Gemm, Numerics, Sizes, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every loop dim but those of `UNSPLIT`."""
    return tuple(dim.name for dim in op.dims if dim.name not in UNSPLIT)


def flops(op: Op, sizes: Counts) -> int:
    """Return forward FLOPs: each token passes `top_k` experts, however many places there are for it."""
    return 2 * int(op.attr("top_k") or 1) * math.prod(sizes[dim.name] for dim in op.dims if dim.name != EXPERTS)


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """As a contraction, in batches: one product an expert that the device holds."""
    experts = sizes[EXPERTS]
    m = volume(sizes, TOKEN_DIMS) * op.output.density
    n = volume(sizes, tuple(name for name in op.output.dims if name not in (*TOKEN_DIMS, EXPERTS)))
    k = volume(sizes, op.contracted)
    return Work(
        forward=(Gemm(m, n, k, experts),),
        backward=(Gemm(m, k, n, experts), Gemm(k, n, m, experts, gradient=True)),
        keeps_inputs=not numerics.frozen,
        workspace=numerics.element_bytes * experts * m * (n + k),
    )
