"""Small random problems for the solver tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from autoplan.intraop.problem import IntraOpProblem, UsageTerm


@st.composite
def problems(draw: st.DrawFn, *, usage: bool = True, whole: bool = False) -> IntraOpProblem:
    """Up to 6 nodes of up to 4 strategies, with forbidden entries, parallel edges, self-loops and usage terms.

    whole: costs are small whole numbers, so that ties are common; else fractions over several magnitudes.
    """
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    n = len(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    forbidden = draw(st.sampled_from([0.0, 0.1, 0.4]))
    unit = 1.0 if whole else draw(st.sampled_from([1e-9, 1.0, 1e9]))

    def costs(*shape: int) -> np.ndarray:
        values = rng.integers(0, 6, shape).astype(float) if whole else rng.random(shape) * unit
        return np.where(rng.random(shape) < forbidden, np.inf, values)

    nodes = tuple(costs(k) for k in sizes)
    node = st.integers(0, n - 1)
    edges = tuple(draw(st.lists(st.tuples(node, node), max_size=9)))
    matrices = tuple(costs(sizes[u], sizes[v]) for u, v in edges)
    terms, limit = [], np.inf
    if usage:
        for i, start, length in draw(st.lists(st.tuples(node, st.integers(0, 5), st.integers(0, 4)), max_size=8)):
            terms.append(UsageTerm(i, start, start + length, rng.integers(0, 9, sizes[i]) * 1e9))
        limit = draw(st.integers(0, 30)) * 1e9
    return IntraOpProblem(tuple(f"n{i}" for i in range(n)), nodes, edges, matrices, tuple(terms), limit)
