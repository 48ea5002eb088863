"""Laws of the best plan: better hardware never makes it slower; the same question gives the same answer."""

import json
from dataclasses import replace

import pytest
from tiny import NAMED_ONLY, cluster, gpt, least_memory, llama, with_memory

import autoplan
from autoplan.plan import Plan, check

GIB = 2**30


def faster(machines, *, network=1.0, inside=1.0, hbm=1.0, flops=1.0):
    """Return the cluster with bandwidths and peaks times a factor."""
    group = machines.groups[0]
    node, device = group.node, group.node.device
    device = replace(device, hbm_bandwidth=device.hbm_bandwidth * hbm,
                     peak_flops={dtype: peak * flops for dtype, peak in device.peak_flops.items()})
    intra = replace(node.intra, bandwidth=node.intra.bandwidth * inside,
                    peer_bandwidth=node.intra.peer_bandwidth and node.intra.peer_bandwidth * inside)
    node = replace(node, device=device, intra=intra,
                   network=replace(node.network, bandwidth=node.network.bandwidth * network))
    return replace(machines, groups=(replace(group, node=node),))


def seconds(model, machines, batch=16, **options):
    plan = autoplan.plan(model, machines, global_batch_size=batch, gap=NAMED_ONLY, **options)
    assert check.problems(plan) == []
    return plan.predicted.iteration_time_s


NODES = replace(cluster("dgx-a100-40gb:16"), gpus_per_node=2)


@pytest.mark.parametrize("machines", [NODES, replace(cluster("p3.16xlarge:16"), gpus_per_node=2),
                                      replace(cluster("g5.48xlarge:16"), gpus_per_node=4)], ids=lambda one: one.name)
@pytest.mark.parametrize("what", ["network", "inside", "hbm", "flops"])
def test_faster_hardware_is_never_slower(machines, what):
    times = [seconds(gpt(), faster(machines, **{what: factor})) for factor in (0.5, 1.0, 2.0, 8.0)]
    assert times == sorted(times, reverse=True)


def test_a_slow_network_costs_something():
    fixed = {"fix": {"dp": 4, "tp": 1, "pp": 1}}
    assert seconds(gpt(), faster(NODES, network=0.1), **fixed) > 1.1 * seconds(gpt(), NODES, **fixed)


def test_more_memory_is_never_slower():
    machines = cluster("dgx-h100:4")
    least = least_memory(llama(), machines, 16)
    times = [seconds(llama(), with_memory(machines, least + more * GIB)) for more in (0.01, 0.2, 0.4, 0.9, 3, 13, 77)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.9 * times[0]  # memory mattered


def test_fewer_choices_are_never_faster():
    model, machines = gpt(), cluster("dgx-a100-40gb:4")
    free = seconds(model, machines)
    for fixed in ({"fix": {"tp": 2}}, {"fix": {"pp": 2}}, {"fix": {"dp": 2}}, {"fix": {"schedule": "gpipe"}},
                  {"zero": 3}, {"recompute": "full"}, {"micro_batch_size": 1}, {"fix": {"sequence_parallel": True}}):
        assert seconds(model, machines, **fixed) >= free


def test_more_micro_batches_take_longer():
    times = [seconds(gpt(), cluster("dgx-a100-40gb:4"), batch) for batch in (4, 8, 16, 32, 64)]
    assert times == sorted(times) and times[-1] > 2 * times[0]


def without_timing(plan: Plan) -> str:
    return json.dumps({key: value for key, value in json.loads(plan.to_json()).items() if key != "timing"})


@pytest.mark.parametrize("gap", [NAMED_ONLY, 0.05])
def test_two_runs_give_the_same_plan(gap):
    model, machines = gpt(layers=2), cluster("l40s-8x:2")
    first, second = (autoplan.plan(model, machines, global_batch_size=4, gap=gap) for _ in range(2))
    assert without_timing(first) == without_timing(second)


def test_models_built_twice_give_the_same_plan():
    plans = [autoplan.plan(llama(), cluster("dgx-h100:4"), global_batch_size=8, gap=NAMED_ONLY) for _ in range(2)]
    assert without_timing(plans[0]) == without_timing(plans[1])


def test_top_ranks_and_changes_nothing_else():
    model, machines = gpt(), cluster("dgx-a100-40gb:4")
    plans = [autoplan.plan(model, machines, global_batch_size=8, gap=NAMED_ONLY, top=top) for top in (1, 3, 20)]
    assert [len(plan.alternatives) for plan in plans] == [0, 2, 19]
    assert plans[0].predicted == plans[1].predicted == plans[2].predicted
    assert plans[2].alternatives[:2] == plans[1].alternatives


def test_a_time_limit_returns_what_was_found_with_its_gap():
    model, machines = gpt(), cluster("dgx-a100-80gb:8")
    plan = autoplan.plan(model, machines, global_batch_size=64, time_limit=0)
    assert check.problems(plan) == []
    assert plan.search.status == "time_limit" and 0 <= plan.search.gap <= 1
    best = autoplan.plan(model, machines, global_batch_size=64, gap=NAMED_ONLY)
    assert plan.search.lower_bound_s <= best.predicted.iteration_time_s <= plan.predicted.iteration_time_s
    unlimited = autoplan.plan(model, machines, global_batch_size=64, gap=NAMED_ONLY, time_limit=600)
    assert without_timing(unlimited) == without_timing(best)


def test_every_stage_places_its_devices_inside_nodes():
    plan = autoplan.plan(llama(layers=8), NODES, global_batch_size=16, gap=NAMED_ONLY, fix={"pp": 4})
    assert [stage.devices for stage in plan.stages] == [(index,) for index in range(4)]
    plan = autoplan.plan(llama(layers=8), NODES, global_batch_size=16, gap=NAMED_ONLY, fix={"pp": 2, "tp": 2})
    assert [stage.devices for stage in plan.stages] == [(0, 1), (2, 3)]
