"""The partitioner against an exhaustive search, and the laws of its arguments."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.interop import Partition, StageChoice, partition

Key = tuple[float, int, tuple[tuple[int, int], ...]]  # objective, stages, (last layer, option) of each


@dataclass(frozen=True)
class Tables:
    """time, step: [P, N, N+1, O]; row s − 1 is the s-th stage from the end."""

    time: np.ndarray
    step: np.ndarray
    sizes: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return self.time.shape[1]

    def at(self, s: int) -> tuple[np.ndarray, np.ndarray]:
        return self.time[s - 1], self.step[s - 1]


def tables(seed: int, n: int, sizes: tuple[int, ...], *, integers: bool, holes: float) -> Tables:
    """Random costs, different at every s; a `holes` share of the stages doesn't fit."""
    random = np.random.default_rng(seed)
    shape = (n, n, n + 1, len(sizes))
    draw = (lambda: random.integers(1, 6, shape).astype(float)) if integers else (lambda: random.random(shape))
    length = np.maximum(np.arange(n + 1)[None, :] - np.arange(n)[:, None], 0)[None, :, :, None]
    time, step = draw() * length, draw() * random.choice([0.0, 1.0, 10.0])
    time[random.random(shape) < holes] = np.inf
    time[:, length[0, :, :, 0] == 0] = step[:, length[0, :, :, 0] == 0] = np.inf
    return Tables(time, step, sizes)


def every_partition(costs: Tables, m: int, quanta: int, counts: range) -> Iterator[Key]:
    n = costs.num_layers
    for p in counts:
        for cuts in itertools.combinations(range(1, n), p - 1):
            edges = (0, *cuts, n)
            for options in itertools.product(range(len(costs.sizes)), repeat=p):
                if sum(costs.sizes[o] for o in options) != quanta:
                    continue
                where = [(p - 1 - k, edges[k], edges[k + 1], options[k]) for k in range(p)]
                times, steps = [costs.time[w] for w in where], [costs.step[w] for w in where]
                if not np.isfinite([*times, *steps]).all():
                    continue
                objective = sum(times[::-1]) + (m - 1) * max(times) + max(steps)
                yield objective, p, tuple((edges[k + 1] - 1, options[k]) for k in range(p))


def key(found: Partition) -> Key:
    return found.objective, len(found.stages), tuple((stage.last, stage.option) for stage in found.stages)


def check(costs: Tables, found: Partition, m: int, quanta: int) -> None:
    """Layers once and in order, quanta all used, and the figures are those of the stages."""
    assert [stage.first for stage in found.stages] == [0, *(stage.last + 1 for stage in found.stages[:-1])]
    assert found.stages[-1].last == costs.num_layers - 1
    assert all(stage.last >= stage.first for stage in found.stages)
    assert [stage.from_end for stage in found.stages] == list(range(len(found.stages), 0, -1))
    assert sum(costs.sizes[stage.option] for stage in found.stages) == quanta
    where = [(stage.from_end - 1, stage.first, stage.last + 1, stage.option) for stage in found.stages]
    times, steps = [costs.time[w] for w in where], [costs.step[w] for w in where]
    assert (found.t_max, found.step_max) == (max(times), max(steps))
    assert found.objective == pytest.approx(sum(times) + (m - 1) * max(times) + max(steps), rel=1e-12)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tables, int, int, int]:
    """(costs, micro-batches, quanta, max_stages)."""
    n = draw(st.integers(1, 6))
    sizes = tuple(draw(st.lists(st.sampled_from([1, 1, 2, 3, 4, 8]), min_size=1, max_size=3)))
    costs = tables(draw(st.integers(0, 2**32)), n, sizes, integers=draw(st.booleans()),
                   holes=draw(st.sampled_from([0.0, 0.2, 0.5])))
    return costs, draw(st.sampled_from([1, 2, 5, 64])), draw(st.integers(1, 8)), draw(st.integers(1, 7))


@settings(max_examples=50, deadline=None)
@given(problems())
def test_is_the_exhaustive_optimum(problem: tuple[Tables, int, int, int]) -> None:
    costs, m, quanta, most = problem
    best = min(every_partition(costs, m, quanta, range(1, min(most, costs.num_layers) + 1)), default=(np.inf, 0, ()))
    found = partition(costs, num_micro_batches=m, num_quanta=quanta, max_stages=most)
    assert (found is None) == (best[0] == np.inf)
    if found is not None:
        assert found.objective == pytest.approx(best[0], rel=1e-11)
        assert found.lower_bound == found.objective
        check(costs, found, m, quanta)


@pytest.mark.parametrize("seed", range(6))
def test_is_the_exhaustive_optimum_of_eight_layers_on_eight_quanta(seed: int) -> None:
    costs = tables(seed, 8, (1, 2, 4), integers=bool(seed % 2), holes=0.1)
    best = min(every_partition(costs, 8, 8, range(1, 9)))
    found = partition(costs, num_micro_batches=8, num_quanta=8, max_stages=8)
    assert found is not None
    assert found.objective == pytest.approx(best[0], rel=1e-11)
    check(costs, found, 8, 8)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 7))
def test_num_stages_is_exact(problem: tuple[Tables, int, int, int], p: int) -> None:
    costs, m, quanta, most = problem
    counts = range(p, p + 1) if p <= min(most, costs.num_layers) else range(0)
    best = min((found[0] for found in every_partition(costs, m, quanta, counts)), default=np.inf)
    found = partition(costs, num_micro_batches=m, num_quanta=quanta, max_stages=most, num_stages=p)
    assert (found is None) == (best == np.inf)
    if found is not None:
        assert len(found.stages) == p
        assert found.objective == pytest.approx(best, rel=1e-11)


@settings(max_examples=40, deadline=None)
@given(problems(), st.floats(1e-6, 1.0))
def test_upper_bound_is_strict(problem: tuple[Tables, int, int, int], above: float) -> None:
    costs, m, quanta, most = problem
    ask = {"num_micro_batches": m, "num_quanta": quanta, "max_stages": most}
    found = partition(costs, **ask)
    if found is None:
        assert partition(costs, **ask, upper_bound=1e9) is None
        return
    assert partition(costs, **ask, upper_bound=found.objective) is None
    assert partition(costs, **ask, upper_bound=found.objective * (1 - above)) is None
    again = partition(costs, **ask, upper_bound=found.objective * (1 + above))
    assert again is not None
    assert again.objective == pytest.approx(found.objective, rel=1e-11)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([1e-3, 0.05, 0.5]), st.sampled_from([np.inf, 1.02, 1.0]))
def test_gap_is_kept_and_the_bound_is_true(problem: tuple[Tables, int, int, int], gap: float, above: float) -> None:
    costs, m, quanta, most = problem
    ask = {"num_micro_batches": m, "num_quanta": quanta, "max_stages": most}
    exact = partition(costs, **ask)
    if exact is None:
        return
    found = partition(costs, **ask, gap=gap, upper_bound=exact.objective * above)
    if above == 1.0:
        assert found is None
        return
    assert found is not None
    check(costs, found, m, quanta)
    assert found.objective <= exact.objective * (1 + gap) * (1 + 1e-11)
    assert found.lower_bound <= exact.objective * (1 + 1e-11)
    assert found.lower_bound <= found.objective <= found.lower_bound * (1 + gap) * (1 + 1e-11)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**32), st.floats(0.0, 0.99))
def test_a_cheaper_entry_never_costs(problem: tuple[Tables, int, int, int], pick: int, factor: float) -> None:
    costs, m, quanta, most = problem
    ask = {"num_micro_batches": m, "num_quanta": quanta, "max_stages": most}
    before = partition(costs, **ask)
    random = np.random.default_rng(pick)
    n = costs.num_layers
    first = int(random.integers(n))
    end, option = int(random.integers(first + 1, n + 1)), int(random.integers(len(costs.sizes)))
    where = (int(random.integers(n)), first, end, option)
    time, step = costs.time.copy(), costs.step.copy()
    time[where] = min(time[where], 10.0) * factor
    step[where] *= factor
    after = partition(Tables(time, step, costs.sizes), **ask)
    if before is not None:
        assert after is not None
        assert after.objective <= before.objective * (1 + 1e-11)


@pytest.mark.parametrize("m", [1, 16])
def test_ties_go_to_few_stages_early_cuts_and_low_options(m: int) -> None:
    """Layer times with no exact binary form, summed in any order; the twin options make each partition a tie."""
    n, layer = 7, np.full(7, 0.1)
    total = np.concatenate(([0.0], np.cumsum(layer)))
    span = total[None, :] - total[:n, None]
    time = np.broadcast_to(np.where(span > 0, span, np.inf)[None, :, :, None], (n, n, n + 1, 2))
    costs = Tables(time, np.where(np.isfinite(time), 0.0, np.inf), (1, 1))
    found = partition(costs, num_micro_batches=m, num_quanta=3, max_stages=7)
    assert found is not None
    ends = [0, 1, 6] if m == 1 else [0, 3, 6]  # m = 1: every cut ties; otherwise those whose slowest stage has 3 layers
    assert [stage.last for stage in found.stages] == ends
    assert {stage.option for stage in found.stages} == {0}


def test_fewest_stages_among_equal_sums() -> None:
    time = np.full((4, 4, 5, 2), np.inf)
    for i, j in itertools.combinations(range(5), 2):
        time[:, i, j, :] = j - i
    costs = Tables(time, np.where(np.isfinite(time), 0.0, np.inf), (2, 4))
    found = partition(costs, num_micro_batches=1, num_quanta=4, max_stages=4)
    assert found is not None
    assert found.stages == (StageChoice(0, 3, 1, 1),)


def test_memory_that_depends_on_the_place_shifts_the_cut() -> None:
    """The first of two stages holds more micro-batches, so at most one layer fits there."""
    time = np.full((2, 4, 5, 1), np.inf)
    for i, j in itertools.combinations(range(5), 2):
        time[0, i, j, 0] = j - i
        time[1, i, j, 0] = j - i if j - i <= 1 else np.inf
    costs = Tables(time, np.where(np.isfinite(time), 0.0, np.inf), (1,))
    found = partition(costs, num_micro_batches=4, num_quanta=2, max_stages=2)
    assert found is not None
    assert [(stage.first, stage.last) for stage in found.stages] == [(0, 0), (1, 3)]
    assert found.objective == 4 + 3 * 3


def test_quanta_that_no_options_add_up_to() -> None:
    costs = tables(0, 4, (2, 4), integers=False, holes=0.0)
    assert partition(costs, num_micro_batches=2, num_quanta=7, max_stages=4) is None
    assert partition(costs, num_micro_batches=2, num_quanta=6, max_stages=1) is None


def test_a_few_solves_do_for_sixty_four_uniform_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """130 layers on 64 stages: the bounds settle it without walking the thresholds."""
    from autoplan.interop import recurrence

    calls = []
    table = recurrence.table
    monkeypatch.setattr(recurrence, "table", lambda *args: calls.append(1) or table(*args))
    total = np.concatenate(([0.0], np.cumsum(np.full(130, 0.1))))
    span = total[None, :] - total[:130, None]
    time = np.broadcast_to(np.where(span > 0, span, np.inf)[None, :, :, None], (64, 130, 131, 1))
    costs = Tables(time, np.where(np.isfinite(time), 0.5 * time, np.inf), (1,))
    found = partition(costs, num_micro_batches=128, num_quanta=64, max_stages=64, num_stages=64)
    assert found is not None
    assert found.objective == pytest.approx(13.0 + 127 * 0.3 + 0.15)
    assert len(calls) <= 6


@pytest.mark.parametrize("bad", [{"num_micro_batches": 0}, {"num_quanta": 0}, {"max_stages": 0}, {"gap": -0.1}])
def test_counts_are_positive(bad: dict[str, float]) -> None:
    ask = {"num_micro_batches": 1, "num_quanta": 1, "max_stages": 1} | bad
    with pytest.raises(ValueError, match="at least"):
        partition(tables(0, 2, (1,), integers=False, holes=0.0), **ask)


def test_costs_of_the_wrong_shape() -> None:
    costs = tables(0, 3, (1,), integers=False, holes=0.0)
    wrong = Tables(costs.time, costs.step[:, :, :-1], (1,))
    with pytest.raises(ValueError, match=r"not \(3, 4, 1\)"):
        partition(wrong, num_micro_batches=1, num_quanta=1, max_stages=1)
