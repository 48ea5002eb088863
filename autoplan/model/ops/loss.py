"""Softmax cross-entropy over the vocabulary, in fp32.

A split of the vocabulary exchanges three numbers a token (maximum, sum of exponentials, the target's logit), as
Megatron-LM's vocabulary-parallel cross-entropy does.
"""

from __future__ import annotations

from autoplan.model.graph import BATCH, SEQ, Op
from autoplan.model.ops.work import Counts, Numerics, Sizes, Stream, Work, volume

EXCHANGED_BYTES = 3 * 4  # bytes a token, all-reduced over the axes that split the vocabulary


def splittable(op: Op) -> tuple[str, ...]:
    """Tokens and vocabulary."""
    return (BATCH, SEQ, "vocab")


def flops(op: Op, sizes: Counts) -> int:
    """Count none: the field's FLOPs are those of the matrix products."""
    return 0


def work(op: Op, sizes: Sizes, numerics: Numerics) -> Work:
    """Logits are cast to fp32 and turned into probabilities, which are kept; backward writes the logits' gradient.

    A loss in place keeps the logits as they are, with statistics of each token, and writes the gradient over them.
    """
    logits = volume(sizes, (BATCH, SEQ, "vocab"))
    forward = (Stream(numerics.loss.forward_bytes * logits, "mixed"),)
    backward = (Stream(numerics.loss.backward_bytes * logits, "mixed"),)
    if numerics.loss.in_place:
        return Work(forward, backward, keeps_inputs=True)
    return Work(
        forward, backward,
        keeps_inputs=False,
        extra_saved=4.0 * logits,
        workspace=4.0 * logits + numerics.element_bytes * logits,
    )
