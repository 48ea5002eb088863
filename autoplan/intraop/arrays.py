"""The intra-operator problem as a handful of flat arrays: the form for instances of 10⁴ to 10⁶ strategies.

It says the same as `IntraOpProblem` (`from_problem` and `to_problem` convert), without a Python object a node or edge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import Evaluation, FloatArray, IntraOpProblem, UsageTerm, usage_windows

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProblemArrays:
    """N nodes, E edges, M usage terms, concatenated; `…_at[i]:…_at[i + 1]` is the part of the i-th.

    node_at [N + 1], node_cost: seconds by strategy, inf = forbidden. edge_u, edge_v [E]: nodes (parallel edges add up;
    a self-loop prices its diagonal). edge_at [E + 1], edge_cost: K_u·K_v entries an edge, row-major. term_node,
    term_start, term_end [M]: the node holds the term's bytes at start ≤ t < end. term_at [M + 1], usage: bytes by
    strategy. limit: bytes at any time.

    Raises ValueError if the arrays don't agree or a value is NaN, −inf or (usage) negative or infinite.
    """

    node_at: IntArray
    node_cost: FloatArray
    edge_u: IntArray
    edge_v: IntArray
    edge_at: IntArray
    edge_cost: FloatArray
    term_node: IntArray
    term_start: IntArray
    term_end: IntArray
    term_at: IntArray
    usage: FloatArray
    limit: float = math.inf

    def __post_init__(self) -> None:
        sizes, n = np.diff(self.node_at), self.node_at.size - 1
        if (sizes < 1).any():
            raise ValueError(f"node {int(np.argmax(sizes < 1))}: no strategies")
        _check_range("edge", np.concatenate([self.edge_u, self.edge_v]), n)
        _check_range("usage", self.term_node, n)
        _check_sizes("edge", np.diff(self.edge_at), sizes[self.edge_u] * sizes[self.edge_v])
        _check_sizes("usage", np.diff(self.term_at), sizes[self.term_node])
        if not ((self.node_cost > -np.inf).all() and (self.edge_cost > -np.inf).all()):
            raise ValueError("costs must not be NaN or −inf")
        if not ((self.usage >= 0) & (self.usage < np.inf)).all():
            raise ValueError("bytes must be finite and ≥ 0")
        if not self.limit >= 0:
            raise ValueError("the limit must be ≥ 0")

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return self.node_at.size - 1

    @property
    def tolerance(self) -> float:
        """Bytes over the limit that are rounding, as in `IntraOpProblem.tolerance`."""
        return min(0.5, 1e-12 * abs(self.limit)) if math.isfinite(self.limit) else 0.0

    def evaluate(self, choice: Sequence[int] | IntArray) -> Evaluation:
        """Price `choice` (one strategy index a node) and check it against the limit at every time: exact sums.

        Raises ValueError if `choice` isn't one valid index a node.
        """
        chosen = np.asarray(choice, dtype=np.int64)
        sizes = np.diff(self.node_at)
        if chosen.shape != sizes.shape:
            raise ValueError(f"{chosen.size} strategies for {sizes.size} nodes")
        bad = (chosen < 0) | (chosen >= sizes)
        if bad.any():
            node = int(bad.argmax())
            raise ValueError(f"node {node}: strategy {chosen[node]} of {sizes[node]}")
        pair = self.edge_at[:-1] + chosen[self.edge_u] * sizes[self.edge_v] + chosen[self.edge_v]
        total = math.fsum(np.concatenate([self.node_cost[self.node_at[:-1] + chosen], self.edge_cost[pair]]).tolist())
        used = self.usage[self.term_at[:-1] + chosen[self.term_node]]
        return usage_windows(total, self.term_start, self.term_end, used, self.limit, self.tolerance)


def _check_range(what: str, nodes: IntArray, count: int) -> None:
    if nodes.size and not (nodes.min() >= 0 and nodes.max() < count):
        raise ValueError(f"{what} of a node outside 0 … {count - 1}")


def _check_sizes(what: str, found: IntArray, wanted: IntArray) -> None:
    if found.shape != wanted.shape or (found != wanted).any():
        index = int((found != wanted).argmax()) if found.shape == wanted.shape else min(found.size, wanted.size)
        raise ValueError(f"{what} {index}: the number of entries doesn't fit its nodes")


def offsets(sizes: Sequence[int] | IntArray) -> IntArray:
    """Return where parts of these sizes begin and end when concatenated: [n + 1]."""
    at = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=at[1:])
    return at


def from_problem(problem: IntraOpProblem) -> ProblemArrays:
    """Return the problem as flat arrays."""
    def join(parts: Sequence[FloatArray]) -> FloatArray:
        return np.concatenate([p.ravel() for p in parts]) if parts else np.zeros(0)

    edges = np.array(problem.edges, dtype=np.int64).reshape(-1, 2)
    terms = np.array([(t.node, t.start, t.end) for t in problem.usages], dtype=np.int64).reshape(-1, 3)
    return ProblemArrays(
        offsets([c.size for c in problem.costs]), join(problem.costs), edges[:, 0].copy(), edges[:, 1].copy(),
        offsets([c.size for c in problem.edge_costs]), join(problem.edge_costs), terms[:, 0].copy(), terms[:, 1].copy(),
        terms[:, 2].copy(), offsets([t.usage.size for t in problem.usages]), join([t.usage for t in problem.usages]),
        problem.limit)


def to_problem(arrays: ProblemArrays) -> IntraOpProblem:
    """Return the problem with an array (a view) a node, an edge and a usage term; nodes are named by their index."""
    sizes = np.diff(arrays.node_at).tolist()
    edges = tuple(zip(arrays.edge_u.tolist(), arrays.edge_v.tolist(), strict=True))
    costs = tuple(arrays.node_cost[a:b] for a, b in itertools.pairwise(arrays.node_at.tolist()))
    matrices = tuple(arrays.edge_cost[a:b].reshape(sizes[u], sizes[v]) for (u, v), a, b in
                     zip(edges, arrays.edge_at[:-1].tolist(), arrays.edge_at[1:].tolist(), strict=True))
    terms = tuple(UsageTerm(node, start, end, arrays.usage[a:b]) for node, start, end, a, b in
                  zip(arrays.term_node.tolist(), arrays.term_start.tolist(), arrays.term_end.tolist(),
                      arrays.term_at[:-1].tolist(), arrays.term_at[1:].tolist(), strict=True))
    return IntraOpProblem(tuple(map(str, range(len(sizes)))), costs, edges, matrices, terms, arrays.limit)
