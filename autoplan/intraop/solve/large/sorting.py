"""A sort that compiles quickly."""

from __future__ import annotations

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.jit import part


@part
def sort_by(keys: FloatArray, order: Ints, count: int) -> None:
    """Sort the first `count` indices in `order` by their keys, in place (Shell's sort with Knuth's steps)."""
    step = 1
    while step < count // 3:
        step = 3 * step + 1
    while step > 0:
        for i in range(step, count):
            item = order[i]
            key, j = keys[item], i
            while j >= step and keys[order[j - step]] > key:
                order[j] = order[j - step]
                j -= step
            order[j] = item
        step //= 3
