"""Two-dimensional convolutions over images whose pixels lie along `seq`, as implicit matrix products.

`out[batch, seq, channels] = Σ_(inputs, taps) x[batch, seq_in, inputs] · w[taps, inputs, channels]`. Batch and channels
split as those of a contraction. A split of the pixels would cost an exchange of halos, which no runtime here offers.
"""

from __future__ import annotations

import math

from autoplan.model.graph import SEQ, TOKEN_DIMS, UNSPLIT, Op
from autoplan.model.ops.work import Counts, Gemm, Numerics, Sizes, Work, volume


def splittable(op: Op) -> tuple[str, ...]:
    """Every loop dim but pixels and taps."""
    return tuple(dim.name for dim in op.dims if dim.name not in UNSPLIT and dim.name != SEQ)


def flops(op: Op, sizes: Counts) -> int:
    """Return forward FLOPs: a multiply and an add for each output pixel, channel, input channel and tap."""
    return 2 * math.prod(sizes[dim.name] for dim in op.dims if dim.name != "seq_in")


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """The three products of a contraction, with k = inputs · taps. Nothing is expanded in memory."""
    m = volume(sizes, TOKEN_DIMS)
    n = volume(sizes, tuple(name for name in op.output.dims if name not in TOKEN_DIMS))
    inputs = volume(sizes, tuple(name for name in op.contracted if name not in ("taps", "seq_in")))
    k = inputs * sizes["taps"]
    read = volume(sizes, tuple(name for operand in op.inputs for name in operand.dims))
    return Work(
        forward=(Gemm(m, n, k),),
        backward=((Gemm(m, k, n),) if op.inputs else ()) + (Gemm(k, n, m, gradient=True),),
        keeps_inputs=not numerics.frozen,
        workspace=numerics.element_bytes * (m * n + read),
    )
