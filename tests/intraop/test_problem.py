import math

import numpy as np
import pytest

from autoplan.intraop.problem import IntraOpProblem, UsageTerm, solution

INF = math.inf


def example(limit: float = INF) -> IntraOpProblem:
    return IntraOpProblem(
        ("a", "b"), (np.array([1.0, INF]), np.array([2.0, 3.0])), ((0, 1), (1, 0), (1, 1)),
        (np.array([[10.0, 20.0], [0.0, 0.0]]), np.array([[5.0, 0.0], [7.0, 0.0]]), np.array([[0.5, 9.0], [9.0, 0.25]])),
        (UsageTerm(0, 0, 4, np.array([3.0, 0.0])), UsageTerm(1, 2, 6, np.array([4.0, 5.0])),
         UsageTerm(1, 5, 6, np.array([2.0, 5.0])), UsageTerm(1, 3, 3, np.array([99.0, 99.0]))), limit)


def test_cost_adds_nodes_parallel_edges_and_the_diagonal_of_loops():
    assert example().evaluate((0, 0)).cost == 1 + 2 + 10 + 5 + 0.5
    assert example().evaluate((0, 1)).cost == 1 + 3 + 20 + 7 + 0.25


def test_evaluate_names_the_violated_windows_and_their_excess():
    found = example(limit=6.0).evaluate((0, 1))
    assert (found.peak, found.peak_time) == (10.0, 5)
    assert found.violated == ((2, 4, 2.0), (5, 6, 4.0))
    assert not found.feasible and math.isfinite(found.cost)


def test_adjacent_violated_times_are_one_window_with_the_greatest_excess():
    assert example(limit=4.5).evaluate((0, 1)).violated == ((2, 6, 5.5),)


def test_usage_equal_to_the_limit_is_feasible():
    assert example(limit=10.0).evaluate((0, 1)).feasible
    assert not example(limit=9.0).evaluate((0, 1)).feasible


def test_a_whole_byte_over_a_great_limit_is_a_violation():
    usage = (UsageTerm(0, 0, 1, np.array([2.0**45 + 1])),)
    problem = IntraOpProblem(("a",), (np.zeros(1),), (), (), usage, 2.0**45)
    assert problem.evaluate((0,)).violated == ((0, 1, 1.0),)


def test_a_forbidden_strategy_is_infeasible():
    found = example().evaluate((1, 0))
    assert found.cost == INF and not found.feasible and found.violated == ()


def test_without_usage_there_is_no_peak():
    problem = IntraOpProblem(("a",), (np.zeros(2),), (), (), (), 0.0)
    found = problem.evaluate((1,))
    assert (found.peak, found.peak_time, found.feasible) == (0.0, None, True)


def test_live_sets_are_the_maximal_ones():
    assert example().live_sets() == ((2, (0, 1)), (5, (1, 2)))


@pytest.mark.parametrize("choice", [(0,), (0, 2), (-1, 0), (0, 0, 0)])
def test_a_choice_that_does_not_fit_is_refused(choice):
    with pytest.raises(ValueError):
        example().evaluate(choice)


@pytest.mark.parametrize("change", [
    {"costs": (np.array([np.nan]),)}, {"costs": (np.array([-INF]),)}, {"costs": (np.zeros(0),)}, {"names": ()},
    {"edges": ((0, 1),), "edge_costs": (np.zeros((1, 1)),)}, {"edges": ((0, 0),), "edge_costs": (np.zeros((1, 2)),)},
    {"edges": ((0, 0),)}, {"edges": ((0, 0),), "edge_costs": (np.full((1, 1), np.nan),)},
    {"usages": (UsageTerm(0, 0, 1, np.zeros(2)),)}, {"usages": (UsageTerm(0, 0, 1, np.array([-1.0])),)},
    {"usages": (UsageTerm(3, 0, 1, np.zeros(1)),)}, {"limit": math.nan}, {"limit": -1.0},
])
def test_arrays_that_do_not_agree_are_refused(change):
    good = {"names": ("a",), "costs": (np.zeros(1),), "edges": (), "edge_costs": ()}
    IntraOpProblem(**good)
    with pytest.raises(ValueError):
        IntraOpProblem(**good | change)


def test_solutions_compare_without_their_wall_time():
    problem = example()
    one = solution(problem, (0, 0), "feasible", "x", lower_bound=9.25, seconds=1.0)
    assert one == solution(problem, (0, 0), "feasible", "x", lower_bound=9.25, seconds=2.0)
    assert (one.cost, one.gap) == (18.5, 0.5)
    assert solution(problem, None, "infeasible", "x").lower_bound == INF
