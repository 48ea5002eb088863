"""The search against exhaustive enumeration: of configurations, of cuts; and its bounds against what they bound."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import NAMED_ONLY, again, cluster, fits, gpt, least_memory, llama, pricer_of, searched, with_memory

import autoplan
from autoplan.cluster.mesh import divisors
from autoplan.errors import InputError
from autoplan.search import free, probe
from autoplan.search.bounds import UniformStages, objective
from autoplan.search.drive import Limits, search
from autoplan.search.solve import assemble, neighbour, solve
from autoplan.search.space import Pins
from autoplan.workload import Recompute, Schedule

GIB = 2**30


def named_configurations(machines, batch):
    """Yield all that `estimate` accepts on a few devices."""
    total = machines.num_devices
    for tp, pp in itertools.product(divisors(total), repeat=2):
        if total % (tp * pp):
            continue
        dp = total // tp // pp
        sizes = [size for size in divisors(batch) if batch % (dp * size) == 0]
        for size, zero, recompute, sp in itertools.product(sizes, range(4), Recompute, (False, True)):
            if (dp == 1 and zero) or (tp == 1 and sp):
                continue
            yield {"tp": tp, "pp": pp, "dp": dp, "micro_batch_size": size, "zero": zero, "recompute": recompute.value,
                   "sequence_parallel": sp}


ENUMERATED = {
    "a100": (gpt(layers=4), cluster("dgx-a100-40gb:4"), 8),
    "v100 without fused attention": (gpt(layers=4, tied_embeddings=True), cluster("dgx1-v100-16gb:4"), 8),
    "short of memory": (llama(layers=4), with_memory(cluster("dgx-h100:4"), 3.4 * GIB), 8),
    "two nodes": (llama(layers=4, kv_heads=2), replace(cluster("dgx-h100:16"), gpus_per_node=2), 8),
}


@pytest.mark.parametrize("case", ENUMERATED)
def test_no_named_configuration_is_faster_than_the_plan(case):
    model, machines, batch = ENUMERATED[case]
    plan = autoplan.plan(model, machines, global_batch_size=batch, gap=NAMED_ONLY)
    fastest, over = None, 0
    for how in named_configurations(machines, batch):
        try:
            found = autoplan.estimate(model, machines, global_batch_size=batch, **how)
        except InputError:
            assert model.layer(1).op("attention").static_sizes["heads"] % how["tp"] or how["pp"] > 4
            continue
        if not fits(found):
            over += 1
        elif fastest is None or found.predicted.iteration_time_s < fastest.predicted.iteration_time_s:
            fastest = found
    assert fastest is not None
    assert plan.predicted.iteration_time_s <= fastest.predicted.iteration_time_s * (1 + 1e-12)
    assert (over > 0) == (case == "short of memory")
    if plan.parallelism.schedule is Schedule.ONE_F_ONE_B:
        assert plan.predicted.iteration_time_s == pytest.approx(fastest.predicted.iteration_time_s, rel=1e-12)


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_leaving_named_recipes_only_ever_gains(gap):
    model, machines = gpt(layers=2), cluster("l40s-8x:2")
    machines = with_memory(machines, least_memory(model, machines, 4) + 0.1 * GIB)
    named = autoplan.plan(model, machines, global_batch_size=4, gap=NAMED_ONLY)
    plan = autoplan.plan(model, machines, global_batch_size=4, gap=gap)
    assert plan.predicted.iteration_time_s <= named.predicted.iteration_time_s
    assert plan.search.gap <= gap + 1e-9
    assert plan.search.lower_bound_s <= named.predicted.iteration_time_s
    assert autoplan.plan(model, machines, global_batch_size=4, gap=gap).predicted == plan.predicted
    if plan.parallelism.recipe is not None:
        assert again(plan, model, machines).predicted.iteration_time_s == pytest.approx(
            plan.predicted.iteration_time_s, rel=1e-9)


SMALL = [pricer_of(model, machines, 8) for model, machines in (
    (llama(layers=6), cluster("dgx-h100:4")),
    (llama(layers=5), with_memory(cluster("dgx-h100:4"), 3.8 * GIB)),
    (gpt(layers=6, tied_embeddings=True, vocab_size=100_000), with_memory(cluster("dgx1-v100-16gb:4"), 5.2 * GIB)),
    (gpt(layers=4), cluster("g5.48xlarge:8")),
)]
UNIFORM = [(pricer, candidate) for pricer in SMALL for candidate in searched(pricer)]
FREE = [(pricer, candidate) for pricer in SMALL[:3] for candidate in searched(pricer, named=False)
        if candidate.mesh.num_devices < 4]


def best_cut(pricer, candidate, recompute, zero):
    """Return the least objective over all cuts that fit, and whether some didn't."""
    table = pricer.stage_table(candidate, recompute, zero, neighbour(pricer.cluster, candidate.mesh.num_devices))
    if table is None:
        return None, False
    n, best, over = pricer.chain.length, None, False
    for inner in itertools.combinations(range(1, n), candidate.num_stages - 1):
        edges = (0, *inner, n)
        solution = assemble(pricer, candidate, table, zero, [((a, b - 1),) for a, b in itertools.pairwise(edges)])
        over |= not solution.fits
        if solution.fits and (best is None or solution.objective < best):
            best = solution.objective
    return best, over


def test_cut_is_the_best_of_all_cuts():
    fitted = unfit = 0
    for pricer, candidate in UNIFORM:
        if candidate.schedule is Schedule.INTERLEAVED:
            continue
        for recompute, zero in ((Recompute.NONE, 0), (Recompute.FULL, 1)):
            expected, over = best_cut(pricer, candidate, recompute, zero)
            found = solve(pricer, candidate, recompute, zero)
            assert (found is None) == (expected is None)
            if found is not None:
                assert found.objective == pytest.approx(expected, rel=1e-12) and found.fits
                fitted += over
            unfit += expected is None
    assert fitted > 10 and unfit > 10  # memory mattered


def test_every_candidate_is_another_way_to_run():
    """A dense model has no experts to spread, so no mesh has an axis for them."""
    for pricer in SMALL:
        found = searched(pricer)
        assert len(set(found)) == len(found)
        assert {axis for one in found for axis in one.mesh.names} == {"data", "model"}


def test_solve_respects_its_upper_bound():
    pricer, candidate = next((pricer, one) for pricer, one in UNIFORM if one.num_stages == 2)
    found = solve(pricer, candidate, Recompute.NONE, 0)
    assert solve(pricer, candidate, Recompute.NONE, 0, upper_bound=found.objective) is None
    assert solve(pricer, candidate, Recompute.NONE, 0, upper_bound=found.objective * 1.001) == found


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_bounds_of_recipes_bound(data):
    pricer, candidate = data.draw(st.sampled_from(UNIFORM))
    recompute, zero = data.draw(st.sampled_from(Recompute)), data.draw(st.sampled_from(range(4)))
    bounded = probe.bounds(pricer, candidate, [recompute], [zero])
    found = solve(pricer, candidate, recompute, zero)
    if found is not None:
        assert len(bounded) == 1 and bounded[0].bound <= found.objective * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_bounds_of_free_shardings_bound(data):
    pricer, candidate = data.draw(st.sampled_from(FREE))
    recompute, zero = data.draw(st.sampled_from((Recompute.NONE, Recompute.FULL))), data.draw(st.sampled_from(range(4)))
    found = solve(pricer, candidate, recompute, zero)
    if found is None:
        return
    assert free.arithmetic_bound(pricer, candidate) <= found.objective
    for wanted in (float("inf"), found.objective * 1.01):
        variants, _ = free.bounds(pricer, candidate, [recompute], [zero], wanted)
        assert len(variants) == 1 and variants[0].bound <= found.objective * (1 + 1e-9)
    variants, floor = free.bounds(pricer, candidate, [recompute], [zero], found.objective * 0.5)
    assert min([floor, *(one.bound for one in variants)]) <= found.objective * (1 + 1e-9)


def test_free_shardings_are_no_slower_than_recipes():
    """Up to rounding on one stage. Of several each has its least m · t + step, which is near its part of the whole."""
    pair = pricer_of(llama(layers=3), cluster("dgx-h100:2"), 8)
    alone = [(pair, candidate) for candidate in searched(pair, named=False) if candidate.num_stages == 1]
    for pricer, candidate in (*FREE, *alone):
        slack = 1e-4 if candidate.num_stages == 1 else 0.03
        if candidate.micro_batch_size > 1:
            continue
        found = solve(pricer, candidate, Recompute.NONE, 1)
        for roles in (("data", "tensor"), ("data", "tensor_sequence")):
            named = solve(pricer, replace(candidate, roles=roles), Recompute.NONE, 1)
            if named is not None:
                assert found is not None and found.objective <= named.objective * (1 + slack)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 7), p=st.integers(1, 4), m=st.integers(1, 9), data=st.data())
def test_uniform_objective_is_the_least_over_all_cuts(count, p, m, data):
    """Where stages may hold any number of layers up to a limit, the bound is exact."""
    p = min(p, count)
    times = [data.draw(st.integers(1, 9)) for _ in range(5)]
    most = [data.draw(st.integers(-1, count)) for _ in range(p)]
    first, layer, last, middle, step = (np.array([float(value)]) for value in times)
    got = objective(UniformStages(count, p, first, layer, last, middle, np.array([most]), step), m)[0]
    fixed = [times[3]] * p
    fixed[0], fixed[-1] = times[0], times[2]
    if p == 1:
        fixed = [times[0] + times[2]]
    values = []
    for cut in itertools.product(range(count + 1), repeat=p):
        inside = all(layers >= 1 for layers in cut[1:-1])
        if sum(cut) == count and inside and all(a <= b for a, b in zip(cut, most, strict=True)):
            seconds = [each + layers * times[1] for each, layers in zip(fixed, cut, strict=True)]
            values.append(sum(seconds) + (m - 1) * max(seconds) + times[4])
    assert got == pytest.approx(min(values, default=np.inf), rel=1e-9)


def test_search_counts_and_proves():
    pricer = SMALL[1]
    outcome = search(pricer, Pins(), Limits(top=3, gap=NAMED_ONLY))
    mine = [candidate for one, candidate in UNIFORM if one is pricer]
    every = [solve(pricer, candidate, recompute, zero) for candidate in mine
             for recompute in (Recompute.NONE, Recompute.FULL)
             for zero in range(4 if candidate.mesh.shape[0] > 1 else 1)]
    times = sorted(one.objective for one in every if one is not None)
    assert [found.objective for found in outcome.found] == pytest.approx(times[:3], rel=1e-12)
    assert outcome.lower_bound <= times[0]
