"""Lower bounds of a uniform pipeline's step time, for many variants (recompute × ZeRO) at once.

All ways of cutting equal layers into stages have the same sum of stage times, so only the slowest stage matters; the
least slowest stage that leaves room for all layers under every stage's memory is found by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UniformStages:
    """V variants of a pipeline of p stages over a first layer, `count` equal layers and a last layer.

    first, layer, last [V]: seconds a micro-batch of each, the first and last with what their stage sends. middle [V]:
    seconds a micro-batch that a stage in between pays besides its layers (two sends). most [V, p]: the most equal
    layers that fit on each stage, -1 where not even none fits. step [V]: a lower bound of max_stages step.
    """

    count: int
    num_stages: int
    first: Array
    layer: Array
    last: Array
    middle: Array
    most: NDArray[np.int64]
    step: Array


@dataclass(frozen=True)
class MemoryPrices:
    """What memory costs in time at Q prices: a stage of L layers that fits takes at least L · layer − budget seconds.

    layer [V, Q, p]: least seconds of a layer, its bytes paid for. budget [Q]: what all bytes of a device cost.
    """

    layer: Array
    budget: Array


def objective(stages: UniformStages, num_micro_batches: int, prices: MemoryPrices | None = None, *,
              bubble: bool = True) -> Array:
    """Return for each variant Σ + (m − 1) · slowest + step, inf where the layers don't fit, [V].

    bubble: False leaves the pipeline's bubble out: m · slowest + step, which no schedule is faster than.
    """
    p, count = stages.num_stages, stages.count
    fixed = np.repeat(stages.middle[:, None], p, axis=1)
    fixed[:, 0], fixed[:, -1] = stages.first, stages.last
    if p == 1:
        fixed[:, 0] = stages.first + stages.last
    total = fixed.sum(axis=1) + count * stages.layer
    least = np.ones(p)
    least[0] = least[-1] = 0.0  # a stage in between holds at least one layer

    whole = np.arange(count + 1)[None, :] * stages.layer[:, None]
    limits = np.sort(np.concatenate([whole + fixed[:, [i]] for i in sorted({0, min(1, p - 1), p - 1})], axis=1), axis=1)
    rows = np.arange(len(limits))

    def enough(index: NDArray[np.int64]) -> NDArray[np.bool_]:
        limit = limits[rows, index][:, None] * (1.0 + 1e-12)
        room = np.floor((limit - fixed) / stages.layer[:, None] + 1e-9)
        room = np.minimum(np.where(limit >= fixed, room, -1.0), stages.most)
        if prices is not None and len(prices.budget):
            paid = np.floor((limit[..., None] + prices.budget[:, None]) / prices.layer + 1e-9)  # [V, Q, p]
            room = np.minimum(room, paid.min(axis=1))
        ok: NDArray[np.bool_] = (room >= least).all(axis=1) & (room.sum(axis=1) >= count)
        return ok

    low = np.zeros(len(limits), np.int64)
    high = np.full(len(limits), limits.shape[1] - 1)
    possible = enough(high)
    while (low < high).any():
        half = (low + high) // 2
        good = enough(half)
        high = np.where(good, half, high)
        low = np.where(good, low, np.minimum(half + 1, high))
    slowest = limits[rows, high]
    busy = (total if bubble else slowest) + (num_micro_batches - 1) * slowest
    return np.where(possible, busy + stages.step, np.inf)


def chunked_objective(stages: UniformStages, layers: Sequence[int], num_micro_batches: int,
                      virtual_stages: float) -> Array:
    """Return each variant's step time with `layers` [p] on the stages, in v chunks each; inf where they don't fit.

    virtual_stages: those of interleaved 1F1B, by which its bubble shrinks; inf leaves the bubble out.
    """
    p = stages.num_stages
    each = np.array(layers)
    fixed = np.repeat(stages.middle[:, None], p, axis=1)
    fixed[:, 0], fixed[:, -1] = stages.first, stages.last
    times = fixed + each[None, :] * stages.layer[:, None]
    slowest = times.max(axis=1)
    total = num_micro_batches * slowest + (times.sum(axis=1) - slowest) / virtual_stages + stages.step
    return np.where((stages.most >= each).all(axis=1), total, np.inf)
