"""When nothing fits: the diagnosis is true, and the change it suggests fits when it is made."""

import re
from dataclasses import replace

import pytest
from tiny import NAMED_ONLY, cluster, gpt, llama, with_memory

import autoplan
from autoplan.errors import NoPlanError

GIB = 2**30


def plan(model, machines, batch, **options):
    return autoplan.plan(model, machines, global_batch_size=batch, gap=NAMED_ONLY, **options)


def resized(machines, devices):
    """Return a cluster of the same nodes with `devices` devices."""
    group = machines.groups[0]
    if devices < group.node.gpus:
        return replace(machines, gpus_per_node=devices)
    nodes = replace(group, count=devices // group.node.gpus)
    return replace(machines, groups=(nodes,), gpus_per_node=group.node.gpus)


def applied(change, machines, options):
    """Return cluster and options with the change that a diagnosis suggests."""
    options = {**options, "fix": dict(options.get("fix", {}))}
    wider = re.fullmatch(r"(\d+) devices instead of (\d+)(?:, and (.*))?", change)
    if wider:
        assert int(wider[2]) == machines.num_devices < int(wider[1])
        machines, change = resized(machines, int(wider[1])), wider[3] or ""
    if change == "everything but the batch and the model left to the search":
        return machines, {}
    if change.startswith("ZeRO stage "):
        options["zero"] = int(change.removeprefix("ZeRO stage "))
    elif change.startswith("another "):
        what = change.removeprefix("another ")
        del options["fix"][{"micro-batch count": "num_micro_batches"}.get(what, what)]
    elif change == "full recompute":
        options["recompute"] = "full"
    elif change.startswith("a micro-batch of "):
        options["micro_batch_size"] = int(change.removeprefix("a micro-batch of "))
    else:
        assert not change
    return machines, options


A100 = cluster("dgx-a100-40gb:4")
CASES = {
    "more devices": (llama(), with_memory(cluster("dgx-h100:2"), 2.2 * GIB), 8, {}, "4 devices"),
    "more nodes": (gpt(hidden=2048, ffn=8192), with_memory(cluster("dgx-h100:8"), 1.85 * GIB), 16, {}, "16 devices"),
    "smaller micro-batch": (llama(layers=8), with_memory(cluster("dgx-h100:4"), 3.2 * GIB), 64,
                            {"micro_batch_size": 16}, "a micro-batch of "),
    "more micro-batches": (gpt(), with_memory(A100, 3 * GIB), 16, {"fix": {"num_micro_batches": 1}},
                           "another micro-batch count"),
    "recompute": (gpt(layers=8), with_memory(A100, 2.55 * GIB), 16,
                  {"recompute": "none", "fix": {"tp": 1, "dp": 4, "num_micro_batches": 4}}, "full recompute"),
    "zero": (gpt(), with_memory(A100, 3.0 * GIB), 4, {"zero": 0, "fix": {"tp": 1, "pp": 1}}, "ZeRO stage"),
    "tp": (gpt(), with_memory(A100, 2.0 * GIB), 4, {"fix": {"tp": 1}}, "another tp"),
    "all that is fixed": (gpt(), with_memory(A100, 2 * GIB), 16, {"zero": 0, "fix": {"tp": 1, "pp": 1, "dp": 4}},
                          "everything but"),
    "devices and all that is fixed": (gpt(), with_memory(A100, 1.65 * GIB), 16, {"fix": {"tp": 1, "pp": 1}}, "devices"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_suggested_change_fits(case):
    model, machines, batch, options, expected = CASES[case]
    with pytest.raises(NoPlanError) as caught:
        plan(model, machines, batch, **options)
    change = caught.value.diagnosis["nearest_change"]
    assert change is not None and expected in change and change in str(caught.value)
    larger, left = applied(change, machines, options)
    found = plan(model, larger, batch, **left)
    assert found.predicted.peak_memory_bytes <= machines.device.memory_bytes


def test_the_diagnosis_adds_up():
    machines = with_memory(cluster("dgx-h100:2"), 2.2 * GIB)
    with pytest.raises(NoPlanError) as caught:
        plan(llama(), machines, 8)
    told = caught.value.diagnosis
    assert told["reason"] == "memory" and told["capacity_bytes"] == machines.device.memory_bytes
    assert told["over_bytes"] == told["needed_bytes"] - told["capacity_bytes"] > 0
    assert sum(told["breakdown"].values()) == told["needed_bytes"]
    assert f"{told['over_bytes'] / GIB:.1f} GiB over" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_as_much_memory_as_the_diagnosis_asks_for_is_enough():
    model, machines = llama(), with_memory(cluster("dgx-h100:2"), 2.2 * GIB)
    with pytest.raises(NoPlanError) as caught:
        plan(model, machines, 8)
    needed = caught.value.diagnosis["needed_bytes"]
    assert plan(model, with_memory(machines, needed + 2), 8).predicted.peak_memory_bytes <= needed + 2
    with pytest.raises(NoPlanError):
        plan(model, with_memory(machines, needed - 2**20), 8)


def test_nothing_helps_a_device_that_the_framework_fills():
    with pytest.raises(NoPlanError) as caught:
        plan(gpt(), with_memory(A100, 1.0 * GIB), 8)
    assert caught.value.diagnosis["nearest_change"] is None


def test_what_cannot_be_divided_is_told():
    with pytest.raises(NoPlanError) as caught:
        plan(gpt(layers=3, heads=15, hidden=960, ffn=3841), A100, 3, fix={"dp": 1, "pp": 1})
    assert caught.value.diagnosis["reason"] == "indivisible"


def test_estimate_prices_what_does_not_fit():
    machines = with_memory(cluster("dgx-h100:2"), 2.2 * GIB)
    found = autoplan.estimate(llama(), machines, tp=2, micro_batch_size=1, global_batch_size=8)
    assert found.predicted.peak_memory_bytes > machines.device.memory_bytes
    roomy = autoplan.estimate(llama(), cluster("dgx-h100:2"), tp=2, micro_batch_size=1, global_batch_size=8)
    assert found.predicted == roomy.predicted
