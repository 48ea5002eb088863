"""What is simulated: a pipeline's stages, the sends between them, and the links these go over."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from autoplan.workload import Schedule


@dataclass(frozen=True)
class Work:
    """What a stage's devices do: seconds of a micro-batch over all chunks of the stage, and of a step.

    forward, backward, weight: the forward pass, the backward pass without the weights' gradients, and these. step: what
    follows the last backward pass. saved, fixed: bytes that each micro-batch holds, and that are held always.
    """

    forward: float
    backward: float
    weight: float
    step: float = 0.0
    saved: float = 0.0
    fixed: float = 0.0


@dataclass(frozen=True)
class Send:
    """Seconds that one tensor takes to another stage, and the link it takes, which carries one tensor at a time."""

    seconds: float
    link: Hashable


@dataclass(frozen=True)
class Pipeline:
    """A schedule of m micro-batches over stages. sends: by the stages that a tensor comes from and goes to; between
    others it is there at once.

    waits: whether the stage that receives computes nothing while the tensor is on its way, as where sends are not
    overlapped; else a tensor leaves as soon as it is computed and the link is free.
    """

    schedule: Schedule
    num_micro_batches: int
    virtual_stages: int
    stages: tuple[Work, ...]
    sends: Mapping[tuple[int, int], Send]
    waits: bool = True

    @property
    def pieces(self) -> int:
        """How many pieces of work a step has."""
        kinds = 3 if self.schedule.splits_backward else 2
        return kinds * len(self.stages) * self.virtual_stages * self.num_micro_batches
