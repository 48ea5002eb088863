"""The router of a mixture of experts: scores of every expert for every token, in fp32, and the `top_k` best of them.

Tokens split freely. The scores are small, so no runtime splits them over the experts.
"""

from __future__ import annotations

from autoplan.model.graph import BATCH, SEQ, TOKEN_DIMS, Op
from autoplan.model.ops.work import Counts, Gemm, Numerics, Sizes, Stream, Work, volume

SCORE_BYTES = 4


def splittable(op: Op) -> tuple[str, ...]:
    """Tokens."""
    return (BATCH, SEQ)


def flops(op: Op, sizes: Counts) -> int:
    """Return the forward FLOPs of the product that makes the scores."""
    return 2 * sizes[BATCH] * sizes[SEQ] * sizes["hidden"] * sizes["routes"]


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Scores are written, normalised and searched (three passes), and kept with their normalised values."""
    m, n, k = volume(sizes, TOKEN_DIMS), sizes["routes"], sizes["hidden"]
    scores = SCORE_BYTES * m * n
    return Work(
        forward=(Gemm(m, n, k), Stream(3 * scores, "mixed")),
        backward=(Gemm(m, k, n), Gemm(k, n, m, gradient=True), Stream(3 * scores, "mixed")),
        keeps_inputs=True,
        extra_saved=2 * scores,
        workspace=scores,
    )
