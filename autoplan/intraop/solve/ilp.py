"""The intra-operator problem as an integer linear programme in the tight form.

    x_is ∈ {0, 1}:  Σ_s x_is = 1                              every node
    e_st ∈ [0, 1]:  Σ_t e_st = x_us,  Σ_s e_st = x_vt         every edge (u, v), every s and t
    Σ_i usage_i(t) · x_i ≤ limit                              every maximal live set t

The tight form (Koster et al. 1998, "The partial constraint satisfaction problem") has an almost integral relaxation,
and the edge variables need not be declared integer; Alpa's `e_st ≥ x_us + x_vt − 1` is far weaker. Forbidden entries
are fixed to 0. Costs are shifted by each node's and edge's least entry and scaled to at most `_COST_RANGE`, memory rows
to the limit, so that a solver's absolute tolerances don't depend on the units. What still passes a row by tolerance
is cut off exactly: see `cover_cuts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import FloatArray, IntraOpProblem
from autoplan.intraop.solve.graph import merge_edges

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_COST_RANGE = 1e4
_Entries = tuple[npt.NDArray[np.intp], FloatArray]


@dataclass(frozen=True, eq=False)
class Ilp:
    """min cost·z subject to equal·z = rhs, below·z ≤ below_rhs, 0 ≤ z ≤ upper; the first `binaries` of z are binary.

    cost, upper: [Z]. first: [N] column of each node's strategy 0. equal_entries: (row, column, value). below: rows as
    (columns, values). objective = scale · (cost·z) + offset, in seconds.
    """

    cost: FloatArray
    upper: FloatArray
    binaries: int
    first: npt.NDArray[np.intp]
    equal: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]
    rhs: FloatArray
    below: tuple[_Entries, ...]
    below_rhs: tuple[float, ...]
    scale: float
    offset: float

    def equal_matrix(self) -> csr_array:
        """Return the equality rows as a sparse matrix."""
        from scipy.sparse import csr_array

        row, column, value = self.equal
        return csr_array((value, (row, column)), shape=(self.rhs.size, self.cost.size))

    def below_matrix(self) -> csr_array:
        """Return the inequality rows as a sparse matrix."""
        from scipy.sparse import csr_array

        row = np.repeat(np.arange(len(self.below)), [columns.size for columns, _ in self.below])
        column = np.concatenate([columns for columns, _ in self.below])
        value = np.concatenate([values for _, values in self.below])
        return csr_array((value, (row, column)), shape=(len(self.below), self.cost.size))

    def choice(self, z: FloatArray) -> tuple[int, ...]:
        """Read the strategies from the binaries."""
        ends = np.append(self.first[1:], self.binaries)
        return tuple(int(z[a:b].argmax()) for a, b in zip(self.first, ends, strict=True))


def build(problem: IntraOpProblem) -> Ilp:
    """Return the programme of a problem."""
    sizes = np.array([c.size for c in problem.costs])
    first = np.cumsum(sizes) - sizes
    binaries = int(sizes.sum())
    merged, loops = merge_edges(sizes.tolist(), problem.edges, problem.edge_costs)
    blocks = [c + loops[i] if i in loops else c for i, c in enumerate(problem.costs)]
    rows = [np.repeat(np.arange(sizes.size), sizes)]
    columns = [np.arange(binaries)]
    values = [np.ones(binaries)]
    column, row = binaries, sizes.size
    for (u, v), matrix in merged.items():
        shape = matrix.shape
        e = column + np.arange(matrix.size)
        s, t = np.divmod(np.arange(matrix.size), shape[1])
        rows += [row + s, row + shape[0] + t, row + np.arange(sum(shape))]
        columns += [e, e, np.concatenate([first[u] + np.arange(shape[0]), first[v] + np.arange(shape[1])])]
        values += [np.ones(2 * matrix.size), -np.ones(sum(shape))]
        blocks.append(matrix.ravel())
        column, row = column + matrix.size, row + sum(shape)
    finite = [np.isfinite(b) for b in blocks]
    least = np.array([b[f].min(initial=np.inf) for b, f in zip(blocks, finite, strict=True)])
    least[~np.isfinite(least)] = 0.0
    cost = np.concatenate([np.where(f, b, low) - low for b, f, low in zip(blocks, finite, least, strict=True)])
    scale = float(cost.max(initial=0.0)) / _COST_RANGE or 1.0
    below, below_rhs = _memory(problem, first)
    return Ilp(cost / scale, np.concatenate(finite).astype(np.float64), binaries, first,
               (np.concatenate(rows), np.concatenate(columns), np.concatenate(values)),
               np.concatenate([np.ones(sizes.size), np.zeros(row - sizes.size)]),
               below, below_rhs, scale, float(least.sum()))


def _memory(problem: IntraOpProblem, first: npt.NDArray[np.intp]) -> tuple[tuple[_Entries, ...], tuple[float, ...]]:
    """Return a row for each maximal live set that can exceed the limit, in units of the limit."""
    rows, rhs = [], []
    for _, live in problem.live_sets():
        usage = _node_usage(problem, live)
        if sum(float(u.max()) for u in usage.values()) <= problem.limit:
            continue
        unit = problem.limit or max(float(u.max()) for u in usage.values())
        columns = np.concatenate([first[node] + np.arange(u.size) for node, u in usage.items()])
        rows.append((columns, np.concatenate(list(usage.values())) / unit))
        rhs.append(problem.limit / unit)
    return tuple(rows), tuple(rhs)


def _node_usage(problem: IntraOpProblem, live: Sequence[int]) -> dict[int, FloatArray]:
    """Return the bytes by strategy of each node with live terms."""
    usage: dict[int, FloatArray] = {}
    for index in live:
        term = problem.usages[index]
        usage[term.node] = usage.get(term.node, np.zeros(term.usage.size)) + term.usage
    return usage


def cover_cuts(problem: IntraOpProblem, ilp: Ilp, choice: Sequence[int]) -> Ilp:
    """Add the rows that cut off a choice which exceeds the limit by less than the solver's tolerance.

    At each time over the limit, not all nodes that hold memory may take a strategy that holds as much as the chosen.
    """
    rows, rhs = list(ilp.below), list(ilp.below_rhs)
    for start, end, _ in problem.evaluate(choice).violated:
        for time in sorted({t.start for t in problem.usages if start <= t.start < end} | {start}):
            live = [i for i, t in enumerate(problem.usages) if t.start <= time < t.end]
            usage = {n: u for n, u in _node_usage(problem, live).items() if u[choice[n]] > 0}
            if sum(float(u[choice[n]]) for n, u in usage.items()) - problem.limit <= problem.tolerance:
                continue
            columns = np.concatenate([ilp.first[n] + np.flatnonzero(u >= u[choice[n]]) for n, u in usage.items()])
            rows.append((columns, np.ones(columns.size)))
            rhs.append(len(usage) - 1.0)
    return replace(ilp, below=tuple(rows), below_rhs=tuple(rhs))
