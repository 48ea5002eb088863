"""The recurrence of the inter-operator DP at one pair of limits, vectorised over layers, devices and options.

With s stages counted from the end, F[s, i, d] is the cheapest way to run layers i … N−1 in s stages on d quanta:

    F[s, i, d] = min over j, o of  combine(F[s−1, j, d − size_o], value[s][i, j, o]),     F[0, N, 0] = 0

where combine is + (the sum of stage times) or max (the slowest stage). It is Alpa's recurrence (Zheng et al., OSDI'22,
eq. 3) with the stage count from the end as an index, as 1F1B keeps more micro-batches in earlier stages. Only device
counts on a way from 0 to D are kept, so that a uniform pipeline has one column a stage, and only finite entries.
Time: one pass over (finite entries of stage s) × (device counts of stage s), for each s.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoplan.interop.costs import Floats, StageChoice, StageCosts

Ints = npt.NDArray[np.intp]

# Sums that differ by less, relatively, are equal: they are the same partition summed in another order.
ROUNDING = 1e-12
# Elements of the largest temporary array, so that big clusters don't need big memory.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Devices:
    """Device counts that a suffix of s stages can use on a way to all D quanta, for s = 0 … P.

    sizes: [O]. counts[s]: [K_s] ascending. previous[s]: [O, K_s] column of counts[s−1] that option o leads back to;
    K_{s−1}, a column of infinities, where there is none.
    """

    num_quanta: int
    sizes: Ints
    counts: tuple[Ints, ...]
    previous: tuple[Ints, ...]
    final: tuple[int, ...]  # stage counts that a whole partition can have


@dataclass(frozen=True)
class Entries:
    """Finite stage costs that can be part of a partition, sorted by (s, first layer, end layer, option).

    starts: [P + 2] where stage s begins in the other arrays; begin, end: the stage is layers begin … end−1.
    """

    num_layers: int
    devices: Devices
    starts: Ints
    begin: Ints
    end: Ints
    option: Ints
    time: Floats
    step: Floats

    def within(self, time_limit: float, step_limit: float) -> Entries:
        """Return the entries with time ≤ time_limit and step ≤ step_limit (to `ROUNDING`)."""
        inside = (self.time <= time_limit * (1 + ROUNDING)) & (self.step <= step_limit * (1 + ROUNDING))
        return self._only(np.flatnonzero(inside))

    def below(self, weight: int, objective: float) -> Entries:
        """Return the entries of which a stage alone costs less: (1 + weight) · time + step < objective."""
        return self._only(np.flatnonzero((1 + weight) * self.time + self.step < objective))

    def _only(self, kept: Ints) -> Entries:
        return Entries(self.num_layers, self.devices, np.searchsorted(kept, self.starts),
                       self.begin[kept], self.end[kept], self.option[kept], self.time[kept], self.step[kept])


def devices(sizes: tuple[int, ...], num_quanta: int, stage_counts: range) -> Devices | None:
    """Find the device counts that lead from 0 to `num_quanta` in one of `stage_counts` stages; None if none does."""
    full = (1 << (num_quanta + 1)) - 1
    distinct = sorted(set(sizes))
    reach = [1]  # sets of device counts as bits of an integer
    for _ in range(stage_counts.stop - 1):
        reach.append(_union(reach[-1] << size for size in distinct) & full)
    final = tuple(p for p in stage_counts if reach[p] >> num_quanta & 1)
    if not final:
        return None
    useful = {final[-1] + 1: 0}
    for s in range(final[-1], -1, -1):
        useful[s] = reach[s] & _union(useful[s + 1] >> size for size in distinct)
        useful[s] |= (1 << num_quanta) if s in final else 0
    counts = tuple(_members(useful[s], num_quanta) for s in range(final[-1] + 1))
    previous = [np.zeros((len(sizes), 1), dtype=np.intp)]
    for before, after in itertools.pairwise(counts):
        column = np.full(num_quanta + 1, len(before), dtype=np.intp)
        column[before] = np.arange(len(before))
        left = after[None, :] - np.array(sizes)[:, None]
        previous.append(np.where(left >= 0, column[np.maximum(left, 0)], len(before)))
    return Devices(num_quanta, np.array(sizes), counts, tuple(previous), final)


def _union(sets: Iterator[int]) -> int:
    result = 0
    for members in sets:
        result |= members
    return result


def _members(bits: int, top: int) -> Ints:
    raw = np.frombuffer(bits.to_bytes(top // 8 + 1, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(raw, bitorder="little"))


def entries(costs: StageCosts, ways: Devices, weight: int, upper_bound: float) -> Entries:
    """Collect the costs of every stage that has enough layers before and after it.

    A stage alone adds (1 + weight) · time + step to the objective: one that reaches `upper_bound` is left out.

    Raises ValueError when the caller's arrays don't have shape [N, N+1, O].
    """
    n, num_options = costs.num_layers, len(costs.sizes)
    most = ways.final[-1]
    starts, parts = [0, 0], []
    for s in range(1, most + 1):
        time, step = costs.at(s)
        if time.shape != (n, n + 1, num_options) or step.shape != time.shape:
            raise ValueError(f"stage {s} from the end: costs have shapes {time.shape} and {step.shape}, "
                             f"not {(n, n + 1, num_options)}")
        low = next(p for p in ways.final if p >= s) - s  # layers that the stages before need
        high = 0 if s == most else n - s
        first_end = n if s == 1 else low + 1
        window = (slice(low, high + 1), slice(first_end, n - s + 2))
        usable = (1 + weight) * time[window] + step[window] < upper_bound
        usable &= (ways.previous[s] < len(ways.counts[s - 1])).any(axis=1)
        begin, end, option = np.nonzero(usable)
        parts.append((begin + low, end + first_end, option, time[window][usable], step[window][usable]))
        starts.append(starts[-1] + len(begin))
    begin, end, option, times, steps = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Entries(n, ways, np.array(starts), begin, end, option, times, steps)


def table(chosen: Entries, combine: np.ufunc, values: Floats, most: int) -> list[Floats]:
    """Return F[s] for s = 0 … most, each [N + 1, K_s + 1]; the last column is inf. values: one a chosen entry."""
    rows, num_options = chosen.num_layers + 1, len(chosen.devices.sizes)
    last = np.full((rows, 2), np.inf)
    last[-1, 0] = 0.0
    result = [last]
    source = chosen.end * num_options + chosen.option
    for s in range(1, most + 1):
        part = slice(chosen.starts[s], chosen.starts[s + 1])
        current = np.full((rows, len(chosen.devices.counts[s]) + 1), np.inf)
        begin = chosen.begin[part]
        if len(begin):
            heads = np.flatnonzero(np.concatenate(([True], begin[1:] != begin[:-1])))
            width = max(1, BLOCK // len(begin))
            for first in range(0, current.shape[1] - 1, width):
                columns = chosen.devices.previous[s][:, first:first + width]
                reached = result[-1][:, columns].reshape(rows * num_options, -1).take(source[part], axis=0)
                combine(reached, values[part][:, None], out=reached)
                current[begin[heads], first:first + columns.shape[1]] = np.minimum.reduceat(reached, heads, axis=0)
        result.append(current)
    return result


def totals(tables: list[Floats], stage_counts: Ints) -> Floats:
    """Return F[p, 0, D] for each stage count p; inf where the tables stop before p."""
    return np.array([tables[p][0, -2] if p < len(tables) else np.inf for p in stage_counts])


def trace(chosen: Entries, tables: list[Floats], num_stages: int) -> tuple[tuple[StageChoice, ...], Ints]:
    """Follow the cheapest sum of `num_stages` stages: the stages, first to last, and the entries they use.

    Of equal sums (to `ROUNDING`) the first stage that ends earliest wins, then its lowest option, then the second's.
    """
    ways = chosen.devices
    budget = tables[num_stages][0, -2] * (1 + ROUNDING)
    at, column, spent = 0, len(ways.counts[num_stages]) - 1, 0.0
    stages, used = [], []
    for s in range(num_stages, 0, -1):
        begin, stop = chosen.starts[s], chosen.starts[s + 1]
        rows = begin + np.searchsorted(chosen.begin[begin:stop], [at, at + 1])
        part = slice(*rows)
        columns = ways.previous[s][chosen.option[part], column]
        rest = tables[s - 1][chosen.end[part], columns] + chosen.time[part]
        pick = int(np.argmax(spent + rest <= max(budget, spent + rest.min())))
        entry = int(rows[0]) + pick
        stages.append(StageChoice(at, int(chosen.end[entry]) - 1, int(chosen.option[entry]), s))
        used.append(entry)
        at, column, spent = int(chosen.end[entry]), int(columns[pick]), spent + float(chosen.time[entry])
    return tuple(stages), np.array(used)
