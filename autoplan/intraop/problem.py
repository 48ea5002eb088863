"""The intra-operator problem as data: nodes that choose one strategy each, edges that price pairs, memory over time.

    minimise    Σ_i costs_i[s_i] + Σ_(u,v) edge_costs_uv[s_u, s_v]
    subject to  Σ_(terms live at t) usage_term[s_node] ≤ limit          at every time t

The form is that of Alpa's ILP (Zheng et al., OSDI'22, §4.2) and of the public IOPDDL contest (google/iopddl).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Status = Literal["optimal", "feasible", "infeasible", "time_limit"]


@dataclass(frozen=True, eq=False)
class UsageTerm:
    """Memory that `node` holds at the times start ≤ t < end: `usage` [K_node] bytes, by strategy.

    A node may have several terms (state that always lives, workspace at one time). An empty interval holds nothing.
    """

    node: int
    start: int
    end: int
    usage: FloatArray


@dataclass(frozen=True)
class Evaluation:
    """What a choice costs and holds.

    cost: seconds, inf if a forbidden strategy or pair is chosen. peak: the most bytes held at one time; peak_time: the
    first time that holds them (None without usage). violated: `(start, end, excess)` for each maximal window over the
    limit, with its greatest excess in bytes. feasible: finite cost and no violated window.
    """

    cost: float
    peak: float
    peak_time: int | None
    violated: tuple[tuple[int, int, float], ...]
    feasible: bool


@dataclass(frozen=True)
class Conflict:
    """Why nothing fits: at start ≤ t < end every choice holds at least `excess` bytes more than the limit.

    Of several windows, it is the first of the greatest excess: no smaller raise of the limit can help.

    Without a window (start is None) no choice has finite cost.
    """

    start: int | None
    end: int | None
    excess: float


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    choice: one strategy a node, None if none was found. cost: its seconds, inf without choice. lower_bound: seconds no
    choice can beat. gap: (cost − lower_bound) / |cost|. status: `optimal` (proven), `feasible` (not proven),
    `infeasible` (proven), `time_limit` (nothing found in time). solver: who found it. seconds: wall time, not compared.
    conflict: why nothing fits, where that is known.
    """

    choice: tuple[int, ...] | None
    cost: float
    lower_bound: float
    gap: float
    status: Status
    solver: str
    seconds: float = field(default=0.0, compare=False)
    conflict: Conflict | None = None


class Priceable(Protocol):
    """A problem that can price a choice."""

    def evaluate(self, choice: Sequence[int]) -> Evaluation:
        """Price `choice` (one strategy index a node) and check it against the limit at every time."""


def solution(problem: Priceable, choice: Sequence[int] | None, status: Status, solver: str, *,
             lower_bound: float = -math.inf, seconds: float = 0.0) -> Solution:
    """Build the `Solution` of a choice, re-priced on `problem`; of `optimal` ones the bound is the cost itself."""
    if choice is None:
        bound = math.inf if status == "infeasible" else lower_bound
        return Solution(None, math.inf, bound, 0.0 if status == "infeasible" else math.inf, status, solver, seconds)
    cost = problem.evaluate(choice).cost
    bound = cost if status == "optimal" else min(cost, lower_bound)
    gap = 0.0 if bound == cost else (cost - bound) / max(abs(cost), math.ulp(0.0))
    return Solution(tuple(int(c) for c in choice), cost, bound, gap, status, solver, seconds)


@dataclass(frozen=True, eq=False)
class IntraOpProblem:
    """Nodes with strategies, edges with pair costs, usage terms and one limit.

    names: one a node. costs: per node [K_i] seconds, inf = forbidden. edges: pairs of node indices (parallel edges add
    up; a self-loop prices its diagonal). edge_costs: per edge [K_u, K_v] seconds, inf = forbidden pair. usages: see
    `UsageTerm`; bytes ≥ 0. limit: bytes at any time (equality allowed).

    Raises ValueError if the shapes don't agree or a value is NaN, −inf or (usage) negative or infinite.
    """

    names: tuple[str, ...]
    costs: tuple[FloatArray, ...]
    edges: tuple[tuple[int, int], ...]
    edge_costs: tuple[FloatArray, ...]
    usages: tuple[UsageTerm, ...] = ()
    limit: float = math.inf

    def __post_init__(self) -> None:
        n = len(self.costs)
        if len(self.names) != n or len(self.edges) != len(self.edge_costs):
            raise ValueError(f"{len(self.names)} names for {n} nodes, {len(self.edge_costs)} matrices for "
                             f"{len(self.edges)} edges")
        for name, cost in zip(self.names, self.costs, strict=True):
            if cost.ndim != 1 or not cost.size or not (cost > -np.inf).all():
                raise ValueError(f"node {name}: costs must be a non-empty vector without NaN or −inf")
        for (u, v), cost in zip(self.edges, self.edge_costs, strict=True):
            if not (0 <= u < n and 0 <= v < n) or cost.shape != (self.costs[u].size, self.costs[v].size):
                raise ValueError(f"edge ({u}, {v}): matrix of shape {cost.shape} doesn't fit its nodes")
            if not (cost > -np.inf).all():
                raise ValueError(f"edge ({u}, {v}): costs must not be NaN or −inf")
        for term in self.usages:
            if not 0 <= term.node < n or term.usage.shape != self.costs[term.node].shape:
                raise ValueError(f"usage of node {term.node}: shape {term.usage.shape} doesn't fit the node")
            if not ((term.usage >= 0) & (term.usage < np.inf)).all():
                raise ValueError(f"usage of node {term.node}: bytes must be finite and ≥ 0")
        if not self.limit >= 0:
            raise ValueError("the limit must be ≥ 0")

    @property
    def tolerance(self) -> float:
        """Bytes over the limit that are rounding: 1e-12 of it, but never one whole byte."""
        return min(0.5, 1e-12 * abs(self.limit)) if math.isfinite(self.limit) else 0.0

    def evaluate(self, choice: Sequence[int]) -> Evaluation:
        """Price `choice` (one strategy index a node) and check it against the limit at every time.

        Raises ValueError if `choice` isn't one valid index a node.
        """
        if len(choice) != len(self.costs):
            raise ValueError(f"{len(choice)} strategies for {len(self.costs)} nodes")
        for name, cost, s in zip(self.names, self.costs, choice, strict=True):
            if not 0 <= s < cost.size:
                raise ValueError(f"node {name}: strategy {s} of {cost.size}")
        parts = [float(c[s]) for c, s in zip(self.costs, choice, strict=True)]
        parts += [float(c[choice[u], choice[v]]) for (u, v), c in zip(self.edges, self.edge_costs, strict=True)]
        total = math.fsum(parts)
        held = [(t.start, t.end, float(t.usage[choice[t.node]])) for t in self.usages if t.start < t.end]
        spans = np.array([(start, end) for start, end, _ in held], dtype=np.int64).reshape(-1, 2)
        used = np.array([nbytes for _, _, nbytes in held])
        return usage_windows(total, spans[:, 0], spans[:, 1], used, self.limit, self.tolerance)

    def live_sets(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return `(time, indices of the terms live then)` for the times that can bind: the maximal live sets.

        Usage is never negative, so a time whose live terms are a subset of another's can't exceed the limit alone.
        """
        terms = [(i, t) for i, t in enumerate(self.usages) if t.start < t.end and t.usage.any()]
        if not terms:
            return ()
        index = np.array([i for i, _ in terms])
        start, end = np.array([t.start for _, t in terms]), np.array([t.end for _, t in terms])
        times = np.unique(np.concatenate([start, end]))
        peaks = times[:-1][np.isin(times[:-1], start) & np.isin(times[1:], end)]
        found: dict[tuple[int, ...], int] = {}
        for time in peaks.tolist():
            found.setdefault(tuple(index[(start <= time) & (time < end)].tolist()), time)
        return tuple((time, live) for live, time in found.items())


def usage_windows(cost: float, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], used: FloatArray, limit: float,
                  tolerance: float) -> Evaluation:
    """Return the evaluation of a choice of this cost whose i-th usage is `used[i]` bytes at start[i] ≤ t < end[i]."""
    live = start < end
    start, end, used = start[live], end[live], used[live]
    if not used.size:
        return Evaluation(cost, 0.0, None, (), math.isfinite(cost))
    times, at = np.unique(np.concatenate([start, end]), return_inverse=True)
    level = np.bincount(at, np.concatenate([used, -used]), times.size).cumsum()[:-1]
    top = int(level.argmax())
    violated = _windows(times, level - limit, tolerance)
    return Evaluation(cost, float(level[top]), int(times[top]), violated, math.isfinite(cost) and not violated)


def _windows(times: npt.NDArray[np.int64], excess: FloatArray, tolerance: float) -> tuple[tuple[int, int, float], ...]:
    """Return the maximal runs of segments [times[i], times[i+1]) whose excess is over the tolerance."""
    over = np.concatenate([[False], excess > tolerance, [False]])
    first, last = np.flatnonzero(~over[:-1] & over[1:]), np.flatnonzero(over[:-1] & ~over[1:])
    return tuple((int(times[a]), int(times[b]), float(excess[a:b].max())) for a, b in zip(first, last, strict=True))
