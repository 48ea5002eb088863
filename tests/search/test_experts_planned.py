"""Models of experts, planned and estimated: degrees of expert parallelism, what they save, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import NAMED_ONLY, cluster, llama

import autoplan
from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph
from autoplan.plan import Plan, check

MOE: dict[str, Any] = {"experts": 8, "top_k": 2, "ffn": 2816}


def moe(**changes: Any) -> ModelGraph:
    return llama(layers=4, ffn=None, moe=MOE | changes)


def estimate(**degrees: Any) -> Plan:
    return autoplan.estimate(moe(), cluster("dgx-h100:8"), micro_batch_size=1, global_batch_size=32, **degrees)


@pytest.mark.parametrize("fix", [
    {"ep": 4}, {"ep": 8, "tp": 1, "pp": 1}, {"ep": 4, "tp": 2, "etp": 1}, {"ep": 2, "tp": 2, "etp": 2}, {"pp": 2}, {}],
    ids=str)
def test_estimate_of_a_plans_degrees_is_the_plan(fix: dict[str, int]) -> None:
    machines = cluster("dgx-h100:8")
    plan = autoplan.plan(moe(), machines, global_batch_size=32, gap=NAMED_ONLY, fix=fix)
    how = plan.parallelism
    assert check.problems(plan) == []
    assert all(getattr(how, key) == value for key, value in fix.items())
    assert how.etp in (1, how.tp) and (how.ep == 1) == ("ep" not in str(how.recipe).split("+"))
    assert how.dp is not None and how.micro_batch_size is not None and how.sequence_parallel is not None
    again = autoplan.estimate(
        moe(), machines, tp=how.tp or 1, pp=how.pp, dp=how.dp, ep=how.ep or 1, etp=how.etp, zero=how.zero or 0,
        micro_batch_size=how.micro_batch_size, global_batch_size=32, recompute=str(how.recompute),
        sequence_parallel=how.sequence_parallel, schedule=how.schedule.value, virtual_stages=how.virtual_stages)
    assert again.predicted.iteration_time_s == pytest.approx(plan.predicted.iteration_time_s, rel=1e-9)
    assert again.predicted.peak_memory_bytes == plan.predicted.peak_memory_bytes
    assert again.parallelism == how


def test_experts_spread_over_replicas_leave_each_a_part_of_their_state() -> None:
    """16 bytes a parameter; every replica holds all dense ones and its part of the experts."""
    memory = [estimate(dp=8, ep=ep).stages[0].memory.breakdown for ep in (1, 2, 8)]
    experts = 16 * 4 * 3 * 8 * 1024 * 2816
    held = [one.weights + one.gradients + one.optimizer for one in memory]
    assert held[0] - held[1] == pytest.approx(experts / 2) and held[0] - held[2] == pytest.approx(experts * 7 / 8)


def test_a_dense_model_has_no_degree_of_experts() -> None:
    plan = autoplan.estimate(llama(), cluster("dgx-h100:8"), dp=8, micro_batch_size=1, global_batch_size=32)
    assert (plan.parallelism.ep, plan.parallelism.etp) == (1, None)


@pytest.mark.parametrize(("degrees", "key", "says"), [
    ({"dp": 8, "ep": 3}, "ep", "8 experts"),
    ({"dp": 2, "tp": 4, "ep": 4}, "ep", "doesn't divide dp 2"),
    ({"dp": 4, "tp": 2, "ep": 4, "etp": 3}, "etp", "allowed: 1, 2"),
    ({"dp": 2, "tp": 4, "ep": 2, "etp": 1}, "ep", "no multiple of tp 4"),
])
def test_degrees_that_do_not_go_together(degrees: dict[str, int], key: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        estimate(**degrees)
    assert str(caught.value).startswith(f"{key}: ") and says in str(caught.value)


def test_dense_models_have_no_experts_to_spread() -> None:
    with pytest.raises(InputError, match="ep: dense models have no experts"):
        autoplan.estimate(llama(), cluster("dgx-h100:8"), dp=8, ep=2, micro_batch_size=1, global_batch_size=32)
