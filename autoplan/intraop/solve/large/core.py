"""What the reductions work on, and leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.intraop.arrays import ProblemArrays
from autoplan.intraop.problem import FloatArray

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Core:
    """A problem in the form of `ProblemArrays` whose times are 0 … T − 1, with a limit `slack` [T] each.

    seg_node, seg_low, seg_high, seg_at [M], usage: the node holds the segment's bytes at low ≤ t < high. constant:
    seconds that every choice costs beside. Reduced cores have each edge once, no loops, and their matrices normalised
    (a zero in every row and column); those of a node don't overlap in time and are sorted.
    """

    node_at: Ints
    node_cost: FloatArray
    edge_u: Ints
    edge_v: Ints
    edge_at: Ints
    edge_cost: FloatArray
    seg_node: Ints
    seg_low: Ints
    seg_high: Ints
    seg_at: Ints
    usage: FloatArray
    slack: FloatArray
    constant: float = 0.0

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return self.node_at.size - 1

    def cost(self, choice: Ints) -> float:
        """Return the seconds of a choice, constant included."""
        sizes = np.diff(self.node_at)
        pair = self.edge_at + choice[self.edge_u] * sizes[self.edge_v] + choice[self.edge_v]
        return float(self.node_cost[self.node_at[:-1] + choice].sum() + self.edge_cost[pair].sum()) + self.constant

    def room(self, choice: Ints) -> FloatArray:
        """Return the bytes left at each time, negative where the choice exceeds the limit."""
        used = self.usage[self.seg_at + choice[self.seg_node]]
        change = np.zeros(self.slack.size + 1)
        np.add.at(change, self.seg_low, used)
        np.subtract.at(change, self.seg_high, used)
        room: FloatArray = self.slack - np.cumsum(change[:-1])
        return room


@dataclass(frozen=True, eq=False)
class Times:
    """What the times of a core stand for: start ≤ t < end [T] of another problem."""

    start: Ints
    end: Ints


def as_core(arrays: ProblemArrays) -> tuple[Core, Times]:
    """Return a problem with its times numbered by where some term starts or ends; limits get the tolerance."""
    live = arrays.term_start < arrays.term_end
    start, end = arrays.term_start[live], arrays.term_end[live]
    points = np.unique(np.concatenate([start, end]))
    core = Core(arrays.node_at, arrays.node_cost, arrays.edge_u, arrays.edge_v, arrays.edge_at[:-1], arrays.edge_cost,
                arrays.term_node[live], np.searchsorted(points, start), np.searchsorted(points, end),
                arrays.term_at[:-1][live], arrays.usage,
                np.full(max(0, points.size - 1), arrays.limit + arrays.tolerance), 0.0)
    return core, Times(points[:-1], points[1:])
