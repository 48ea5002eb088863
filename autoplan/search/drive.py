"""The search: bound every candidate, solve the promising ones, stop when the bound says so.

Named recipes come first, since a plan that a runtime has a name for is worth more than one that is faster by less than
the gap asked for; then candidates whose shardings are the ILP's, where their bound leaves room for such a gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from autoplan.interop.recurrence import ROUNDING
from autoplan.search import free, probe, unequal
from autoplan.search.pricer import Pricer
from autoplan.search.solve import Solution, Variant, solve
from autoplan.search.space import Candidate, Pins, candidates
from autoplan.workload import Recompute, Schedule

UNEQUAL_GAP = 0.002  # limits of the slowest stage are thinned so far; the bound says what is left

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Found:
    """A solution and the variant it solves, None for unequal submeshes."""

    variant: Variant | None
    solution: Solution

    @property
    def objective(self) -> float:
        """Seconds of one step."""
        return self.solution.objective


@dataclass
class Outcome:
    """What a search found, best first, and what it proved. lower_bound: no plan in the searched space is faster."""

    found: list[Found] = field(default_factory=list)
    lower_bound: float = float("inf")
    candidates: int = 0
    pruned: int = 0
    timed_out: bool = False
    phases: dict[str, float] = field(default_factory=dict)  # seconds

    @property
    def best(self) -> Found | None:
        """The plan to return."""
        return self.found[0] if self.found else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the seconds that a phase takes."""
        begin = time.perf_counter()
        yield
        self.phases[name] = time.perf_counter() - begin


@dataclass(frozen=True)
class Limits:
    """top: how many solutions to rank. gap: an improvement by less isn't worth leaving named recipes. deadline: a
    `time.monotonic` after which the search returns what it has."""

    top: int = 1
    gap: float = 0.05
    deadline: float = float("inf")

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline


def policies(pricer: Pricer, pinned: Recompute | None, schedule: Schedule | None = None) -> tuple[Recompute, ...]:
    """Return the recompute policies worth pricing under the schedule asked for: with fused attention, selective keeps
    no less than none; what full recompute brings back must not wait for weights' gradients that are put off."""
    if pinned is not None:
        return (pinned,)
    useless = {Recompute.SELECTIVE} if pricer.attention.fused else set()
    if schedule is not None and schedule.splits_backward:
        useless |= {Recompute.FULL}
    return tuple(one for one in Recompute if one not in useless)


def zero_stages(pricer: Pricer, candidate: Candidate, pinned: int | None) -> tuple[int, ...]:
    """Return the ZeRO stages worth pricing, of those the runtime offers: all are the same where nothing is data
    parallel."""
    offered = pricer.runtime.zero_stages(candidate.num_stages)
    if pinned is not None:
        return tuple({pinned} & set(offered))
    replicas = candidate.mesh.shape[:-1] if candidate.roles is not None else candidate.mesh.shape
    return offered if any(size > 1 for size in replicas) else (0,)


def search(pricer: Pricer, pins: Pins, limits: Limits, progress: Progress | None = None, *,
           recipes_only: bool = False) -> Outcome:
    """Return the best solutions under the pins, and what is proven of them.

    recipes_only: leave out shardings and submeshes that no recipe names; the bound is then one of the recipes alone.
    """
    outcome = Outcome()
    tell = progress or (lambda phase, done, total: None)
    named = list(candidates(pricer.chain, pricer.cluster, pricer.workload, pricer.runtime, pins, named=True))
    tell("bounding recipes", 0, len(named))
    with outcome.phase("recipes"):
        variants = _bound(pricer, named, pins, limits, outcome, tell)
        _solve(pricer, variants, limits, outcome, tell, "solving recipes")
    if pricer.runtime.free and pricer.chain.uniform and not pins.fixes_roles and not recipes_only:
        with outcome.phase("shardings"):
            _search_free(pricer, pins, limits, outcome, tell)
        plain = pins.schedule in (None, Schedule.ONE_F_ONE_B) and pins.virtual_stages in (None, 1)
        if plain and pins.layers is None:
            with outcome.phase("unequal submeshes"):
                _search_unequal(pricer, pins, limits, outcome, tell)
    if outcome.best is not None:
        outcome.lower_bound = min(outcome.lower_bound, outcome.best.objective)
    return outcome


def _bound(pricer: Pricer, named: Sequence[Candidate], pins: Pins, limits: Limits, outcome: Outcome,
           tell: Progress) -> list[Variant]:
    variants: list[Variant] = []
    for done, candidate in enumerate(named, 1):
        stages = zero_stages(pricer, candidate, pins.zero)
        kinds = policies(pricer, pins.recompute, pins.schedule)
        outcome.candidates += len(stages) * len(kinds)
        bounded = probe.bounds(pricer, candidate, kinds, stages)
        outcome.pruned += len(stages) * len(kinds) - len(bounded)
        variants += bounded
        if done % 16 == 0 or done == len(named):
            tell("bounding recipes", done, len(named))
        if limits.over:
            outcome.timed_out, outcome.lower_bound = True, 0.0
            break
    return variants


def _solve(pricer: Pricer, variants: Iterable[Variant], limits: Limits, outcome: Outcome, tell: Progress, phase: str,
           wanted: float | None = None) -> None:
    """Solve variants in the order of their bounds until the rest can't matter.

    wanted: seconds that a solution must be below to matter, and after one is found, what that one takes; None: what it
    takes to enter the ranking.
    """
    ordered = sorted(variants, key=lambda variant: variant.bound)  # stable: ties in the order of enumeration
    for done, variant in enumerate(ordered):
        tell(phase, done, len(ordered))
        last = outcome.found[limits.top - 1].objective if len(outcome.found) >= limits.top else float("inf")
        threshold = last if wanted is None else wanted
        late = limits.over and bool(outcome.found)
        if late or variant.bound >= threshold:
            outcome.timed_out |= late and variant.bound < threshold
            outcome.pruned += 0 if late else len(ordered) - done
            outcome.lower_bound = min(outcome.lower_bound, variant.bound)
            break
        found = solve(pricer, variant.candidate, variant.recompute, variant.zero, upper_bound=threshold)
        least = threshold if found is None else found.least
        outcome.lower_bound = min(outcome.lower_bound, max(variant.bound, least))
        if found is None:
            continue
        _insert(outcome, Found(variant, found), limits)
        wanted = None if wanted is None else found.objective
    tell(phase, len(ordered), len(ordered))


def _insert(outcome: Outcome, found: Found, limits: Limits) -> None:
    """Rank a solution; of those that are equal but for rounding, the one found first comes first."""
    position = sum(other.objective <= found.objective * (1 + ROUNDING) for other in outcome.found)
    outcome.found.insert(position, found)
    del outcome.found[max(limits.top, 1):]


def _search_free(pricer: Pricer, pins: Pins, limits: Limits, outcome: Outcome, tell: Progress) -> None:
    """Look for shardings beyond the named recipes where they could gain more than the gap."""
    wanted = outcome.best.objective * (1.0 - limits.gap) if outcome.best is not None else float("inf")
    everything = list(candidates(pricer.chain, pricer.cluster, pricer.workload, pricer.runtime, pins, named=False))
    variants: list[Variant] = []
    for done, candidate in enumerate(everything, 1):
        tell("bounding shardings", done, len(everything))
        stages, kinds = zero_stages(pricer, candidate, pins.zero), policies(pricer, pins.recompute)
        outcome.candidates += len(stages) * len(kinds)
        bound = free.arithmetic_bound(pricer, candidate)
        late = limits.over
        if late or bound >= wanted:
            outcome.timed_out |= late and bound < wanted
            outcome.pruned += 0 if bound < wanted else len(stages) * len(kinds)
            outcome.lower_bound = min(outcome.lower_bound, bound)
            continue
        bounded, floor = free.bounds(pricer, candidate, kinds, stages, wanted)
        outcome.pruned += len(stages) * len(kinds) - len(bounded)
        outcome.lower_bound = min(outcome.lower_bound, floor)
        variants += bounded
    _solve(pricer, variants, limits, outcome, tell, "solving shardings", wanted)


def _search_unequal(pricer: Pricer, pins: Pins, limits: Limits, outcome: Outcome, tell: Progress) -> None:
    """Look for pipelines of unequal submeshes where they could gain more than the gap."""
    wanted = outcome.best.objective * (1.0 - limits.gap) if outcome.best is not None else float("inf")
    ordered = sorted(unequal.menus(pricer, pins), key=lambda menu: menu.bound)
    zeros = (pins.zero,) if pins.zero is not None else pricer.runtime.pipeline_zero
    for done, menu in enumerate(ordered):
        tell("partitioning unequally", done, len(ordered))
        outcome.candidates += 1
        late = limits.over and bool(outcome.found)
        if late or menu.bound >= wanted:
            outcome.timed_out |= late and menu.bound < wanted
            outcome.pruned += menu.bound >= wanted
            outcome.lower_bound = min(outcome.lower_bound, menu.bound)
            continue
        kinds = policies(pricer, pins.recompute)
        bound = unequal.rule_out(pricer, menu, kinds, zeros, pins, wanted, UNEQUAL_GAP)
        if bound >= wanted:
            outcome.pruned += 1
            outcome.lower_bound = min(outcome.lower_bound, bound)
            continue
        found, bound = unequal.solve_menu(pricer, menu, kinds, zeros, pins, wanted, UNEQUAL_GAP)
        outcome.lower_bound = min(outcome.lower_bound, bound)
        if found is not None:
            _insert(outcome, Found(None, found), limits)
            wanted = found.objective
    tell("partitioning unequally", len(ordered), len(ordered))
