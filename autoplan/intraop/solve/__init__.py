"""Solvers of the intra-operator problem, one file an algorithm, and the choice between them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from autoplan.errors import InputError
from autoplan.intraop.arrays import ProblemArrays, from_problem, to_problem
from autoplan.intraop.problem import IntraOpProblem, Solution, solution
from autoplan.intraop.solve.brute_force import brute_force as try_every_choice
from autoplan.intraop.solve.conflict import conflict_of
from autoplan.intraop.solve.elimination import minimum
from autoplan.intraop.solve.frontier import Combine
from autoplan.intraop.solve.frontier import frontier as pareto_frontier
from autoplan.intraop.solve.graph import elimination_order
from autoplan.intraop.solve.highs import highs as solve_by_highs
from autoplan.intraop.solve.pulp_backend import pulp_solve

SOLVERS = ("auto", "highs", "pulp:NAME", "elimination", "frontier", "large", "brute_force")
LARGE_NODES = 256
_MAX_ENTRIES = 1 << 24  # table entries that elimination may build: 128 MiB of float64
_MAX_FRONTIER_ENTRIES, _MAX_FRONTIER_NODES, _MAX_FRONTIER_SETS = 1 << 18, 64, 2

__all__ = ["LARGE_NODES", "SOLVERS", "solve"]


def solve(problem: IntraOpProblem | ProblemArrays, solver: str = "auto", time_limit: float | None = None, *,
          seed: int = 0, jobs: int | None = None) -> Solution:
    """Return the cheapest choice within the usage limit.

    solver: `auto`; `highs`; `pulp:NAME` for any of PuLP's; `elimination` (only while the limit doesn't bind);
    `frontier` (few maximal live sets); `large` (reductions, then proof and search in worker processes); `brute_force`
    (tiny problems). time_limit: wall seconds, seen by `large` (60 if None) and the MILP solvers. seed, jobs: see there.

    `auto` gives problems of more than `LARGE_NODES` nodes to `large`. It eliminates where the tables are small: the
    optimum without the limit is the answer if it fits, and a bound otherwise. Where the limit binds, a narrow problem
    with few maximal live sets goes to `frontier`, others to HiGHS.
    Raises InputError if the solver is unknown, isn't available or can't solve this problem.
    """
    nodes = problem.num_nodes if isinstance(problem, ProblemArrays) else len(problem.costs)
    if solver == "large" or (solver == "auto" and nodes > LARGE_NODES):
        from autoplan.intraop.solve.large.drive import solve_arrays

        arrays = problem if isinstance(problem, ProblemArrays) else from_problem(problem)
        return solve_arrays(arrays, time_limit, seed, jobs)
    small = to_problem(problem) if isinstance(problem, ProblemArrays) else problem
    if not nodes and (solver in SOLVERS or solver.startswith("pulp:")):
        solver = "elimination"  # nothing to choose: the others have no model of that
    found = _small(small, solver, time_limit)
    if found.status != "infeasible":
        return found
    arrays = problem if isinstance(problem, ProblemArrays) else from_problem(problem)
    return replace(found, conflict=conflict_of(arrays, forbidden=found.solver == "elimination"))


def _small(problem: IntraOpProblem, solver: str, time_limit: float | None) -> Solution:
    """Solve a problem that needs no reductions, as `solve` does."""
    if solver == "auto":
        return _auto(problem, time_limit)
    if solver == "highs":
        return solve_by_highs(problem, time_limit)
    if solver.startswith("pulp:"):
        return pulp_solve(problem, solver.removeprefix("pulp:"), time_limit)
    if solver == "elimination":
        found = minimum(problem)
        if found.choice is not None and not problem.evaluate(found.choice).feasible:
            raise InputError("elimination can't solve a problem whose memory limit binds", key="solver", found=solver,
                             allowed="auto, highs, pulp:NAME, frontier")
        return found
    if solver == "frontier":
        return _by_frontier(problem)
    if solver == "brute_force":
        try:
            return try_every_choice(problem)
        except ValueError as error:
            raise InputError(str(error), key="solver", found=solver, allowed="auto, highs, pulp:NAME") from None
    raise InputError("unknown solver", key="solver", found=solver, allowed=", ".join(SOLVERS))


def _auto(problem: IntraOpProblem, time_limit: float | None) -> Solution:
    sizes = [int(np.isfinite(c).sum()) for c in problem.costs]
    _, entries = elimination_order(sizes, problem.edges, max_entries=_MAX_ENTRIES)
    if entries > _MAX_ENTRIES:
        return solve_by_highs(problem, time_limit)
    relaxed = minimum(problem)
    if relaxed.choice is None or problem.evaluate(relaxed.choice).feasible:
        return relaxed
    small = entries <= _MAX_FRONTIER_ENTRIES and len(sizes) <= _MAX_FRONTIER_NODES
    if small and len(problem.live_sets()) <= _MAX_FRONTIER_SETS:
        return _by_frontier(problem)
    left = None if time_limit is None else max(0.0, time_limit - relaxed.seconds)
    found = solve_by_highs(problem, left)
    if found.status in ("optimal", "infeasible"):
        return replace(found, seconds=found.seconds + relaxed.seconds)
    return solution(problem, found.choice, found.status, found.solver,
                    lower_bound=max(found.lower_bound, relaxed.cost), seconds=found.seconds + relaxed.seconds)


def _by_frontier(problem: IntraOpProblem) -> Solution:
    """Trade cost against the memory of every maximal live set, and take the cheapest trade that fits."""
    begin = time.perf_counter()
    live_sets = problem.live_sets()
    criteria = [np.zeros((c.size, 1 + len(live_sets))) for c in problem.costs]
    for node, cost in enumerate(problem.costs):
        criteria[node][:, 0] = cost
    for column, (_, live) in enumerate(live_sets, start=1):
        for index in live:
            term = problem.usages[index]
            criteria[term.node][:, column] += term.usage
    how: list[Combine] = ["sum"] * (1 + len(live_sets))
    found = pareto_frontier(criteria, problem.edges, problem.edge_costs, (), how)
    for row in np.argsort(found.values[:, 0], kind="stable"):
        if problem.evaluate(choice := found.choice[row].tolist()).feasible:
            return solution(problem, choice, "optimal", "frontier", seconds=time.perf_counter() - begin)
    return solution(problem, None, "infeasible", "frontier", seconds=time.perf_counter() - begin)
