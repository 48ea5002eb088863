"""The exact reductions against brute force, on random instances with memory."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_problems import problems, tied_problems

from autoplan.intraop.arrays import from_problem
from autoplan.intraop.problem import Conflict, IntraOpProblem, UsageTerm
from autoplan.intraop.solve.brute_force import brute_force
from autoplan.intraop.solve.large import reduce
from autoplan.intraop.solve.large.core import Core
from autoplan.intraop.solve.large.reduce import reduce_problem

LAW = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def best_of_core(core: Core) -> tuple[float, np.ndarray | None]:
    """Try every choice of the core."""
    best, found = math.inf, None
    for choice in itertools.product(*(range(k) for k in np.diff(core.node_at))):
        chosen = np.array(choice, dtype=np.int64)
        cost = core.cost(chosen)
        if cost < best and (core.room(chosen) >= 0).all():
            best, found = cost, chosen
    return best, found


def check(problem: IntraOpProblem, deadline: float) -> None:
    wanted = brute_force(problem)
    reduced = reduce_problem(from_problem(problem), deadline)
    if isinstance(reduced, Conflict):
        assert wanted.choice is None
        return
    cost, choice = best_of_core(reduced.core)
    if wanted.choice is None:
        assert choice is None
        return
    assert cost == pytest.approx(wanted.cost, rel=1e-9)
    full = problem.evaluate(reduced.complete(choice).tolist())
    assert full.feasible and full.cost == pytest.approx(wanted.cost, rel=1e-9)


@LAW
@given(problem=problems())
def test_the_core_has_the_optimum_of_the_problem(problem):
    check(problem, math.inf)


@LAW
@given(problem=problems(whole=True))
def test_ties_do_not_matter(problem):
    check(problem, math.inf)


@LAW
@given(problem=tied_problems())
def test_nodes_that_decide_each_other_are_merged_with_their_memory(problem):
    check(problem, math.inf)


@LAW
@given(problem=tied_problems(), slices=st.integers(0, 6))
def test_reductions_may_stop_at_any_time(problem, slices):
    class Slices(reduce._Slices):
        def start(self) -> int:
            """Give a few slices of little work, and then none."""
            nonlocal slices
            slices -= 1
            if slices < 0:
                raise reduce._Paused
            return 100

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "_Slices", Slices)
        check(problem, math.inf)


@LAW
@given(problem=problems(usage=False))
def test_without_memory_a_sparse_graph_vanishes(problem):
    pairs = {frozenset(edge) for edge in problem.edges if edge[0] != edge[1]}
    reduced = reduce_problem(from_problem(problem), math.inf)
    if len(pairs) < len(problem.costs) and isinstance(reduced, Conflict) is False:
        assert reduced.core.num_nodes <= max(0, len(pairs) - 2)
    check(problem, math.inf)


def test_a_conflict_names_the_window_of_the_greatest_excess():
    usages = (UsageTerm(0, 0, 9, np.array([5.0, 6.0])), UsageTerm(1, 2, 4, np.array([4.0])),
              UsageTerm(1, 6, 9, np.array([7.0])))
    problem = IntraOpProblem(("a", "b"), (np.zeros(2), np.zeros(1)), (), (), usages, 8.0)
    found = reduce_problem(from_problem(problem), math.inf)
    assert isinstance(found, Conflict)
    assert (found.start, found.end, found.excess) == (6, 9, pytest.approx(4.0))
    assert not isinstance(reduce_problem(from_problem(replace(problem, limit=12.0)), math.inf), Conflict)


def test_forbidden_pairs_alone_are_a_conflict_without_a_window():
    problem = IntraOpProblem(("a", "b"), (np.zeros(2), np.zeros(2)), ((0, 1),), (np.full((2, 2), np.inf),))
    found = reduce_problem(from_problem(problem), math.inf)
    assert isinstance(found, Conflict) and found.start is None
