"""Cut a chain of layers into pipeline stages and give each a submesh: the inter-operator DP, exact or within a gap.

For m micro-batches the objective of a partition is, in seconds,

    J = Σ_stages time + (m − 1) · max_stages time + max_stages step

Alpa's recurrence (Zheng et al., OSDI'22, eq. 2) plus the longest exposed once-a-step work. For limits t on time and
u on step the DP gives F_p(t, u), the least sum of p stages within both limits; J's minimum is that of
F_p(t, u) + (m − 1)·t + u over the distinct times t, steps u, and p. Running all pairs is too slow, so rectangles of
limits [t⁻, t⁺] × [u⁻, u⁺] are searched best first. F_p falls as limits rise, so inside a rectangle

    J ≥ min over p of  F_p(t⁺, u⁺) + (m − 1) · max(t⁻, T_p) + max(u⁻, U_p)

with T_p and U_p the least possible slowest time and step of p stages, which the same DP gives with max in place of +.
The partition found at the corner (t⁺, u⁺) is a candidate. A rectangle whose bound reaches the best known J is
dropped; otherwise it is split where bound and candidate disagree. A rectangle of one t and one u has J = bound.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoplan.interop import recurrence
from autoplan.interop.costs import Floats, Partition, StageCosts
from autoplan.interop.recurrence import ROUNDING, Entries

# Objectives that differ by less, relatively, are equal. Large beside ROUNDING, by which sums and limits are loose: what
# is left to gain in a rectangle is then more than rounding, so that it can be split (both parts smaller than it).
TOLERANCE = 10 * ROUNDING


def partition(costs: StageCosts, *, num_micro_batches: int, num_quanta: int, max_stages: int,
              num_stages: int | None = None, upper_bound: float = float("inf"), gap: float = 0.0) -> Partition | None:
    """Return the partition of least objective that uses all `num_quanta` quanta, or None.

    num_stages: exactly that many stages (and at most `max_stages`). upper_bound: seconds; None is returned unless a
    partition is strictly better. gap: the objective is at most (1 + gap) times the least; 0 is exact (to rounding,
    1e-11). Ties go to the fewest stages, then the earliest end of the first stage, its lowest option, the
    second stage's, and so on; between partitions that tie with different slowest stages, to the same order among
    those found. Raises ValueError for counts < 1, a negative gap, or costs of the wrong shape.
    """
    if min(num_micro_batches, num_quanta, max_stages, costs.num_layers, *costs.sizes) < 1 or gap < 0:
        raise ValueError("micro-batches, quanta, stages, layers and option sizes must be at least 1, gap at least 0")
    most = min(max_stages, costs.num_layers, num_quanta // min(costs.sizes))
    counts = range(1, most + 1) if num_stages is None else range(max(num_stages, 1), min(num_stages, most) + 1)
    ways = recurrence.devices(costs.sizes, num_quanta, counts) if counts else None
    if ways is None:
        return None
    weight = num_micro_batches - 1
    return _Search(recurrence.entries(costs, ways, weight, upper_bound), weight, upper_bound, gap).run()


@dataclass(order=True, frozen=True)
class _Rectangle:
    """Limits times[t_low … t_high] × steps[u_low … u_high]; sums: a lower bound of F_p in it, for each p."""

    bound: float
    number: int
    t_low: int = field(compare=False)
    t_high: int = field(compare=False)
    u_low: int = field(compare=False)
    u_high: int = field(compare=False)
    sums: Floats = field(compare=False, repr=False)


class _Search:
    """Best-first search of one partition problem; `weight` is m − 1, the price of a second of the slowest stage."""

    def __init__(self, all_entries: Entries, weight: int, upper_bound: float, gap: float) -> None:
        self.entries, self.weight, self.upper_bound, self.gap = all_entries, weight, upper_bound, gap
        self.final = np.array(all_entries.devices.final)  # stage counts that may be; the index of every [P] array
        self.best: Partition | None = None
        self.known = upper_bound  # an objective that the answer is to be below
        self.number = 0

    @property
    def cutoff(self) -> float:
        """What a bound must be below for its rectangle to hold something better."""
        return (self.known if self.best is None else self.best.objective) * (1 - TOLERANCE)

    def run(self) -> Partition | None:
        """Search until no rectangle can hold a better partition."""
        heap = self._root()
        while heap:
            area = heapq.heappop(heap)
            if area.bound >= self.cutoff:
                break
            if self.best is not None and area.bound * (1 + self.gap) >= self.best.objective:
                return replace(self.best, lower_bound=area.bound)
            for part in self._explore(area):
                heapq.heappush(heap, part)
        return self.best

    def _root(self) -> list[_Rectangle]:
        """Find the least slowest time and step of each stage count, a first partition, and the limits that matter."""
        self.least_time = self.least_step = nothing = np.zeros(len(self.final))
        if self.upper_bound == float("inf"):
            self._seed()
        every = self.entries = self.entries.below(self.weight, self.cutoff)
        self.least_time = self._slowest(every.time)
        sums = self._keep(nothing, np.isfinite(self.least_time))
        sums, _ = self._solve(float("inf"), float("inf"), sums, 0.0, 0.0)
        sums = self._keep(sums, self._bounds(sums, 0.0, 0.0) < self.cutoff)
        if not len(sums):
            return []
        self.least_step = self._slowest(every.step)
        sums = self._keep(sums, self._bounds(sums, 0.0, 0.0) < self.cutoff)
        if not len(sums):
            return []
        first = self._bounds(sums, 0.0, 0.0).argmin()
        self._solve(float(self.least_time[first]), float("inf"), sums, 0.0, 0.0)
        self.times = self._limits(every.time, self.least_time, sums + self.least_step, self.weight)
        self.steps = self._limits(every.step, self.least_step, self._bounds(sums, 0.0, 0.0) - self.least_step, 1)
        return self._rectangles([(0, len(self.times) - 1)], [(0, len(self.steps) - 1)], sums)

    def _seed(self) -> None:
        """Find what some partition costs, under a limit on stage times that is raised until there is one.

        Only its objective is kept, loosened by rounding, so that ties are broken by the search alone. The first limit:
        D quanta run N layers, so the slowest stage takes at least N / D times the least quantum-seconds a layer.
        """
        every = self.entries
        if not len(every.time):
            return
        quanta_a_layer = every.devices.sizes[every.option] / (every.end - every.begin)
        limit = (every.time * quanta_a_layer).min() * every.num_layers / every.devices.num_quanta
        top = every.time.max()
        while self.best is None and limit < top:
            limit = max(limit * 1.5, top / 1000)
            self._solve(float(limit), float("inf"), np.zeros(len(self.final)), 0.0, 0.0)
        if self.best is not None:
            self.known, self.best = max(self.best.objective * (1 + 3 * TOLERANCE), np.finfo(float).tiny), None

    def _slowest(self, values: Floats) -> Floats:
        """Return the least possible maximum of `values` over the stages, for each stage count."""
        tables = recurrence.table(self.entries, np.maximum, values, int(self.final[-1]))
        return recurrence.totals(tables, self.final)

    def _keep(self, sums: Floats, alive: npt.NDArray[np.bool_]) -> Floats:
        """Forget the stage counts that aren't alive; return the sums of the others."""
        self.final, self.least_time, self.least_step = self.final[alive], self.least_time[alive], self.least_step[alive]
        return sums[alive]

    def _limits(self, values: Floats, least: Floats, rest: Floats, weight: int) -> Floats:
        """Return the distinct values that the slowest stage can have in a partition better than the best."""
        if not weight:
            return np.array([values.max()])
        low = least.min()
        high = max(low, (self.cutoff - rest.min()) / weight * (1 + ROUNDING))
        return np.unique(values[(values >= low) & (values <= high)])

    def _bounds(self, sums: Floats, time: float, step: float) -> Floats:
        bounds: Floats = sums + self.weight * np.maximum(time, self.least_time) + np.maximum(step, self.least_step)
        return bounds

    def _solve(self, time_limit: float, step_limit: float, known: Floats, time: float,
               step: float) -> tuple[Floats, Partition | None]:
        """Run the DP under two limits: F_p for each p, and the partition of the p with the least bound.

        known: what is proven of F_p before; a p whose bound is past the cutoff isn't computed, and is inf after.
        """
        alive = self._bounds(known, time, step) < self.cutoff
        if not alive.any():
            return np.full(len(self.final), np.inf), None
        chosen = self.entries.within(time_limit, step_limit)
        tables = recurrence.table(chosen, np.add, chosen.time, int(self.final[alive].max()))
        sums = np.where(alive, recurrence.totals(tables, self.final), np.inf)
        bounds = self._bounds(sums, time, step)
        if not bounds.min() < self.cutoff:
            return sums, None
        stage_count = int(self.final[np.argmax(bounds <= bounds.min() * (1 + ROUNDING))])
        stages, used = recurrence.trace(chosen, tables, stage_count)
        t_max, step_max = float(chosen.time[used].max()), float(chosen.step[used].max())
        objective = float(chosen.time[used][::-1].cumsum()[-1]) + self.weight * t_max + step_max
        found = Partition(stages, objective, t_max, step_max, objective)
        if objective < self.upper_bound and (self.best is None or _order(found) < _order(self.best)):
            self.best = found
        return sums, found

    def _explore(self, area: _Rectangle) -> list[_Rectangle]:
        """Solve the corner of a rectangle and return the parts that may still hold something better."""
        time, step = float(self.times[area.t_low]), float(self.steps[area.u_low])
        room = self.cutoff - self._bounds(area.sums, time, step)  # [P] seconds that each p may lose and still win
        t_high, u_high = area.t_high, area.u_high
        if self.weight:
            t_high = min(t_high, _last(self.times, np.maximum(time, self.least_time) + room / self.weight, room))
        u_high = min(u_high, _last(self.steps, np.maximum(step, self.least_step) + room, room))
        sums, found = self._solve(float(self.times[t_high]), float(self.steps[u_high]), area.sums, time, step)
        bounds = self._bounds(sums, time, step)
        if found is None or not bounds.min() < self.cutoff:
            return []
        p = int(np.searchsorted(self.final, len(found.stages)))
        t_from, u_from = max(time, float(self.least_time[p])), max(step, float(self.least_step[p]))
        t_excess, u_excess = self.weight * (found.t_max - t_from), found.step_max - u_from
        t_ranges, u_ranges = [(area.t_low, t_high)], [(area.u_low, u_high)]
        if t_excess >= u_excess:
            t_ranges = _split(self.times, area.t_low, t_high, t_from, found.t_max)
        else:
            u_ranges = _split(self.steps, area.u_low, u_high, u_from, found.step_max)
        return self._rectangles(t_ranges, u_ranges, sums)

    def _rectangles(self, t_ranges: list[tuple[int, int]], u_ranges: list[tuple[int, int]],
                    sums: Floats) -> list[_Rectangle]:
        result = []
        for t_low, t_high in t_ranges:
            for u_low, u_high in u_ranges:
                bound = float(self._bounds(sums, float(self.times[t_low]), float(self.steps[u_low])).min())
                self.number += 1
                result.append(_Rectangle(bound, self.number, t_low, t_high, u_low, u_high, sums))
        return result


def _last(limits: Floats, reach: Floats, room: Floats) -> int:
    """Return the index of the greatest limit within `reach` of a stage count that still has room."""
    return int(np.searchsorted(limits, reach[room > 0].max(), "right")) - 1


def _split(limits: Floats, low: int, high: int, start: float, found: float) -> list[tuple[int, int]]:
    """Cut the index range low … high before `found` and half-way between `start` and `found`."""
    middle = int(np.searchsorted(limits, (start + found) / 2, "right"))
    at = int(np.searchsorted(limits, found))
    cuts = [low, *sorted({cut for cut in (middle, at) if low < cut <= high}), high + 1]
    return [(first, after - 1) for first, after in itertools.pairwise(cuts)]


def _order(found: Partition) -> tuple[float, int, tuple[tuple[int, int], ...]]:
    return found.objective, len(found.stages), tuple((stage.last, stage.option) for stage in found.stages)
