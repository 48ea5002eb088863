"""What the partitioner is asked (`StageCosts`) and what it answers (`Partition`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class StageCosts(Protocol):
    """Costs of every stage that a chain of layers can be cut into; the partitioner knows nothing else.

    num_layers: layers of the chain, N. sizes: device quanta (≥ 1) that each of the O options uses.
    """

    @property
    def num_layers(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def at(self, s: int) -> tuple[Floats, Floats]:
        """Return (time, step) of a stage that is the s-th from the end (1 = the last), both [N, N+1, O].

        Entry [i, j, o] is for layers i … j−1 with option o: time in seconds a micro-batch, step in seconds once a
        step. inf where the stage doesn't fit (the micro-batches in flight depend on s) and wherever j ≤ i.
        """
        ...


@dataclass(frozen=True)
class StageChoice:
    """One stage: layers `first` … `last` (inclusive) with one submesh option; `from_end` is 1 for the last stage."""

    first: int
    last: int
    option: int
    from_end: int


@dataclass(frozen=True)
class Partition:
    """A chain cut into stages, first stage first.

    objective, t_max, step_max, lower_bound: seconds. Nothing reaches an objective below `lower_bound`.
    """

    stages: tuple[StageChoice, ...]
    objective: float
    t_max: float
    step_max: float
    lower_bound: float
