"""The parts of the large solver against brute force, and the whole on instances that no other solver needs."""

import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from small_problems import problems, tied_problems

from autoplan.intraop.arrays import ProblemArrays, from_problem, to_problem
from autoplan.intraop.problem import IntraOpProblem, UsageTerm
from autoplan.intraop.solve import solve
from autoplan.intraop.solve.brute_force import brute_force
from autoplan.intraop.solve.large.core import as_core
from autoplan.intraop.solve.large.exact import prove
from autoplan.intraop.solve.large.milp import solve_core
from autoplan.intraop.solve.large.model import build_model, cost_of, room_of
from autoplan.intraop.solve.large.prune import prune
from autoplan.intraop.solve.large.reduce import Reduced, reduce_problem
from autoplan.intraop.solve.large.relax import relax
from autoplan.intraop.solve.large.search import search

LAW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def chain_of_squares(n: int, seed: int = 0, limit: float = 0.62,
                     links: tuple[int, ...] = (1, 2, 5)) -> ProblemArrays:
    """A ladder of nodes with 4 strategies, cheap ones holding much, under a limit between least and greatest peak."""
    rng = np.random.default_rng(seed)
    costs = tuple(np.sort(rng.integers(1, 1000, 4)).astype(float) for _ in range(n))
    usages = tuple(UsageTerm(i, i, i + 9, np.sort(rng.integers(1, 100, 4))[::-1].astype(float)) for i in range(n))
    pairs = [(i, i + d) for i in range(n) for d in links if i + d < n]
    matrices = tuple(np.where(rng.random((4, 4)) < 0.1, np.inf, rng.integers(0, 500, (4, 4))) for _ in pairs)
    return from_problem(IntraOpProblem(tuple(map(str, range(n))), costs, tuple(pairs), matrices, usages, limit * 900.0))


def cores(problem: IntraOpProblem) -> Reduced | None:
    reduced = reduce_problem(from_problem(problem), math.inf)
    return reduced if isinstance(reduced, Reduced) and reduced.core.num_nodes else None


@LAW
@given(problem=problems(whole=True))
def test_arrays_price_as_the_problem_does_and_convert_back(problem):
    arrays = from_problem(problem)
    rng = np.random.default_rng(0)
    for _ in range(5):
        choice = [int(rng.integers(c.size)) for c in problem.costs]
        assert arrays.evaluate(choice) == problem.evaluate(choice) == to_problem(arrays).evaluate(choice)


@LAW
@given(problem=tied_problems())
def test_the_milp_of_a_core_finds_its_optimum(problem):
    core, _ = as_core(from_problem(problem))
    reduced = cores(problem)
    wanted = brute_force(problem)
    if reduced is None:
        return
    found = solve_core(reduced.core, time.monotonic() + 60)
    if wanted.choice is None:
        assert found.choice is None and found.bound == math.inf
        return
    assert found.bound == pytest.approx(wanted.cost)
    assert problem.evaluate(reduced.complete(found.choice).tolist()).cost == pytest.approx(wanted.cost)
    assert core.cost(reduced.complete(found.choice)) == pytest.approx(wanted.cost)


@LAW
@given(problem=tied_problems())
def test_the_relaxation_is_a_bound_and_pruning_keeps_every_optimum(problem):
    reduced, wanted = cores(problem), brute_force(problem)
    if reduced is None or wanted.choice is None:
        return
    model = build_model(reduced.core)
    relaxed = relax(model, 60, math.inf)
    assert relaxed.bound + reduced.core.constant <= wanted.cost + 1e-6
    pruned = prune(reduced.core, model, relaxed.price, wanted.cost)
    found = solve_core(pruned, time.monotonic() + 60)
    assert found.bound == pytest.approx(wanted.cost)


@LAW
@given(problem=tied_problems())
def test_proof_ends_with_the_optimum_or_with_none(problem):
    reduced, wanted = cores(problem), brute_force(problem)
    if reduced is None:
        return
    told = {"cost": math.inf, "bound": -math.inf}

    def found(choice, cost):
        full = problem.evaluate(reduced.complete(choice).tolist())
        assert full.feasible and full.cost == pytest.approx(cost)
        told["cost"] = cost

    def bound(seconds):
        told["bound"] = max(told["bound"], seconds)

    prove(reduced.core, 0, time.monotonic() + 60, found, bound)
    assert told["cost"] == pytest.approx(wanted.cost) and told["bound"] == pytest.approx(wanted.cost)


def test_the_search_finds_choices_that_fit_and_ever_cheaper():
    reduced = reduce_problem(chain_of_squares(16, links=(1, 2)), math.inf)
    costs, bounds = [], []

    def found(choice, cost):
        assert (reduced.core.room(choice) >= 0).all() and reduced.core.cost(choice) == pytest.approx(cost)
        costs.append(cost)

    search(reduced.core, 1, time.monotonic() + 2.0, found, bounds.append)
    assert costs == sorted(costs, reverse=True) and max(bounds) <= costs[-1]
    best = solve_core(reduced.core, time.monotonic() + 60)
    assert best.bound - 1e-6 <= costs[-1] <= 1.2 * best.bound


def test_the_model_prices_as_the_core_does():
    core = reduce_problem(chain_of_squares(60), math.inf).core
    model = build_model(core)
    rng = np.random.default_rng(3)
    choice = np.array([rng.integers(k) for k in np.diff(core.node_at)])
    assert cost_of(model, choice) + core.constant == pytest.approx(core.cost(choice))
    assert room_of(model, choice).tolist() == pytest.approx(core.room(choice).tolist())


def test_auto_gives_a_long_ladder_to_the_large_solver_with_a_bound():
    arrays = chain_of_squares(300, links=(1,))
    found = solve(arrays, time_limit=8, jobs=2)
    assert found.solver == "large" and arrays.evaluate(found.choice).feasible
    assert 0.0 <= found.gap < 0.2 and found.lower_bound <= found.cost


def test_a_time_limit_is_kept_and_the_best_so_far_returned():
    begin = time.monotonic()
    found = solve(chain_of_squares(2000), "large", time_limit=6.0, jobs=1)
    assert time.monotonic() - begin < 7.5
    assert found.status in ("feasible", "optimal", "time_limit") and found.lower_bound <= found.cost


def test_a_limit_below_the_least_memory_names_a_window():
    found = solve(chain_of_squares(300, limit=0.001), time_limit=20, jobs=1)
    assert (found.status, found.choice, found.lower_bound) == ("infeasible", None, math.inf)
    assert found.conflict.excess > 0 and found.conflict.start < found.conflict.end


def test_without_numba_the_same_core_comes_out():
    code = """
import sys
sys.modules["numba"] = None
sys.path.insert(0, sys.argv[1])
from test_large import chain_of_squares
from autoplan.intraop.solve.large import jit
from autoplan.intraop.solve.large.reduce import reduce_problem
core = reduce_problem(chain_of_squares(40), float("inf")).core
print(jit.HAVE_NUMBA, core.num_nodes, core.node_cost.sum(), core.edge_cost.size, core.slack.size)
from autoplan.intraop.solve.large.search import search
import time
found = []
search(core, 0, time.monotonic() + 2, lambda choice, cost: found.append((core.room(choice) >= 0).all()), found.append)
print(all(found) and len(found) > 1)
"""
    folder = __file__.rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=120,
                          env={"PYTHONPATH": f"{folder}/.."}, check=True)
    core = reduce_problem(chain_of_squares(40), math.inf).core
    assert done.stdout.splitlines() == [
        f"False {core.num_nodes} {core.node_cost.sum()} {core.edge_cost.size} {core.slack.size}", "True"]
