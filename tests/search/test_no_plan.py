"""When nothing fits: the diagnosis is true, and the change it suggests fits when it is made."""

import re
from dataclasses import replace

import pytest
from tiny import NAMED_ONLY, cluster, fits, gpt, least_memory, llama, with_memory

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
        words = {"micro-batch count": "num_micro_batches", "cut of the layers": "layers"}
        del options["fix"][words.get(what, what)]
    elif change == "full recompute":
        options["recompute"] = "full"
    elif change.startswith("a micro-batch of "):
        options["micro_batch_size"] = int(change.removeprefix("a micro-batch of "))
    else:
        assert not change
    return machines, options


def between(question, relaxed):
    """Return the cluster of a question with devices too small for it, and large enough for the relaxed one."""
    least = [least_memory(*one[:3], **(one[3] if len(one) > 3 else {})) for one in (question, relaxed)]
    assert least[0] > least[1]
    return with_memory(question[1], sum(least) / 2)


A100, PAIR, NODE = cluster("dgx-a100-40gb:4"), cluster("dgx-h100:2"), cluster("dgx-h100:8")
WIDE, DEEP, LONG = gpt(hidden=2048, ffn=8192), gpt(layers=8), llama(layers=8)
SPLIT = {"fix": {"tp": 1, "dp": 4, "num_micro_batches": 4}}
ALONE = {"fix": {"tp": 1, "pp": 1, "dp": 4}}
CASES = {
    "more devices": (llama(), PAIR, 8, {}, (llama(), cluster("dgx-h100:4"), 8), "4 devices"),
    "more nodes": (WIDE, NODE, 16, {}, (WIDE, cluster("dgx-h100:16"), 16), "16 devices"),
    "smaller micro-batch": (LONG, cluster("dgx-h100:4"), 64, {"micro_batch_size": 16},
                            (LONG, cluster("dgx-h100:4"), 64, {"micro_batch_size": 8}), "a micro-batch of "),
    "more micro-batches": (gpt(), A100, 16, {"fix": {"num_micro_batches": 1}}, (gpt(), A100, 16),
                           "another micro-batch count"),
    "recompute": (DEEP, A100, 16, {"recompute": "none", **SPLIT}, (DEEP, A100, 16, {"recompute": "full", **SPLIT}),
                  "full recompute"),
    "zero": (gpt(), A100, 4, {"zero": 0, "fix": {"tp": 1, "pp": 1}},
             (gpt(), A100, 4, {"zero": 1, "fix": {"tp": 1, "pp": 1}}), "ZeRO stage 1"),
    "tp": (gpt(), A100, 4, {"fix": {"tp": 1}}, (gpt(), A100, 4), "another tp"),
    "cut": (DEEP, A100, 16, {"fix": {"layers": [1, 1, 1, 5], "tp": 1}}, (DEEP, A100, 16, {"fix": {"pp": 4, "tp": 1}}),
            "another cut of the layers"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_suggested_change_fits(case):
    model, machines, batch, options, relaxed, expected = CASES[case]
    suggested(model, between((model, machines, batch, options), relaxed), batch, options, expected)


def test_letting_go_of_all_that_is_fixed():
    """Where no single change is enough: ZeRO-3 alone isn't, nor are as many devices again."""
    options = {"zero": 0, **ALONE}
    machines = between((gpt(), A100, 16, {"zero": 3, **ALONE}), (gpt(), A100, 16))
    suggested(gpt(), machines, 16, options, "everything but")
    options = {"fix": {"tp": 1, "pp": 1}}
    machines = between((gpt(), A100, 16), (gpt(), cluster("dgx-a100-40gb:8"), 16))
    suggested(gpt(), with_memory(A100, machines.device.memory_bytes), 16, options, "devices")


def suggested(model, machines, batch, options, expected):
    """Assert that nothing fits, and that what is suggested has the words expected and fits."""
    with pytest.raises(NoPlanError) as caught:
        plan(model, machines, batch, **options)
    change = caught.value.diagnosis["nearest_change"]
    assert change is not None and expected in change and change in str(caught.value)
    larger, left = applied(change, machines, options)
    assert fits(plan(model, larger, batch, **left))


def test_only_what_the_runtime_offers_is_suggested():
    options = {"zero": 0, "runtime": "megatron-lm", "fix": {"tp": 1, "pp": 1}}
    with pytest.raises(NoPlanError) as caught:
        plan(gpt(), with_memory(A100, 2.2 * GIB), 4, **options)
    assert "ZeRO" not in (caught.value.diagnosis["nearest_change"] or "")


def test_the_diagnosis_adds_up():
    machines = with_memory(cluster("dgx-h100:2"), 2.2 * GIB)
    with pytest.raises(NoPlanError) as caught:
        plan(llama(), machines, 8)
    told = caught.value.diagnosis
    assert told["reason"] == "memory" and told["capacity_bytes"] == machines.device.memory_bytes
    assert told["over_bytes"] == told["needed_bytes"] - told["capacity_bytes"] > 0
    assert sum(told["breakdown"].values()) == told["likely_bytes"] < told["needed_bytes"]
    assert f"{told['over_bytes'] / GIB:.1f} GiB over" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_as_much_memory_as_the_diagnosis_asks_for_is_enough():
    model, machines = llama(), with_memory(cluster("dgx-h100:2"), 2.2 * GIB)
    with pytest.raises(NoPlanError) as caught:
        plan(model, machines, 8)
    needed = caught.value.diagnosis["needed_bytes"]
    assert fits(plan(model, with_memory(machines, needed + 2), 8))
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
    assert not fits(found)
    roomy = autoplan.estimate(llama(), cluster("dgx-h100:2"), tp=2, micro_batch_size=1, global_batch_size=8)
    assert found.predicted == roomy.predicted
