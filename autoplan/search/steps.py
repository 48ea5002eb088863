"""Measured training steps as the source of one factor: how much slower every kernel of a device is than its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from autoplan.cost.measurements import Measurement
from autoplan.cost.profile import Profile
from autoplan.cost.refine import scaled
from autoplan.errors import InputError
from autoplan.search import estimate

if TYPE_CHECKING:
    from autoplan.cluster import Cluster

LEAST, MOST = 1 / 4, 4.0  # factors beyond these are no property of a device
ROUNDS = 12  # halvings of the logarithm of that range: a factor is found to within 0.1 %


@dataclass(frozen=True)
class Step:
    """A measured step, and the arguments of `estimate` that describe it."""

    measured: Measurement
    cluster: Cluster
    arguments: dict[str, Any]

    def seconds(self, profile: Profile | None) -> float:
        """Predicted seconds. InputError, naming file and line, for a configuration that can't be priced."""
        try:
            plan = estimate(cluster=self.cluster, profile=profile, **self.arguments)
        except InputError as error:
            raise error.at(self.measured.where) from None
        return plan.predicted.iteration_time_s


def step_of(row: Measurement) -> Step:
    """Return what a row of kind `step` describes. InputError for an unknown model or cluster."""
    from autoplan.cluster import load as load_cluster
    from autoplan.model import load as load_model

    words, sizes = dict(row.words), {name: int(size) for name, size in row.sizes.items()}
    try:
        model, cluster = load_model(words.pop("model")), load_cluster(row.target)
    except InputError as error:
        raise error.at(row.where) from None
    if "sequence_parallel" in words:
        sizes["sequence_parallel"] = words.pop("sequence_parallel") == "true"
    return Step(row, cluster, {"model": model, **sizes, **words})


def scale_of(steps: Sequence[Step], device: str, profile: Profile) -> float:
    """Return the factor of all kernels of `device` at which the median of predicted/measured step times is 1.

    The prediction grows with the factor, so halving finds it. InputError where no factor from 1/4 to 4 does.
    """
    def off(scale: float) -> float:
        tried = scaled(profile, device, scale)
        return median(math.log(step.seconds(tried) / step.measured.seconds) for step in steps)

    low, high = LEAST, MOST
    if abs(off(1.0)) < 1e-6:
        return 1.0
    if not off(low) < 0 < off(high):
        raise InputError("no factor of the device's kernels from 1/4 to 4 explains the measured steps",
                         where=steps[0].measured.where, found=f"predicted/measured {math.exp(off(1.0)):.3g}")
    for _ in range(ROUNDS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if off(middle) < 0 else (low, middle)
    return math.sqrt(low * high)
