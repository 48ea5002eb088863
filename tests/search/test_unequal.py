"""Pipelines of unequal submeshes: sound plans, bounds below them, and what they gain over equal ones."""

from collections import Counter
from dataclasses import replace

import pytest
from tiny import cluster, gpt, llama, pricer_of, searched, with_memory

from autoplan.cluster import meshes
from autoplan.plan import check
from autoplan.plan.schema import SearchInfo, Timing
from autoplan.search import unequal
from autoplan.search.assemble import plan_of
from autoplan.search.drive import policies
from autoplan.search.pricer import ZERO_STAGES
from autoplan.search.solve import solve
from autoplan.search.space import Pins
from autoplan.workload import Schedule

GIB = 2**30
CASES = {
    "large vocabulary": (llama(layers=3, vocab_size=128_000), cluster("dgx-h100:4")),
    "short of memory": (llama(layers=5), with_memory(cluster("l40s-8x:4"), 2.9 * GIB)),
    "tied": (gpt(layers=4, tied_embeddings=True), cluster("dgx1-v100-16gb:4")),
    "eight devices": (llama(layers=6), with_memory(cluster("g5.48xlarge:8"), 3 * GIB)),
}


@pytest.fixture(scope="module", params=CASES)
def solved(request):
    """A pricer, and (menu, its best pipeline) for every micro-batch count."""
    model, machines = CASES[request.param]
    pricer = pricer_of(model, machines, 8)
    kinds = policies(pricer, None)
    menus = list(unequal.menus(pricer, Pins()))
    return pricer, [(menu, unequal.solve_menu(pricer, menu, kinds, ZERO_STAGES, Pins(), float("inf"), 0.0)[0])
                    for menu in menus]


def test_its_plans_are_sound(solved):
    pricer, found = solved
    info = SearchInfo(lower_bound_s=None, gap=None, candidates=1, pruned=0, solves=1, cache_hits=0, solver="auto",
                      status="estimate")
    solutions = [solution for _, solution in found if solution is not None]
    assert solutions
    for solution in solutions:
        plan = plan_of(pricer, solution, search=info, timing=Timing(wall_s=0.0, solve_s=0.0))
        assert check.problems(plan) == []
        uses = Counter(device for stage in plan.stages for device in stage.devices)
        assert uses == Counter(range(pricer.cluster.num_devices))


def test_its_bounds_are_below_every_pipeline(solved):
    pricer, found = solved
    kinds = policies(pricer, None)
    for menu, solution in found:
        pins = Pins(num_micro_batches=menu.num_micro_batches, schedule=Schedule.ONE_F_ONE_B)
        known = [] if solution is None else [solution]
        for candidate in searched(pricer, pins):
            if candidate.num_stages > 1:
                known += filter(None, (solve(pricer, candidate, kind, zero) for kind in kinds for zero in ZERO_STAGES))
        if known:
            least = min(pipeline.objective for pipeline in known)
            assert unequal.rule_out(pricer, menu, kinds, ZERO_STAGES, Pins(), 1e9, 0.0) <= least * (1 + 1e-9)
            assert menu.bound <= least * (1 + 1e-9)


def test_unequal_submeshes_can_win():
    """Four layers and a head that is as large as they are, on four devices, a sequence at a time."""
    model, machines = gpt(layers=4, vocab_size=64_000), cluster("dgx1-v100-16gb:4")
    pricer = pricer_of(model, machines, 8)
    kinds = policies(pricer, None)
    menu = next(menu for menu in unequal.menus(pricer, Pins()) if menu.num_micro_batches == 8)
    solution, _ = unequal.solve_menu(pricer, menu, kinds, ZERO_STAGES, Pins(), float("inf"), 0.0)
    sizes = [stage.mesh.num_devices for stage in solution.stages]
    assert sum(sizes) == 4 and len(set(sizes)) > 1
    pins = Pins(num_micro_batches=8, schedule=Schedule.ONE_F_ONE_B)
    equal = [solve(pricer, candidate, kind, zero) for kind in kinds for zero in ZERO_STAGES
             for candidate in searched(pricer, pins)
             if candidate.num_stages > 1]
    assert solution.objective < min(one.objective for one in equal if one is not None)
    assert unequal.solve_menu(pricer, menu, kinds, ZERO_STAGES, Pins(), solution.objective * (1 - 1e-9), 0.0)[0] is None


def test_parts_of_nodes_never_straddle():
    machines = replace(cluster("dgx-h100:16"), gpus_per_node=6)
    shapes = {size: meshes(machines, size)[0] for size in (1, 2, 3, 6, 12)}
    assert unequal.packs(machines, [shapes[size] for size in (2, 3, 3, 2, 2)])
    assert unequal.packs(machines, [shapes[size] for size in (6, 3, 2, 1)])
    assert not unequal.packs(machines, [shapes[size] for size in (3, 2, 2, 2)])
