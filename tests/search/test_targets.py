"""Runtimes in the search: what they offer and refuse, what they overlap, and bounds under them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import NAMED_ONLY, again, cluster, fits, gpt, least_memory, llama, pricer_of, searched, with_memory

import autoplan
from autoplan.errors import InputError
from autoplan.plan import check
from autoplan.runtimes import load, names
from autoplan.search import probe
from autoplan.search.solve import solve
from autoplan.workload import Recompute, Schedule

GIB = 2**30
OVERLAPPING = ("fsdp", "megatron-lm", "nemo")


def plan(model, machines, batch=16, **options):
    return autoplan.plan(model, machines, global_batch_size=batch, gap=NAMED_ONLY, **options)


@pytest.mark.parametrize("name", names())
def test_plans_of_every_runtime_are_sound_and_of_what_it_offers(name):
    model, machines, runtime = llama(layers=4), cluster("dgx-h100:4"), load(name)
    for found in (plan(model, machines, runtime=name, top=20), plan(model, machines, runtime=name, fix={"pp": 2})):
        assert check.problems(found) == []
        assert fits(found) and found.runtime == name
        for way in (found.parallelism, *(other.parallelism for other in found.alternatives)):
            assert way.schedule in runtime.schedules
            assert way.zero in (runtime.zero if way.pp == 1 else runtime.pipeline_zero)
        for stage in found.stages:
            held = stage.memory
            assert held.low_bytes < held.total_bytes < held.high_bytes <= held.capacity_bytes
        asked = found.workload
        assert asked.grad_dtype is (runtime.grad_dtype or asked.precision)
        assert asked.reduce_dtype is (runtime.reduce_dtype or asked.grad_dtype)
        assert again(found, model, machines).predicted == found.predicted


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("how", [
    {"tp": 2, "dp": 2, "pp": 2, "recompute": "full", "sequence_parallel": True}, {"dp": 4, "pp": 2},
    {"tp": 8, "recompute": "selective", "attention": "unfused", "dropout": True},
    {"tp": 2, "pp": 4, "schedule": "interleaved", "virtual_stages": 2}, {"dp": 8, "recompute": "full"},
], ids=str)
def test_seconds_and_bytes_add_up_under_every_runtime(name, how):
    model, machines, runtime = llama(layers=8, kv_heads=1), cluster("dgx-h100:8"), load(name)
    if how.get("schedule", "1f1b") not in runtime.schedules:
        with pytest.raises(InputError, match="doesn't offer it") as caught:
            autoplan.estimate(model, machines, micro_batch_size=1, global_batch_size=32, runtime=name, **how)
        assert caught.value.key == "schedule" and "1f1b" in caught.value.allowed
        return
    for zero in runtime.zero_stages(how.get("pp", 1)) if how.get("dp", 1) > 1 else (0,):
        found = autoplan.estimate(model, machines, micro_batch_size=1, global_batch_size=32, runtime=name, zero=zero,
                                  **how)
        assert check.problems(found) == []
        parts = found.predicted.breakdown
        assert math.fsum(seconds for _, seconds in parts) == pytest.approx(found.predicted.iteration_time_s, rel=1e-9)
        assert (parts.launch_s > 0) <= (runtime.operation_seconds > 0)


def test_small_work_waits_for_the_host(monkeypatch):
    """A layer of a few µs of kernels: eager PyTorch takes longer to launch them than the device to run them."""
    small = llama(hidden=128, heads=4, ffn=256)
    rules = load("megatron-deepspeed")

    def priced(operation_seconds):
        monkeypatch.setattr("autoplan.search.load_runtime",
                            lambda name: replace(rules, operation_seconds=operation_seconds))
        return autoplan.estimate(small, cluster("dgx-h100:1"), runtime="megatron-deepspeed", micro_batch_size=1,
                                 global_batch_size=1, seq_len=128).predicted

    eager, ahead = priced(rules.operation_seconds), priced(0.0)
    assert eager.breakdown.launch_s > 0.3 * eager.iteration_time_s
    assert eager.iteration_time_s - eager.breakdown.launch_s == pytest.approx(ahead.iteration_time_s, rel=1e-9)
    assert ahead.breakdown.launch_s == 0
    for name in ("forward_s", "backward_s"):
        assert getattr(eager.breakdown, name) == getattr(ahead.breakdown, name)


def test_what_overlaps_is_not_waited_for():
    """Gradients of data parallelism, parameters of ZeRO-3, and collectives of tensor parallelism in chunks."""
    model, machines = llama(hidden=4096, heads=32, ffn=14336), cluster("dgx-h100:8")

    def waited(part, runtime, **how):
        found = autoplan.estimate(model, machines, micro_batch_size=1, global_batch_size=32, runtime=runtime,
                                  grad_dtype="bf16", reduce_dtype="bf16", **how)
        return getattr(found.predicted.breakdown, part)

    assert waited("gradient_sync_s", "ddp", dp=8) < 0.5 * waited("gradient_sync_s", "plain", dp=8)
    sharded = {"dp": 8, "zero": 3}
    assert waited("parameter_gather_s", "fsdp", **sharded) < 0.5 * waited("parameter_gather_s", "plain", **sharded)
    tensor = {"tp": 8, "sequence_parallel": True}
    nemo, megatron, plain = (waited("layout_conversion_s", one, **tensor) for one in ("nemo", "megatron-lm", "plain"))
    assert nemo < megatron < plain


MODELS = (llama(layers=8, kv_heads=1), llama(layers=6), gpt(layers=4, tied_embeddings=True))
UNIFORM = [(pricer, candidate) for name in OVERLAPPING for pricer in (
    pricer_of(MODELS[0], cluster("dgx-h100:8"), 16, name),
    pricer_of(MODELS[1], with_memory(cluster("dgx-h100:4"), least_memory(MODELS[1], cluster("dgx-h100:4"), 8) + GIB), 8,
              name, attention="unfused", dropout=True),
    pricer_of(MODELS[2], cluster("g5.48xlarge:4"), 8, name),
) for candidate in searched(pricer)]
DOUBLE = pricer_of(MODELS[0], cluster("dgx-h100:8"), 16, "deepspeed", grad_dtype="fp32")  # gradients in two dtypes
UNIFORM += [(DOUBLE, candidate) for candidate in searched(DOUBLE)]


@pytest.mark.parametrize("interleaved", [False, True])
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_bounds_of_recipes_bound_under_runtimes_that_overlap(interleaved, data):
    some = [one for one in UNIFORM if (one[1].schedule is Schedule.INTERLEAVED) == interleaved]
    pricer, candidate = data.draw(st.sampled_from(some))
    zero = data.draw(st.sampled_from(pricer.runtime.zero_stages(candidate.num_stages)))
    recompute = data.draw(st.sampled_from(Recompute))
    bounded = probe.bounds(pricer, candidate, [recompute], [zero])
    found = solve(pricer, candidate, recompute, zero)
    if found is not None:
        assert len(bounded) == 1 and bounded[0].bound <= found.objective * (1 + 1e-9)


@pytest.mark.parametrize(("name", "zero", "pp", "allowed"), [
    ("megatron-lm", 2, None, "0, 1"), ("megatron-lm", 3, 1, "0, 1"), ("ddp", 1, None, "0"), ("fsdp", 1, 1, "0, 2, 3"),
    ("deepspeed", 2, 2, "0, 1"), ("deepspeed", 3, 4, "0, 1"),
])
def test_zero_stages_that_a_runtime_does_not_offer(name, zero, pp, allowed):
    with pytest.raises(InputError, match=f"runtime {name} doesn't offer it") as caught:
        plan(gpt(), cluster("dgx-h100:4"), runtime=name, zero=zero, fix={"pp": pp} if pp else {})
    assert (caught.value.key, caught.value.allowed) == ("zero", allowed)


def test_a_zero_stage_offered_without_pipelines_leaves_pipelines_out():
    found = plan(gpt(), cluster("dgx-h100:4"), runtime="deepspeed", zero=3)
    assert {way.parallelism.pp for way in (found, *found.alternatives)} == {1}


@pytest.mark.parametrize("solver", ["highs", "pulp:PULP_CBC_CMD"])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_linear_programmes_are_refused_where_seconds_do_not_add_up(name, solver):
    with pytest.raises(InputError, match="overlaps communication") as caught:
        plan(gpt(), cluster("dgx-h100:2"), runtime=name, solver=solver)
    assert caught.value.key == "solver"
