"""What is asked of a plan (`Workload`), and the words for how it may be answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The dtype of weights and activations in the forward and backward pass."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is Precision.FP32 else 2


class Recompute(StrEnum):
    """What the backward pass runs again instead of keeping it: nothing, the attention core, or the whole layer."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Schedule(StrEnum):
    """The order in which a pipeline's stages run micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


# Bytes of optimizer state a parameter, without the fp32 master copy that 16-bit training adds.
OPTIMIZER_STATE_BYTES: Mapping[str, int] = {"adam": 8, "adamw": 8, "lion": 4, "momentum": 4, "sgd": 0, "adafactor": 0}


@dataclass(frozen=True)
class Workload:
    """What is asked: one optimizer step over `global_batch_size` sequences of `seq_len` tokens."""

    global_batch_size: int
    seq_len: int
    precision: Precision = Precision.BF16
    optimizer: str = "adam"
    grad_dtype: Precision | None = None  # None: as `precision`

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch_size * self.seq_len

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight as the forward pass reads it."""
        return self.precision.bytes

    @property
    def grad_bytes(self) -> int:
        """Bytes of one accumulated gradient."""
        return (self.grad_dtype or self.precision).bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state a parameter: moments, and an fp32 master copy under 16-bit training."""
        return OPTIMIZER_STATE_BYTES[self.optimizer] + (4 if self.precision is not Precision.FP32 else 0)
