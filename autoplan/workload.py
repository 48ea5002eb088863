"""What is asked of a plan (`Workload`), and the words for how it may be answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The dtype of weights and activations in the forward and backward pass.

    fp8: the products of a layer's linear projections; all else is bf16 (NVIDIA, Transformer Engine user guide). tf32:
    products alone; all is kept in fp32.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    TF32 = "tf32"
    FP8 = "fp8"

    @property
    def bytes(self) -> int:
        """Bytes of one element that is kept."""
        return 4 if self.stored is Precision.FP32 else 2

    @property
    def stored(self) -> Precision:
        """The dtype in which elements are kept."""
        return {Precision.FP8: Precision.BF16, Precision.TF32: Precision.FP32}.get(self, self)

    @property
    def unquantised(self) -> Precision:
        """The dtype of products that are not in fp8 even where others are."""
        return Precision.BF16 if self is Precision.FP8 else self


class Attention(StrEnum):
    """The kernel of attention: fused (FlashAttention, of the newest, second or first generation), or one that writes
    all scores, with scale, mask and softmax in one kernel or each in its own."""

    FLASH = "flash"
    FLASH_2 = "flash_2"
    FLASH_1 = "flash_1"
    FUSED_SOFTMAX = "fused_softmax"
    UNFUSED = "unfused"

    @property
    def fused(self) -> bool:
        """Whether scores are never written."""
        return self.generation is not None or self is Attention.FLASH

    @property
    def generation(self) -> int | None:
        """FlashAttention's generation, None for the newest (and where there is none)."""
        return {Attention.FLASH_2: 2, Attention.FLASH_1: 1}.get(self)


class Recompute(StrEnum):
    """What the backward pass runs again instead of keeping it: nothing, the attention core, or the whole layer."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Schedule(StrEnum):
    """The order in which a pipeline's stages run micro-batches.

    zb_h1, zb_h2, zb_v: the zero-bubble schedules of Qi et al. (arXiv:2401.10241).
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb_h1"
    ZB_H2 = "zb_h2"
    ZB_V = "zb_v"

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients wait while the input's gradient is sent on: a zero-bubble schedule."""
        return self in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V)

    @property
    def chunked(self) -> bool:
        """Whether a stage holds several chunks of layers (virtual stages)."""
        return self in (Schedule.INTERLEAVED, Schedule.ZB_V)


# Bytes of optimizer state a parameter, without the fp32 master copy that 16-bit training adds.
OPTIMIZER_STATE_BYTES: Mapping[str, int] = {"adam": 8, "adamw": 8, "lion": 4, "momentum": 4, "sgd": 0, "adafactor": 0}


@dataclass(frozen=True)
class Workload:
    """What is asked: one optimizer step over `global_batch_size` sequences of `seq_len` tokens."""

    global_batch_size: int
    seq_len: int
    precision: Precision = Precision.BF16
    optimizer: str = "adam"
    grad_dtype: Precision | None = None  # of accumulated gradients; None: as `precision`
    reduce_dtype: Precision | None = None  # of gradients as they travel; None: as they accumulate
    attention: Attention | None = None  # None: flash where the device has it, else fused_softmax
    dropout: bool = False  # in training; its masks are kept
    frozen: bool = False  # the weights are: low-rank adapters, too small to count, are trained beside them

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch_size * self.seq_len

    @property
    def passes(self) -> float:
        """The FLOPs of a step in forward passes: gradients of activations and of weights take one each."""
        return 2.0 if self.frozen else 3.0

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight as it is held: frozen ones need no more than fp8's one byte."""
        return 1 if self.frozen and self.precision is Precision.FP8 else self.precision.bytes

    @property
    def accumulated(self) -> Precision:
        """The dtype of accumulated gradients."""
        return self.grad_dtype or self.precision.stored

    @property
    def travelling(self) -> Precision:
        """The dtype of gradients in collectives."""
        return self.reduce_dtype or self.accumulated

    @property
    def grad_bytes(self) -> int:
        """Bytes of one accumulated gradient."""
        return self.accumulated.bytes

    @property
    def reduce_bytes(self) -> int:
        """Bytes of one gradient in a collective."""
        return self.travelling.bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state a parameter: moments, and an fp32 master copy under 16-bit training."""
        return OPTIMIZER_STATE_BYTES[self.optimizer] + (4 if self.precision.bytes < 4 else 0)
