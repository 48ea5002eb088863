"""Why nothing fits, and a problem with nothing to choose."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from small_problems import problems

from autoplan.intraop.arrays import from_problem, to_problem
from autoplan.intraop.problem import Conflict, IntraOpProblem, UsageTerm
from autoplan.intraop.solve import solve
from autoplan.intraop.solve.conflict import holders


def held(problem, choice, at):
    return sum(t.usage[choice[t.node]] for t in problem.usages if t.start <= at < t.end)


@pytest.mark.parametrize("solver", ["auto", "large"])
@given(problem=problems(whole=True))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_choice_exceeds_the_limit_by_the_conflict_all_through_its_window(solver, problem):
    conflict = solve(problem, solver, time_limit=5, jobs=1).conflict
    choices = itertools.product(*(range(c.size) for c in problem.costs))
    costly = [c for c in choices if np.isfinite(problem.evaluate(c).cost)]
    if conflict is not None and conflict.start is None:
        assert not costly
    elif conflict is not None:
        assert conflict.excess > 0 and conflict.start < conflict.end
        least = [min((held(problem, c, at) for c in costly), default=np.inf)
                 for at in range(conflict.start, conflict.end)]
        assert all(one >= problem.limit + conflict.excess - 1e-3 for one in least)


@pytest.mark.parametrize("solver", ["auto", "highs", "frontier", "brute_force", "large"])
def test_each_solver_names_the_window_of_the_greatest_excess(solver):
    usages = (UsageTerm(0, 0, 9, np.array([5.0, 6.0])), UsageTerm(1, 2, 4, np.array([4.0])),
              UsageTerm(1, 6, 9, np.array([7.0])))
    problem = IntraOpProblem(("a", "b"), (np.zeros(2), np.zeros(1)), (), (), usages, 8.0)
    found = solve(problem, solver, time_limit=5, jobs=1)
    assert found.status == "infeasible" and found.conflict == Conflict(6, 9, pytest.approx(4.0))
    assert holders(from_problem(problem), found.conflict) == (1, 0)


def test_a_nodes_terms_count_under_the_same_strategy_and_forbidden_strategies_not_at_all():
    usages = (UsageTerm(0, 0, 2, np.array([5.0, 0.0, 0.0])), UsageTerm(0, 1, 3, np.array([0.0, 6.0, 0.0])))
    problem = IntraOpProblem(("a",), (np.array([0.0, 0.0, np.inf]),), (), (), usages, 4.0)
    assert solve(problem, "highs").conflict == Conflict(1, 2, 1.0)


@pytest.mark.parametrize("solver", ["auto", "large"])
def test_forbidden_costs_alone_have_no_window(solver):
    problem = IntraOpProblem(("a", "b"), (np.zeros(2), np.zeros(2)), ((0, 1),), (np.full((2, 2), np.inf),))
    assert solve(problem, solver, time_limit=5, jobs=1).conflict == Conflict(None, None, 0.0)


@pytest.mark.parametrize("solver", ["auto", "highs", "pulp:CBC", "elimination", "frontier", "large", "brute_force"])
def test_nothing_to_choose_costs_nothing(solver):
    empty = from_problem(IntraOpProblem((), (), (), (), (), 5.0))
    for problem in (empty, to_problem(empty)):
        found = solve(problem, solver, time_limit=5)
        assert (found.status, found.choice, found.cost, found.gap) == ("optimal", (), 0.0, 0.0)
