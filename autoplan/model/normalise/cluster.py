"""Where a graph is cut into layers: at repeats where there are any, else by the clustering of Alpa (§5.2).

Both work on a list of operators in order. A cut before operator i costs the bytes of the tensors that cross it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAYERS = (16, 12, 8)  # into which a graph without repeats is cut: the most that one tensor each passes between
SLACK = 0.5  # a cluster's FLOPs may be so much above the mean, as in Alpa's published runs; more where none else fits
LEAST_PART = 0.01  # of a graph's FLOPs that repeats must do to become layers of their own


@dataclass(frozen=True)
class Repeat:
    """`count` equal pieces of `period` operators from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The operator after the last piece."""
        return self.start + self.period * self.count


def layer_starts(kinds: Sequence[str], flops: Sequence[int], crossing: Sequence[float],
                 tensors: Sequence[int]) -> list[int]:
    """Return the first operator of each layer.

    kinds: equal for equal operators. crossing [n + 1]: bytes that cross a cut before operator i. tensors [n + 1]: how
    many tensors those are.
    """
    cuts = set(_repeats(np.array(kinds), np.asarray(flops, float), np.asarray(crossing, float), np.asarray(tensors), 0,
                        len(kinds)))
    if cuts:
        return sorted(cuts | {0})
    options = [cluster(flops, crossing, most) for most in LAYERS]
    return next((starts for starts in options if all(tensors[start] == 1 for start in starts[1:])), options[0])


def _repeats(kinds: NDArray[np.str_], flops: Array, crossing: Array, tensors: NDArray[np.int64], begin: int,
             end: int) -> list[int]:
    """Return the cuts at repeats between two operators: those of the widest run, then of what is left on its sides.

    Repeats count where they do some of the work, and one tensor alone passes between the pieces or each piece has more
    than one product: a product and its norm beside a skip connection are no layer.
    """
    found = widest_repeat(kinds[begin:end], crossing[begin:end + 1])
    if found is None:
        return []
    start, stop = begin + found.start, begin + found.end
    products = np.count_nonzero(flops[start:start + found.period])
    narrow = tensors[start + found.period] == 1
    if flops[start:stop].sum() < LEAST_PART * flops.sum() or products < (1 if narrow else 2):
        return []
    cuts = [start + index * found.period for index in range(found.count + 1)]
    return [*_repeats(kinds, flops, crossing, tensors, begin, start), *(cut for cut in cuts if cut < len(kinds)),
            *_repeats(kinds, flops, crossing, tensors, stop, end)]


def widest_repeat(kinds: NDArray[np.str_], crossing: Array) -> Repeat | None:
    """Return the repeat that covers the most operators; of those of equal cover the shortest period; of its phases the
    one with most pieces and the cheapest cuts. None where nothing repeats. O(n²)."""
    count = len(kinds)
    best: tuple[int, int, int] | None = None  # cover, period, start
    for period in range(2, count // 2 + 1):
        same = np.concatenate(([False], kinds[:-period] == kinds[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            cover = int(stop - start) + period
            pieces = cover // period
            if pieces >= 2 and (best is None or pieces * period > best[0]):
                best = (pieces * period, period, int(start))
    if best is None:
        return None
    _, period, start = best
    stop = start
    while stop + period < count and kinds[stop] == kinds[stop + period]:
        stop += 1
    options = []
    for phase in range(period):
        pieces = (stop + period - start - phase) // period
        if pieces >= 2:
            cuts = [start + phase + index * period for index in range(pieces + 1)]
            options.append((-pieces, float(max(crossing[cut] for cut in cuts if cut < count)), phase))
    pieces, _, phase = min(options)
    return Repeat(start + phase, period, -pieces)


def cluster(flops: Sequence[int], crossing: Sequence[float], most: int) -> list[int]:
    """Return the starts of at most `most` clusters: the least greatest cut under a balance of FLOPs; of equal ones the
    best balanced. Exact by dynamic programming, O(n² · most)."""
    work = np.asarray(flops, float)
    most = max(1, min(most, int(np.count_nonzero(work))))
    prefix = np.concatenate(([0.0], work.cumsum()))
    cuts = np.asarray(crossing, float)[:len(work) + 1].copy()
    cuts[0] = cuts[-1] = 0.0
    bound = max(prefix[-1] / most * (1.0 + SLACK), float(work.max(initial=0.0)))
    worst = _least_worst(prefix, cuts, most, bound)
    while not np.isfinite(worst):
        bound *= 1.0 + SLACK
        worst = _least_worst(prefix, cuts, most, bound)
    return _balanced(prefix, np.where(cuts <= worst, 0.0, np.inf), most, bound)


def _allowed(prefix: Array, bound: float) -> Array:
    """Return [i, j]: 0 where operators i … j − 1 may be a cluster, else inf."""
    inside = prefix[None, :] - prefix[:, None]
    order = np.arange(len(prefix))
    return np.where((inside <= bound) & (order[:, None] < order[None, :]), 0.0, np.inf)


def _least_worst(prefix: Array, cuts: Array, most: int, bound: float) -> float:
    allowed = _allowed(prefix, bound)
    best = np.full(len(prefix), np.inf)
    best[0] = 0.0
    for _ in range(most):
        best = np.minimum(best, np.maximum(np.maximum(best[:, None], cuts[None, :]), allowed).min(axis=0))
        best[0] = 0.0
    return float(best[-1])


def _balanced(prefix: Array, cuts: Array, most: int, bound: float) -> list[int]:
    """Return the starts of the clusters whose squares of FLOPs add up to the least, over cuts that cost nothing."""
    inside = prefix[None, :] - prefix[:, None]
    price = _allowed(prefix, bound) + inside**2 + cuts[None, :]
    best = np.full(len(prefix), np.inf)
    best[0] = 0.0
    choices, ends = [], []
    for _ in range(most):
        total = best[:, None] + price
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
        ends.append(best[-1])
    index, starts = len(prefix) - 1, []
    for choice in reversed(choices[:int(np.argmin(ends)) + 1]):
        index = int(choice[index])
        starts.append(index)
    return sorted(starts)
