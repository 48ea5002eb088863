"""Chains of several kinds of layers: against the uniform chain, all cuts, a MILP solver, estimates and bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import NAMED_ONLY, again, cluster, gpt, least_memory, llama, pricer_of, searched, with_memory

import autoplan
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph
from autoplan.model.spec import parse
from autoplan.plan import Plan, check
from autoplan.search import probe
from autoplan.search.pricer import Pricer
from autoplan.search.solve import assemble, neighbour, solve
from autoplan.search.space import Candidate, Pins, chain
from autoplan.workload import Recompute, Schedule

GIB = 2**30
MOE = {"experts": 8, "top_k": 2, "ffn": 1408}

ALIKE = llama(layers=6, blocks={"whole": {}, "wide": {"window": 4096}}, pattern=("whole", "wide"))  # 2048 tokens
WINDOWS = llama(layers=6, blocks={"local": {"window": 256}, "full": {}}, pattern=("local", "full"))
WIDTHS = llama(layers=6, blocks={"narrow": {}, "wide": {"ffn": 11264}}, pattern=("4 narrow", "2 wide"))
PREFIX = llama(layers=5, moe=MOE, blocks={"dense": {"mlp": "dense"}, "sparse": {}}, pattern=("2 dense", "3 sparse"))
THREE = llama(layers=6, moe=MOE, blocks={"dense": {"mlp": "dense"}, "sparse": {}, "local": {"window": 256}},
              pattern=("dense", "sparse", "local"))
TIED = gpt(layers=6, tied_embeddings=True, blocks={"small": {"ffn": 1024}, "large": {}}, pattern=("small", "2 large"))
RESNET = build(parse({"architecture": "resnet", "stages": [1, 2, 3, 2], "classes": 10}, "test", "tiny-resnet"))
MODELS: dict[str, ModelGraph] = {"windows": WINDOWS, "widths": WIDTHS, "prefix": PREFIX, "three": THREE, "tied": TIED}
H100 = cluster("dgx-h100:4")


@cache
def planned(name: str, **options: Any) -> Plan:
    return autoplan.plan(MODELS[name], H100, global_batch_size=8, gap=NAMED_ONLY, fix=dict(options))


def test_the_models_have_kinds() -> None:
    assert [len(chain(model).layers) for model in (ALIKE, *MODELS.values())] == [2, 2, 2, 2, 3, 2]
    assert chain(THREE).kinds == (0, 1, 2) * 2 and chain(WIDTHS).kinds == (0,) * 4 + (1,) * 2


@pytest.mark.parametrize("fix", [
    {}, {"pp": 2}, {"pp": 4, "zero": 0}, {"pp": 2, "schedule": "interleaved"}, {"pp": 2, "schedule": "zb_h1"},
    {"tp": 2, "recompute": "full"}], ids=str)
def test_kinds_that_cost_the_same_give_the_plan_of_equal_layers(fix: dict[str, Any]) -> None:
    """A window as wide as the sequence masks nothing."""
    equal, alike = (autoplan.plan(model, H100, global_batch_size=8, gap=NAMED_ONLY, fix=fix)
                    for model in (llama(layers=6), ALIKE))
    assert alike.parallelism == equal.parallelism
    assert alike.predicted.iteration_time_s == pytest.approx(equal.predicted.iteration_time_s, rel=1e-9)
    assert alike.predicted.peak_memory_bytes == pytest.approx(equal.predicted.peak_memory_bytes, rel=1e-9)
    assert [stage.layers for stage in alike.stages] == [stage.layers for stage in equal.stages]
    assert [stage.memory for stage in alike.stages] == [stage.memory for stage in equal.stages]


def best_cut(pricer: Pricer, candidate: Candidate, recompute: Recompute, zero: int) -> tuple[float | None, bool]:
    """Return the least objective over all cuts that fit, and whether some didn't."""
    table = pricer.stage_table(candidate, recompute, zero, neighbour(pricer.cluster, candidate.mesh.num_devices))
    assert table is not None
    n = pricer.chain.length
    every = [assemble(pricer, candidate, table, zero, [((a, b - 1),) for a, b in itertools.pairwise((0, *inner, n))])
             for inner in itertools.combinations(range(1, n), candidate.num_stages - 1)]
    fitting = [one.objective for one in every if one.fits]
    return min(fitting, default=None), len(fitting) < len(every)


@pytest.mark.parametrize("name", MODELS)
def test_the_cut_is_the_best_of_all_cuts(name: str) -> None:
    """On devices of just enough memory for a pipeline, and of more: what is in flight decides what fits where."""
    least = least_memory(MODELS[name], H100, 8, fix={"pp": 4})
    bound = 0
    for factor in (1.0, 1.08, 1.25, 4.0):
        pricer = pricer_of(MODELS[name], with_memory(H100, least * factor), 8)
        for candidate in searched(pricer, Pins(pp=4, schedule=Schedule.ONE_F_ONE_B)):
            for recompute, zero in ((Recompute.NONE, 0), (Recompute.FULL, 0)):
                expected, over = best_cut(pricer, candidate, recompute, zero)
                found = solve(pricer, candidate, recompute, zero)
                assert (found is None) == (expected is None)
                if found is not None:
                    assert found.fits and found.objective == pytest.approx(expected, rel=1e-12)
                    bound += over
    assert bound  # memory mattered


@pytest.mark.parametrize("name", ["windows", "widths", "three"])
def test_a_milp_solver_gives_the_plan_of_elimination(name: str) -> None:
    for fix in ({"pp": 2, "micro_batch_size": 1}, {"pp": 1, "tp": 2}):
        ours, theirs = (autoplan.plan(MODELS[name], cluster("dgx-h100:2"), global_batch_size=4, gap=NAMED_ONLY, fix=fix,
                                      solver=solver) for solver in ("auto", "highs"))
        assert theirs.search.solves > 0
        assert theirs.parallelism == ours.parallelism
        assert theirs.predicted.iteration_time_s == pytest.approx(ours.predicted.iteration_time_s, rel=1e-9)
        assert [stage.layers for stage in theirs.stages] == [stage.layers for stage in ours.stages]
        assert [stage.shardings for stage in theirs.stages] == [stage.shardings for stage in ours.stages]


SCHEDULES = [Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V]
RUNTIMES = ["plain", "megatron-lm", "megatron-deepspeed", "fsdp", "torchtitan"]


BOUNDED = {**MODELS, "resnet": RESNET}


@cache
def candidates_of(name: str, runtime: str, schedule: Schedule) -> tuple[Pricer, list[Candidate]]:
    model = BOUNDED[name]
    machines = with_memory(H100, least_memory(model, H100, 8) + GIB)
    pricer = pricer_of(model, replace(machines, gpus_per_node=2), 8, runtime)
    return pricer, [one for one in searched(pricer, Pins(schedule=schedule)) if schedule in pricer.runtime.schedules]


@pytest.mark.parametrize(("machines", "batch"), [("g5.48xlarge:4", 64), ("dgx-h100:4", 64)])
def test_bounds_of_blocks_that_shrink_bound(machines: str, batch: int) -> None:
    pricer = pricer_of(RESNET, cluster(machines), batch)
    for candidate in searched(pricer, Pins(recompute=Recompute.NONE)):
        found = solve(pricer, candidate, Recompute.NONE, 0)
        if found is not None:
            (bounded,) = probe.bounds(pricer, candidate, [Recompute.NONE], [0])
            assert bounded.bound <= found.objective * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_bounds_bound(data: st.DataObject) -> None:
    """Between nodes, where sends cost much; a ResNet's later blocks hand less on than its first."""
    pricer, every = candidates_of(data.draw(st.sampled_from(list(BOUNDED))), data.draw(st.sampled_from(RUNTIMES)),
                                  data.draw(st.sampled_from(SCHEDULES)))
    if not every:
        return
    candidate = data.draw(st.sampled_from(every))
    recompute = Recompute.NONE if candidate.schedule.splits_backward else data.draw(st.sampled_from(Recompute))
    zero = data.draw(st.sampled_from(pricer.runtime.zero_stages(candidate.num_stages)))
    found = solve(pricer, candidate, recompute, zero)
    if found is not None:
        (bounded,) = probe.bounds(pricer, candidate, [recompute], [zero])
        assert bounded.bound <= found.objective * (1 + 1e-9)


FIXES: list[dict[str, Any]] = [{}, {"pp": 2}, {"pp": 4}, {"pp": 2, "tp": 2, "recompute": "full"},
                               {"pp": 2, "schedule": "zb_h1"}, {"tp": 1, "zero": 3}]


@pytest.mark.parametrize("fix", FIXES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_sound_and_its_estimate(name: str, fix: dict[str, Any]) -> None:
    plan = planned(name, **fix)
    assert check.problems(plan) == []
    how = plan.parallelism
    assert isinstance(how.ep, int)
    found = again(plan, MODELS[name], H100, ep=how.ep, etp=how.etp)
    assert found.parallelism == how
    assert found.predicted.iteration_time_s == pytest.approx(plan.predicted.iteration_time_s, rel=1e-9)
    assert found.predicted.peak_memory_bytes == plan.predicted.peak_memory_bytes


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts_spread_alike_in_all_layers_that_have_them(ep: int) -> None:
    """Two dense layers, embedding and head hold none."""
    plan = planned("prefix", ep=ep, tp=1, pp=1)
    assert plan.parallelism.ep == ep and check.problems(plan) == []


def test_layers_that_hand_different_tensors_on_are_refused() -> None:
    """Layers of one residual stream and one layer, of another kind, that reads a tensor of other dims."""
    layer = next(one for one in WINDOWS.classes if one.input is not None and WINDOWS.layer(2) == one)
    assert layer.input is not None
    other = replace(layer, input=replace(layer.input, dims=(*layer.input.dims[:-1], "elsewhere")))
    model = replace(WINDOWS, classes=tuple(other if one is layer else one for one in WINDOWS.classes))
    with pytest.raises(InputError, match="only one residual stream can be planned") as caught:
        autoplan.plan(model, H100, global_batch_size=8)
    assert "\n" not in str(caught.value)
