"""The public Python API: what is exported, what it accepts, what it refuses."""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import autoplan
from autoplan import InputError

sys.path.insert(0, str(Path(__file__).parent / "search"))
from tiny import NAMED_ONLY, cluster, gpt

MODEL, MACHINES = gpt(layers=2), cluster("dgx-a100-40gb:4")


def plan(**options):
    return autoplan.plan(MODEL, MACHINES, **{"global_batch_size": 8, "gap": NAMED_ONLY, **options})


def estimate(**options):
    return autoplan.estimate(MODEL, MACHINES, **{"global_batch_size": 8, "micro_batch_size": 1, "dp": 4, **options})


def test_every_public_name_is_there_and_documented():
    for name in autoplan.__all__:
        thing = getattr(autoplan, name)
        assert name in dir(autoplan)
        if callable(thing):
            assert inspect.getdoc(thing)
    with pytest.raises(AttributeError):
        autoplan.nothing_of_that_name  # noqa: B018


def test_public_functions_have_typed_signatures():
    for function in (autoplan.plan, autoplan.estimate, autoplan.load_model, autoplan.load_cluster):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


def test_loading_a_room_leaves_the_function_of_its_name():
    import autoplan.plan.schema

    assert callable(autoplan.plan) and autoplan.plan is not sys.modules["autoplan.plan"]


def test_costs_can_be_asked_for():
    costs = autoplan.CostModel(autoplan.load_cluster("dgx-h100:16"))
    flops = 2 * 4096**3
    assert flops / costs.cluster.device.peak_flops["bf16"] < costs.matmul(4096, 4096, 4096) < 1e-3
    for collective in (costs.all_reduce, costs.all_gather, costs.reduce_scatter, costs.all_to_all):
        inside, across = collective(2**28, 8), collective(2**28, 16)
        assert 0 < inside < across < 1
        assert collective(2**28, 1) == 0
    assert 0 < costs.p2p(2**28, [0, 1]) < costs.p2p(2**28, [0, 8])


def test_defaults_are_told():
    made = autoplan.plan(MODEL, MACHINES, gap=NAMED_ONLY, micro_batch_size=1, fix={"dp": 4})
    assert made.workload.seq_len == 1024 and made.workload.precision == "bf16"
    assert any("1,024" in note for note in made.notes)
    assert any("global batch" in note for note in made.notes)
    assert plan(seq_len=512).notes == ()


def test_a_device_without_bf16_gets_what_it_has():
    made = autoplan.plan(MODEL, cluster("dgx1-v100-16gb:2"), global_batch_size=4, seq_len=1024, gap=NAMED_ONLY)
    assert made.workload.precision == "fp16" and any("fp16" in note for note in made.notes)


def test_integers_of_numpy_are_integers():
    found = plan(global_batch_size=np.int64(8), fix={"tp": np.int32(2)})
    assert found.model_dump(exclude={"timing"}) == plan(fix={"tp": 2}).model_dump(exclude={"timing"})


def test_an_option_and_a_fix_are_the_same():
    assert plan(zero=1).model_dump(exclude={"timing"}) == plan(fix={"zero": 1}).model_dump(exclude={"timing"})
    assert plan(zero=1, fix={"zero": 1}).parallelism.zero == 1


def test_progress_is_told():
    seen = []
    plan(progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen and all(0 <= done <= total for _, done, total in seen)


@pytest.mark.parametrize("options, key", [
    ({"global_batch_size": 0}, "global_batch_size"), ({"global_batch_size": 2.0}, "global_batch_size"),
    ({"global_batch_size": True}, "global_batch_size"), ({"global_batch_size": 10**30}, "global_batch_size"),
    ({"seq_len": "x"}, "seq_len"), ({"seq_len": -1}, "seq_len"), ({"seq_len": 1025}, "seq_len"),
    ({"precision": "fp8"}, "precision"), ({"precision": 16}, "precision"), ({"optimizer": "magic"}, "optimizer"),
    ({"optimizer": None}, "optimizer"), ({"grad_dtype": "int4"}, "grad_dtype"), ({"recompute": "some"}, "recompute"),
    ({"recompute": ["full"]}, "recompute"), ({"zero": 4}, "zero"), ({"zero": True}, "zero"), ({"zero": "1"}, "zero"),
    ({"micro_batch_size": 3}, "micro_batch_size"), ({"micro_batch_size": 0.5}, "micro_batch_size"),
    ({"top": 0}, "top"), ({"top": "3"}, "top"), ({"gap": -0.1}, "gap"), ({"gap": float("nan")}, "gap"),
    ({"gap": "wide"}, "gap"), ({"time_limit": -1}, "time_limit"), ({"time_limit": float("nan")}, "time_limit"),
    ({"time_limit": "soon"}, "time_limit"), ({"solver": "magic"}, "solver"), ({"solver": None}, "solver"),
    ({"solver": "pulp:NOTHING"}, "solver"), ({"runtime": "magic"}, "runtime"), ({"runtime": None}, "runtime"),
    ({"fix": "tp=2"}, "fix"), ({"fix": ["tp"]}, "fix"), ({"fix": {1: 2}}, "1"), ({"fix": {"tpp": 2}}, "tpp"),
    ({"fix": {"tp": "2"}}, "tp"), ({"fix": {"tp": 3}}, "tp"), ({"fix": {"tp": 0}}, "tp"), ({"fix": {"pp": 8}}, "pp"),
    ({"fix": {"pp": 4}}, "pp"), ({"fix": {"tp": 4, "pp": 2}}, "tp, pp"),
    ({"fix": {"tp": 1, "pp": 1, "dp": 2}}, "tp, pp, dp"),
    ({"fix": {"ep": 2}}, "ep"), ({"fix": {"sequence_parallel": "yes"}}, "sequence_parallel"),
    ({"fix": {"sequence_parallel": True, "tp": 1}}, "sequence_parallel"),
    ({"fix": {"sequence_parallel": True, "tp": 4}, "seq_len": 1022}, "tp"), ({"fix": {"cp": 2}, "seq_len": 1023}, "cp"),
    ({"fix": {"num_micro_batches": 3}}, "num_micro_batches"),
    ({"fix": {"dp": 4}, "micro_batch_size": 4}, "global_batch_size"), ({"fix": {"schedule": "zigzag"}}, "schedule"),
    ({"fix": {"schedule": "gpipe", "virtual_stages": 2}}, "virtual_stages"),
    ({"fix": {"schedule": "interleaved", "pp": 1}}, "pp"), ({"fix": {"pp": 2, "virtual_stages": 5}}, "virtual_stages"),
    ({"zero": 1, "fix": {"zero": 2}}, "zero"),
])
def test_plan_refuses(options, key):
    with pytest.raises(InputError) as caught:
        plan(**options)
    assert caught.value.key == key and "\n" not in str(caught.value)


@pytest.mark.parametrize("options, key", [
    ({"dp": 2}, "tp, pp, dp, cp"), ({"tp": None}, "tp"),
    ({"dp": 8}, "dp"), ({"dp": 0}, "dp"), ({"dp": "4"}, "dp"), ({"tp": "1"}, "tp"),
    ({"dp": 1, "tp": 4, "seq_len": 1023, "sequence_parallel": True}, "tp"), ({"dp": 1, "pp": 4}, "pp"),
    ({"micro_batch_size": 4}, "global_batch_size"), ({"micro_batch_size": None}, "micro_batch_size"),
    ({"zero": 5}, "zero"), ({"recompute": "some"}, "recompute"),
    ({"schedule": "interleaved"}, "pp"), ({"virtual_stages": 2}, "virtual_stages"), ({"runtime": "magic"}, "runtime"),
])
def test_estimate_refuses(options, key):
    with pytest.raises(InputError) as caught:
        estimate(**options)
    assert caught.value.key == key and "\n" not in str(caught.value)


@pytest.mark.parametrize("ref", ["dgx-a100:12", "dgx-a100-80gb:12", "dgx-h100:0", "dgx-h100:-1", "dgx-h100:x", "none"])
def test_clusters_that_are_not_there(ref):
    with pytest.raises(InputError):
        autoplan.load_cluster(ref)


def test_a_plan_survives_its_file(tmp_path):
    made = plan()
    path = tmp_path / "plan.json"
    path.write_text(made.to_json())
    assert autoplan.Plan.load(path) == made
