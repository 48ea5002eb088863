"""Plans replayed: memory and time against the plan's own, the trace, the command."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import autoplan
from autoplan.cli import cli
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.spec import TransformerSpec
from autoplan.plan.check import problems
from autoplan.plan.schema import Plan
from autoplan.simulate import replay
from autoplan.simulate.plans import pipeline_of
from autoplan.simulate.trace import trace
from autoplan.workload import Schedule

MODEL = build(TransformerSpec(name="tiny", layers=16, hidden=1024, heads=16, ffn=2816, gated=True, vocab_size=32000,
                              seq_len=2048))


def estimated(schedule: str, runtime: str = "plain", **changed: Any) -> Plan:
    asked: dict[str, Any] = {"tp": 1, "pp": 4, "dp": 2, "micro_batch_size": 1, "global_batch_size": 32,
                             "virtual_stages": 2 if schedule == "interleaved" else 1, **changed}
    return autoplan.estimate(MODEL, "dgx-h100:8", schedule=schedule, runtime=runtime, **asked)


@pytest.mark.parametrize(("schedule", "runtime"), [
    *((schedule.value, "plain") for schedule in Schedule), ("interleaved", "megatron-lm"), ("zb_v", "torchtitan"),
    ("1f1b", "deepspeed")])
def test_a_plan_replayed(schedule: str, runtime: str) -> None:
    plan = estimated(schedule, runtime)
    assert problems(plan) == []
    timeline = replay(pipeline_of(plan, "plan"))
    assert timeline.step_time == plan.predicted.simulated_time_s
    assert timeline.step_time == pytest.approx(plan.predicted.iteration_time_s, rel=0.05)
    for index, stage in enumerate(plan.stages):
        assert timeline.peak(index) == pytest.approx(stage.memory.total_bytes, rel=1e-9)
        hidden = runtime == "megatron-lm"  # whose sends the plan counts once a step
        work = stage.time.micro_batch_s * plan.parallelism.num_micro_batches
        sent = 0.0 if hidden else stage.time.breakdown.p2p_s
        assert timeline.busy(index) == pytest.approx(work - sent, rel=1e-9)


def test_zero_bubbles_in_a_plan() -> None:
    """H2's bubble is the smallest of the flat ones, and its stages hold the most; V cuts its chunks there and back."""
    plans = {name: estimated(name) for name in ("1f1b", "zb_h1", "zb_h2", "zb_v")}
    flat = [plans[name] for name in ("1f1b", "zb_h1", "zb_h2")]
    bubbles = [plan.predicted.breakdown.bubble_s for plan in flat]
    assert bubbles == sorted(bubbles, reverse=True)
    assert [[stage.memory.in_flight for stage in plan.stages] for plan in flat] == [
        [4, 3, 2, 1], [4, 4, 4, 4], [7, 7, 7, 7]]
    assert [stage.chunks for stage in plans["zb_v"].stages] == [
        ((0, 2), (15, 17)), ((3, 4), (13, 14)), ((5, 6), (11, 12)), ((7, 8), (9, 10))]
    for plan in plans.values():
        for stage in plan.stages:
            assert 0 < stage.time.weight_gradient_s < stage.time.micro_batch_s - stage.time.forward_s


def test_links_are_shared_by_stages_on_one_network_card() -> None:
    """Four stages of one GPU a node with one card: what leaves the node takes turns, what stays inside doesn't."""
    plan = estimated("1f1b", pp=8, dp=1)
    one_card = plan.model_copy(update={"cluster": plan.cluster.model_copy(
        update={"gpus_per_node": 4, "num_nodes": 2, "nics_per_node": 1})})
    sends = pipeline_of(one_card, "plan").sends
    assert {sends[3, 4].link, sends[4, 3].link} == {("network", 0, 0), ("network", 1, 0)}
    assert sends[2, 3].link == ("inside", 2)
    assert sends[0, 7].link == sends[3, 4].link  # both leave node 0


def test_the_trace_holds_all_that_was_done() -> None:
    timeline = replay(pipeline_of(estimated("zb_v"), "plan"))
    found = trace(timeline)
    assert json.loads(json.dumps(found)) == found
    slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
    work = [event for event in slices if event["tid"] == 0 and event["args"]]
    assert len(work) == timeline.pipeline.pieces
    for stage in range(4):
        for thread in range(3):
            lane = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices
                          if (event["pid"], event["tid"]) == (stage, thread))
            assert lane or (stage, thread) in ((0, 1), (3, 2))  # V's ends have one neighbour
            assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(lane))
    counters = [event["args"]["bytes"] for event in found["traceEvents"] if event["ph"] == "C" and event["pid"] == 0]
    assert max(counters) == round(timeline.peak(0))


def test_the_command(tmp_path: Path) -> None:
    plan = estimated("zb_h1")
    path, out = tmp_path / "plan.json", tmp_path / "trace.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    run = CliRunner().invoke(cli, ["simulate", str(path), "--trace", str(out), "--json"])
    assert run.exit_code == 0
    found = json.loads(run.output)
    assert found["simulated_time_s"] == plan.predicted.simulated_time_s
    assert [stage["index"] for stage in found["stages"]] == [0, 1, 2, 3]
    assert json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    shown = CliRunner().invoke(cli, ["simulate", str(path)])
    assert shown.exit_code == 0
    assert "replayed" in shown.output


@pytest.mark.parametrize(("change", "words"), [
    ({"schedule": "interleaved"}, "at least 2 virtual stages"), ({"virtual_stages": 2}, "only interleaved"),
    ({"num_micro_batches": 10**8}, "too many pieces")])
def test_plans_that_can_not_be_replayed(change: dict[str, object], words: str) -> None:
    data = json.loads(estimated("1f1b").to_json())
    data["parallelism"] |= change
    with pytest.raises(InputError, match=f"^plan.json: parallelism.*{words}"):
        pipeline_of(Plan.model_validate_json(json.dumps(data)), "plan.json")
