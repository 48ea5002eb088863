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


@st.composite
def tied_problems(draw: st.DrawFn) -> IntraOpProblem:
    """A tree and a few more edges over 7 nodes of 3 strategies, many of whose edges tie strategies one to one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = 7
    nodes = tuple(rng.integers(0, 20, 3).astype(float) for _ in range(n))
    edges = [(int(rng.integers(i)), i) for i in range(1, n)] + [tuple(rng.choice(n, 2).tolist()) for _ in range(2)]
    matrices = []
    for _ in edges:
        matrix = rng.integers(0, 20, (3, 3)).astype(float)
        kind = rng.integers(4)
        if kind < 2:
            order = rng.permutation(3) if kind == 0 else rng.integers(0, 3, 3)
            matrix[np.arange(3)[None, :] != order[:, None]] = np.inf
        matrices.append(matrix if rng.random() < 0.5 else matrix.T.copy())
    terms = tuple(UsageTerm(int(rng.integers(n)), int(a), int(a + rng.integers(1, 5)), rng.integers(0, 9, 3) * 1.0)
                  for a in rng.integers(0, 6, 6))
    limit = float(draw(st.integers(4, 24)))
    return IntraOpProblem(tuple(f"n{i}" for i in range(n)), nodes, tuple(edges), tuple(matrices), terms, limit)
