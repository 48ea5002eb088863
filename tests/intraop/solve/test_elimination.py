import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import problems

from autoplan.intraop.problem import IntraOpProblem
from autoplan.intraop.solve.elimination import minimum, tabulate
from autoplan.intraop.solve.graph import elimination_order, merge_edges

LAW = settings(max_examples=50, deadline=None, derandomize=True)


@LAW
@given(problem=problems(usage=False), data=st.data())
def test_a_table_holds_the_least_cost_of_every_kept_assignment_and_reads_it_back(problem, data):
    n = len(problem.costs)
    keep = tuple(data.draw(st.permutations(range(n)))[:data.draw(st.integers(0, min(n, 3)))])
    table = tabulate(problem, keep)
    expected = np.full([problem.costs[i].size for i in keep], np.inf)
    for choice in itertools.product(*(range(c.size) for c in problem.costs)):
        at = tuple(choice[i] for i in keep)
        expected[at] = min(expected[at], problem.evaluate(choice).cost)
    np.testing.assert_allclose(table.values, expected, rtol=1e-12)
    for at in np.ndindex(expected.shape):
        if math.isfinite(expected[at]):
            choice = table.choice(*at)
            assert tuple(choice[i] for i in keep) == at
            assert problem.evaluate(choice).cost == pytest.approx(expected[at], rel=1e-12)
        else:
            with pytest.raises(ValueError, match="no assignment"):
                table.choice(*at)


def test_a_repeated_kept_node_is_refused():
    with pytest.raises(ValueError, match="repeat"):
        tabulate(IntraOpProblem(("a",), (np.zeros(1),), (), ()), (0, 0))


def test_of_equal_costs_the_lowest_index_wins():
    problem = IntraOpProblem(("a", "b"), (np.zeros(3), np.zeros(2)), ((0, 1),), (np.zeros((3, 2)),))
    assert minimum(problem).choice == (0, 0)


def test_a_long_chain_is_solved_in_small_tables():
    rng = np.random.default_rng(0)
    n, k = 2000, 5
    edges = tuple((i, i + 1) for i in range(n - 1))
    problem = IntraOpProblem(tuple(map(str, range(n))), tuple(rng.random(k) for _ in range(n)), edges,
                             tuple(rng.random((k, k)) for _ in edges))
    best = problem.costs[0]
    for cost, pair in zip(problem.costs[1:], problem.edge_costs, strict=True):
        best = (best[:, None] + pair).min(axis=0) + cost
    assert minimum(problem).cost == pytest.approx(best.min(), rel=1e-12)


def test_the_order_takes_the_lightest_node_and_counts_its_tables():
    order, entries = elimination_order([7, 2, 3, 4], [(0, 1), (0, 2), (3, 0)])
    assert order == (1, 2, 0, 3) and entries == 1 + 14 + 21 + 28 + 4
    order, entries = elimination_order([7, 2, 3, 4], [(0, 1), (0, 2), (3, 0)], keep=(1,))
    assert order == (2, 3, 0) and entries == 2 + 21 + 28 + 14
    order, entries = elimination_order([9] * 30, itertools.combinations(range(30), 2), max_entries=1e6)
    assert entries > 1e6 and len(order) == 1


def test_merging_sums_parallel_edges_in_either_direction_and_takes_loops_apart():
    one, two = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2) * 10
    merged, loops = merge_edges([2, 3], [(0, 1), (1, 0), (0, 0)], [one, two, np.array([[1.0, 9.0], [9.0, 2.0]])])
    assert list(merged) == [(0, 1)] and np.array_equal(merged[0, 1], one + two.T)
    assert list(loops) == [0] and loops[0].tolist() == [1.0, 2.0]
