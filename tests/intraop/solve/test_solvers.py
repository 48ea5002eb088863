"""Every solver against every other, on cost; what they say when nothing fits or can be used."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from small_problems import problems

from autoplan.errors import InputError
from autoplan.intraop.problem import IntraOpProblem, UsageTerm
from autoplan.intraop.solve import solve

LAW = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def agree(problem, reference, found, status="optimal"):
    if reference.choice is None:
        assert (found.choice, found.cost, found.status) == (None, math.inf, "infeasible")
        return
    assert found.status == status and problem.evaluate(found.choice).feasible
    assert found.cost == pytest.approx(reference.cost, rel=1e-8) and found.lower_bound == found.cost
    assert found.gap == 0.0


@LAW
@given(problem=problems())
@pytest.mark.parametrize("solver", ["auto", "highs", "pulp:CBC", "frontier"])
def test_every_solver_finds_the_cost_of_brute_force(solver, problem):
    agree(problem, solve(problem, "brute_force"), solve(problem, solver))


@LAW
@given(problem=problems(usage=False))
def test_elimination_finds_the_cost_of_brute_force_without_a_limit(problem):
    agree(problem, solve(problem, "brute_force"), solve(problem, "elimination"))


@LAW
@given(problem=problems(whole=True))
def test_brute_force_is_no_better_than_any_choice(problem):
    best = solve(problem, "brute_force")
    rng = np.random.default_rng(0)
    for _ in range(50):
        choice = [int(rng.integers(c.size)) for c in problem.costs]
        found = problem.evaluate(choice)
        assert not found.feasible or found.cost >= best.cost


def tight(limit: float) -> IntraOpProblem:
    """Two nodes whose cheap strategies hold 4 + 3 bytes together."""
    return IntraOpProblem(
        ("a", "b"), (np.array([1.0, 5.0]), np.array([1.0, 2.0])), ((0, 1),), (np.zeros((2, 2)),),
        (UsageTerm(0, 0, 3, np.array([4.0, 1.0])), UsageTerm(1, 2, 5, np.array([3.0, 2.0]))), limit)


@pytest.mark.parametrize("solver", ["auto", "highs", "pulp:CBC", "frontier", "brute_force"])
@pytest.mark.parametrize(("limit", "choice"), [(7.0, (0, 0)), (6.0, (0, 1)), (5.0, (1, 0)), (3.0, (1, 1)), (2.0, None)])
def test_the_limit_is_met_and_equality_allowed(solver, limit, choice):
    found = solve(tight(limit), solver)
    assert found.choice == choice
    assert found.status == ("infeasible" if choice is None else "optimal")


@pytest.mark.parametrize("solver", ["highs", "pulp:CBC", "frontier"])
def test_one_byte_over_eighty_gigabytes_is_not_taken_for_rounding(solver):
    limit = 80e9
    half = np.array([limit / 2 + 1, limit / 2])
    problem = IntraOpProblem(
        ("a", "b"), (np.array([0.0, 1.0]), np.array([0.0, 1.5])), (), (),
        (UsageTerm(0, 0, 1, half), UsageTerm(1, 0, 1, half)), limit)
    assert solve(problem, solver).choice == (1, 1)
    assert solve(dataclasses.replace(problem, limit=limit + 1), solver).choice == (1, 0)


@pytest.mark.parametrize("solver", ["auto", "highs", "pulp:CBC", "frontier", "elimination", "brute_force"])
def test_a_forbidden_edge_is_infeasible(solver):
    problem = IntraOpProblem(("a", "b"), (np.zeros(2), np.zeros(2)), ((0, 1),), (np.full((2, 2), np.inf),))
    found = solve(problem, solver)
    assert (found.status, found.choice, found.lower_bound) == ("infeasible", None, math.inf)


def test_elimination_refuses_a_limit_that_binds():
    with pytest.raises(InputError, match="binds"):
        solve(tight(5.0), "elimination")
    assert solve(tight(7.0), "elimination").choice == (0, 0)


@pytest.mark.parametrize(("solver", "word"), [
    ("simplex", "pulp:NAME"), ("pulp:nothing", "pulp:CBC"), ("pulp:", "pulp:CBC"), ("PULP:CBC", "highs")])
def test_an_unknown_solver_is_one_error_that_lists_what_there_is(solver, word):
    with pytest.raises(InputError, match=word):
        solve(tight(7.0), solver)


def test_brute_force_refuses_what_it_can_not_enumerate():
    many = IntraOpProblem(tuple("abcdefghijkl"), (np.zeros(4),) * 12, (), ())
    with pytest.raises(InputError, match="too many"):
        solve(many, "brute_force")


def wide(n: int, strategies: int) -> IntraOpProblem:
    """A complete graph with random costs and a binding limit: no narrow order exists."""
    rng = np.random.default_rng(1)
    edges = tuple((i, j) for i in range(n) for j in range(i))
    return IntraOpProblem(
        tuple(f"n{i}" for i in range(n)), tuple(rng.random(strategies) for _ in range(n)), edges,
        tuple(rng.random((strategies, strategies)) for _ in edges),
        tuple(UsageTerm(i, i, n, rng.integers(1, 9, strategies) * 1.0) for i in range(n)), 3.0 * n)


def test_auto_gives_a_wide_graph_to_the_milp():
    found = solve(wide(9, 8), "auto", time_limit=60)
    assert found.solver == "highs" and found.status == "optimal"


def test_a_time_limit_returns_what_is_known():
    found = solve(wide(40, 12), "highs", time_limit=0.3)
    assert found.status in ("time_limit", "feasible")
    assert found.seconds < 5
    assert found.lower_bound <= found.cost and found.gap > 0
