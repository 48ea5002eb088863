"""How wrong predictions are: pure functions over arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


def mape(predicted: Array, measured: Array) -> float | None:
    """Mean of |predicted / measured − 1|; None of nothing."""
    return float(np.mean(np.abs(predicted / measured - 1))) if len(measured) else None


def signed(predicted: Array, measured: Array) -> float | None:
    """Median of predicted / measured − 1; None of nothing."""
    return float(np.median(predicted / measured - 1)) if len(measured) else None


def spearman(predicted: Array, measured: Array) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three points or where one side is constant."""
    if len(measured) < 3 or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return float(np.corrcoef(rankdata(predicted), rankdata(measured))[0, 1])


def constant_utilisation(ideal: Array, measured: Array, groups: Sequence[Hashable]) -> Array:
    """Predict each row as its ideal time over the utilisation of the *other* rows of its group; NaN in a group of one.

    ideal, measured: seconds. The utilisation is the median of ideal / measured.
    """
    result = np.full(len(measured), np.nan)
    for group in set(groups):
        members = np.array([index for index, one in enumerate(groups) if one == group])
        for index in members:
            others = members[members != index]
            if len(others):
                result[index] = ideal[index] / np.median(ideal[others] / measured[others])
    return result


def averaged(keys: Sequence[Hashable], predicted: Array, measured: Array) -> tuple[Array, Array]:
    """Average rows of equal key; in order of first appearance."""
    order = list(dict.fromkeys(keys))
    index = {key: number for number, key in enumerate(order)}
    which = np.array([index[key] for key in keys], dtype=int)
    counts = np.bincount(which, minlength=len(order))
    return (np.bincount(which, predicted, len(order)) / counts, np.bincount(which, measured, len(order)) / counts)


def regret(predicted: Array, measured: Array) -> float:
    """How much slower than the best measured plan the one is that is predicted to be the best, a fraction."""
    return float(measured[int(np.argmin(predicted))] / measured.min() - 1)


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
