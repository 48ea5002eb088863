"""Zero-bubble schedules in the search: bounds stay below, estimates agree, what can't run is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tiny import NAMED_ONLY, again, cluster, llama, pricer_of

import autoplan
from autoplan.errors import InputError
from autoplan.plan.check import problems
from autoplan.search import probe
from autoplan.search.drive import policies, zero_stages
from autoplan.search.solve import assemble, neighbour, solve
from autoplan.search.space import Pins, candidates
from autoplan.workload import Recompute, Schedule

ZERO_BUBBLE = [Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V]
MODEL = llama(layers=8)


@pytest.mark.parametrize("runtime", ["plain", "torchtitan"])
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_bounds_are_never_above_what_is_found(schedule: Schedule, runtime: str) -> None:
    machines = cluster("dgx-h100:8")
    pricer = pricer_of(MODEL, machines, 16, runtime)
    if schedule not in pricer.runtime.schedules:
        return
    pins, found = Pins(schedule=schedule, pp=4), 0
    for candidate in candidates(pricer.chain, machines, pricer.workload, pricer.runtime, pins, named=True):
        kinds = policies(pricer, None, schedule)
        for variant in probe.bounds(pricer, candidate, kinds, zero_stages(pricer, candidate, None)):
            solution = solve(pricer, candidate, variant.recompute, variant.zero)
            if solution is not None:
                found += 1
                assert variant.bound <= solution.objective * (1 + 1e-9)
                slowest = max(stage.time for stage in solution.stages)
                assert candidate.num_micro_batches * slowest <= solution.pipeline
                for stage in solution.stages:
                    assert 0 < stage.weight < stage.time - stage.forward
    assert found >= 5


@pytest.mark.parametrize("schedule", [Schedule.ZB_H1, Schedule.ZB_H2])
def test_no_cut_takes_less_than_the_least(schedule: Schedule) -> None:
    """1F1B's best cut is within 1 % of the best of all cuts here, and `Solution.least` below them all."""
    machines = cluster("dgx-h100:4")
    pricer = pricer_of(llama(), machines, 16)
    pins = Pins(schedule=schedule, pp=4, micro_batch_size=1)
    (candidate,) = candidates(pricer.chain, machines, pricer.workload, pricer.runtime, pins, named=True)
    found = solve(pricer, candidate, Recompute.NONE, 0)
    table = pricer.stage_table(candidate, Recompute.NONE, 0, neighbour(machines, 1))
    assert found is not None
    assert table is not None
    times = []
    for inner in itertools.combinations(range(1, pricer.chain.length), 3):
        edges = (0, *inner, pricer.chain.length)
        other = assemble(pricer, candidate, table, 0, [((a, b - 1),) for a, b in itertools.pairwise(edges)])
        times += [other.objective] * other.fits
    assert len(times) > 20
    assert found.least <= min(times) <= found.objective <= min(times) * 1.01


@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_a_search_keeps_its_promise(schedule: Schedule) -> None:
    """No estimate of the space is faster than the plan's bound, and the plan's own estimate is the plan."""
    machines = cluster("dgx-h100:8")
    plan = autoplan.plan(MODEL, machines, global_batch_size=16, fix={"schedule": schedule.value, "pp": 4},
                         gap=NAMED_ONLY)
    assert problems(plan) == []
    assert plan.parallelism.schedule is schedule
    assert plan.parallelism.recompute is not Recompute.FULL
    assert again(plan, MODEL, machines).predicted == plan.predicted
    assert plan.search.lower_bound_s is not None
    for tp, dp in ((1, 2), (2, 1)):
        other = autoplan.estimate(MODEL, machines, tp=tp, dp=dp, pp=4, micro_batch_size=1, global_batch_size=16,
                                  schedule=schedule.value)
        assert other.predicted.iteration_time_s >= plan.search.lower_bound_s * (1 - 1e-9)
        assert other.predicted.iteration_time_s >= plan.predicted.iteration_time_s * (1 - 1e-9)


def test_zero_bubbles_are_only_searched_when_asked_for() -> None:
    plan = autoplan.plan(MODEL, "dgx-h100:8", global_batch_size=32, fix={"pp": 4, "dp": 2}, gap=NAMED_ONLY)
    assert not plan.parallelism.schedule.splits_backward


def test_another_solver_finds_the_same() -> None:
    """HiGHS solves each stage as one programme; of V's the first stage holds both ends of the model."""
    asked: dict[str, Any] = {"global_batch_size": 16, "fix": {"schedule": "zb_v", "pp": 4, "tp": 1}, "zero": 0,
                             "recompute": "none", "micro_batch_size": 1, "gap": NAMED_ONLY, "top": 1}
    plans = [autoplan.plan(MODEL, "dgx-h100:8", solver=solver, **asked) for solver in ("auto", "highs")]
    times = [plan.predicted.iteration_time_s for plan in plans]
    assert times[1] == pytest.approx(times[0], rel=1e-6)


ASKED: dict[str, Any] = {"pp": 4, "dp": 2, "micro_batch_size": 1, "global_batch_size": 16}


@pytest.mark.parametrize(("changed", "key"), [
    ({"schedule": "zb_h1", "recompute": "full"}, "recompute"),
    ({"schedule": "zb_h1", "runtime": "megatron-lm"}, "schedule"),
    ({"schedule": "zb_h2", "virtual_stages": 2}, "virtual_stages"),
    ({"schedule": "zb_v", "virtual_stages": 4}, "virtual_stages"),
    ({"schedule": "zb_v", "global_batch_size": 8}, "schedule"),
    ({"schedule": "zb_v", "layers": [2, 2, 2, 2]}, "layers"),
    ({"schedule": "zb_v", "pp": 1, "dp": 8}, "pp")])
def test_what_no_zero_bubble_schedule_runs(changed: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as error:
        autoplan.estimate(MODEL, "dgx-h100:8", **{**ASKED, **changed})
    assert error.value.key == key


def test_what_does_not_fit_is_told_to_leave_the_schedule() -> None:
    plan = autoplan.estimate(llama(layers=16, hidden=8192, ffn=28672, heads=64, kv_heads=8), "dgx-h100:8",
                             schedule="zb_h2", **{**ASKED, "micro_batch_size": 2})
    assert any("schedule 1f1b" in note or "micro-batch of 1" in note for note in plan.notes)
