"""Non-dominated rows within groups, vectorised over the groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray

IndexArray = npt.NDArray[np.intp]
WordArray = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]

_PIVOTS = 8  # rows of each group that a round settles


def pareto_rows(values: FloatArray, starts: IndexArray, words: Callable[[IndexArray], WordArray]) -> IndexArray:
    """Return the indices of the non-dominated rows of each group, group after group.

    values: [D, R], lower is better in each column; their sums must be exact (whole numbers). starts: [G] first row of
    each group; groups are adjacent and not empty. words: rows → [W, len(rows)] preference, most significant word first:
    of rows of a group that are equal in all D only the one with the lowest words is returned.

    Rows are sorted by group and by the sum of their columns, so that every row comes after all that dominate it. Each
    round then settles the first few undecided rows of every group and drops what they dominate, for all groups at once:
    the work is at most (rows) × (rows of the largest answer).
    """
    rows = values.shape[1]
    if not rows:
        return np.zeros(0, dtype=np.intp)
    group = np.repeat(np.arange(starts.size), np.diff(starts, append=rows))
    index = np.arange(rows)
    values = values[values.min(axis=1) != values.max(axis=1)]
    score = values.sum(axis=0)
    if rows > 2 * starts.size:
        values, score, group, index = _thin(values, score, group, index)
    order = np.lexsort((score, group))
    if (same := (np.diff(score[order]) == 0) & (np.diff(group[order]) == 0)).any():
        tied = np.zeros(order.size, dtype=np.bool_)
        tied[:-1] |= same
        tied[1:] |= same
        rank = np.zeros(order.size, dtype=np.intp)
        at = order[tied]
        rank[at[np.lexsort(tuple(words(index[at])[::-1]))]] = np.arange(at.size)
        order = np.lexsort((rank, score, group))
    values, group, index = values[:, order], group[order], index[order]

    undecided, done = np.arange(index.size), []
    while undecided.size:
        first = np.flatnonzero(np.diff(group, prepend=-1))
        beaten, head = _beaten(values, first)
        done.append(undecided[head & ~beaten])
        alive = np.flatnonzero(~(beaten | head))
        values, group, undecided = values.take(alive, axis=1), group[alive], undecided[alive]
    kept: IndexArray = index[np.sort(np.concatenate(done))]
    return kept


def _beaten(values: FloatArray, starts: IndexArray) -> tuple[BoolArray, BoolArray]:
    """Tell which rows one of the first `_PIVOTS` rows of their group beats, and which rows are among those.

    Rows are sorted so that a row is beaten only from before it: by a row ≤ in every column.
    """
    counts = np.diff(starts, append=values.shape[1])
    place = np.arange(values.shape[1]) - np.repeat(starts, counts)
    beaten = np.zeros(values.shape[1], dtype=np.bool_)
    for step in range(min(_PIVOTS, int(counts.max()))):
        pivots = starts + np.minimum(step, counts - 1)
        worse = place > step
        for column in values:
            worse &= np.repeat(column[pivots], counts) <= column
        beaten |= worse
    return beaten, place < _PIVOTS


def _thin(values: FloatArray, score: FloatArray, group: IndexArray, index: IndexArray,
          ) -> tuple[FloatArray, FloatArray, IndexArray, IndexArray]:
    """Drop rows that are strictly dominated by the best row of their group by one of a few weightings: O(R)."""
    scale = 1 / np.ptp(values, axis=1, keepdims=True) if values.size else values
    even = (values * scale).sum(axis=0)
    for column in (None, *range(len(values))):
        if index.size <= group[-1] + 1:
            break
        aim = even if column is None else even + 1e3 * scale[column] * values[column]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        counts = np.diff(starts, append=index.size)
        hits = np.flatnonzero(aim == np.repeat(np.minimum.reduceat(aim, starts), counts))
        pivots = hits[np.flatnonzero(np.diff(group[hits], prepend=-1))]
        beaten = np.repeat(score[pivots], counts) < score
        for one in values:
            beaten &= np.repeat(one[pivots], counts) <= one
        alive = np.flatnonzero(~beaten)
        values, score, group, index, even = values[:, alive], score[alive], group[alive], index[alive], even[alive]
    return values, score, group, index


def undominated(values: FloatArray, keys: npt.NDArray[np.int64]) -> IndexArray:
    """Return the rows that no other row with the same key beats, ascending; of equal ones the first.

    values [D, N]: lower is better. keys [N, W]. Values are rounded to 2^-40 of the greatest of their kind.
    """
    greatest = np.maximum(np.abs(values).max(axis=1, initial=0.0, keepdims=True), np.finfo(float).tiny)
    rounded = np.rint(values / greatest * 2.0**40)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    starts = np.flatnonzero(np.diff(group.reshape(-1)[order], prepend=-1))
    kept = pareto_rows(rounded[:, order], starts, lambda rows: rows.astype(np.uint64)[None, :])
    return np.sort(order[kept])
