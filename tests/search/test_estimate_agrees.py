"""`estimate` of a plan's own degrees gives the plan's own numbers; every plan is sound, and its numbers add up."""

import math

import pytest
from tiny import NAMED_ONLY, again, cluster, gpt, llama

import autoplan
from autoplan.model.facts import forward_flops_per_token
from autoplan.plan import check

BIG = {"hidden": 4096, "heads": 32, "ffn": 16384, "layers": 8}

CASES = {
    "a100": (gpt(), "dgx-a100-80gb:8", 64, {}),
    "v100 fp16": (gpt(), "dgx1-v100-16gb:4", 16, {"precision": "fp16"}),
    "tied, two stages": (gpt(tied_embeddings=True), "dgx-a100-40gb:4", 32, {"fix": {"pp": 2}}),
    "tied, one stage, big": (gpt(tied_embeddings=True, **BIG), "dgx1-v100-16gb:8", 32, {"precision": "fp16"}),
    "tied, large vocabulary, nodes": (gpt(tied_embeddings=True, vocab_size=200_000, layers=8), "p3.16xlarge:16", 32,
                                      {"fix": {"pp": 4, "tp": 2}}),
    "grouped queries, tp": (llama(), "dgx-h100:8", 64, {"fix": {"tp": 8}}),
    "one key head, nodes": (llama(kv_heads=1), "dgx-h100:16", 64, {"fix": {"pp": 2, "tp": 4}}),
    "interleaved": (llama(layers=8), "dgx-h100:8", 32, {"fix": {"schedule": "interleaved", "pp": 2, "tp": 2}}),
    "interleaved, ends on top": (llama(layers=8), "dgx-h100:8", 32,
                                 {"fix": {"schedule": "interleaved", "pp": 4, "virtual_stages": 2, "dp": 2}}),
    "interleaved, ends inside": (llama(), "dgx-h100:4", 32, {"fix": {"schedule": "interleaved", "pp": 4}}),
    "gpipe": (llama(), "dgx-h100:8", 32, {"fix": {"schedule": "gpipe", "pp": 4}}),
    "uneven stages": (llama(layers=7), "l40s-8x:4", 32, {"fix": {"pp": 4}}),
    **{f"zero {zero}": (gpt(), "l40s-8x:4", 16, {"zero": zero, "fix": {"dp": 4}}) for zero in range(4)},
    **{f"recompute {policy}": (gpt(), "dgx1-v100-32gb:8", 32, {"recompute": policy, "fix": {"tp": 2, "pp": 2}})
       for policy in ("none", "selective", "full")},
    "sequence parallel": (gpt(), "rtx4090-8x:4", 16, {"fix": {"tp": 2, "sequence_parallel": True}}),
    "context parallel": (llama(layers=3), "dgx-h100:2", 4, {"fix": {"cp": 2, "tp": 1, "pp": 1}}),
    "fp32 sgd": (llama(), "mi300x-8x:4", 32, {"precision": "fp32", "optimizer": "sgd"}),
    "fp32 gradients": (llama(), "dgx-h100:4", 32, {"grad_dtype": "fp32"}),
}


@pytest.fixture(scope="module", params=CASES, ids=str)
def planned(request):
    model, ref, batch, options = CASES[request.param]
    machines = cluster(ref)
    return model, machines, autoplan.plan(model, machines, global_batch_size=batch, gap=NAMED_ONLY, **options)


def test_estimate_of_a_plans_degrees_is_the_plan(planned):
    model, machines, plan = planned
    found = again(plan, model, machines)
    assert found.predicted.iteration_time_s == pytest.approx(plan.predicted.iteration_time_s, rel=1e-9)
    assert found.predicted.peak_memory_bytes == plan.predicted.peak_memory_bytes
    assert found.parallelism == plan.parallelism
    assert [stage.chunks for stage in found.stages] == [stage.chunks for stage in plan.stages]
    for name, seconds in plan.predicted.breakdown:
        assert getattr(found.predicted.breakdown, name) == pytest.approx(seconds, rel=1e-9, abs=1e-12)


def test_a_plan_is_sound(planned):
    model, machines, plan = planned
    assert check.problems(plan) == []
    used = sorted(device for stage in plan.stages for device in stage.devices)
    assert used == list(range(machines.num_devices))
    assert plan.model.num_layers == model.num_layers


def test_its_numbers_hang_together(planned):
    model, machines, plan = planned
    predicted, asked = plan.predicted, plan.workload
    flops = 3 * forward_flops_per_token(model, asked.seq_len) * asked.global_batch_size * asked.seq_len
    peak = machines.device.peak_flops[asked.precision.value] * machines.num_devices
    assert 0 < predicted.mfu < 1
    assert predicted.mfu == pytest.approx(flops / predicted.iteration_time_s / peak, rel=1e-12)
    parts = math.fsum(seconds for _, seconds in predicted.breakdown)
    assert parts == pytest.approx(predicted.iteration_time_s, rel=1e-9)
    for stage in plan.stages:
        assert sum(nbytes for _, nbytes in stage.memory.breakdown) == stage.memory.total_bytes
        assert stage.memory.total_bytes <= machines.device.memory_bytes
        busy = stage.time.micro_batch_s * plan.parallelism.num_micro_batches + stage.time.step_s
        assert math.fsum(seconds for _, seconds in stage.time.breakdown) == pytest.approx(busy, rel=1e-9)


def test_its_bound_holds(planned):
    _, _, plan = planned
    search, seconds = plan.search, plan.predicted.iteration_time_s
    assert 0 < search.lower_bound_s <= seconds
    assert search.gap == pytest.approx(1 - search.lower_bound_s / seconds, abs=1e-12)
    assert 0 <= search.pruned <= search.candidates and search.solves > 0


def test_alternatives_are_ranked_and_no_better(planned):
    _, machines, plan = planned
    times = [plan.predicted.iteration_time_s, *(other.predicted.iteration_time_s for other in plan.alternatives)]
    assert times == sorted(times)
    assert all(other.predicted.peak_memory_bytes <= machines.device.memory_bytes for other in plan.alternatives)
    summaries = [plan.parallelism, *(other.parallelism for other in plan.alternatives)]
    assert len({summary.model_dump_json() for summary in summaries}) == len(summaries)
