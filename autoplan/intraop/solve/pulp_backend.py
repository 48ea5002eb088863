"""The programme of `ilp` through PuLP, for the solver a user brings: CBC, HiGHS, Gurobi, CPLEX, SCIP, …"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from autoplan.errors import InputError
from autoplan.intraop.problem import IntraOpProblem, Solution, solution
from autoplan.intraop.solve.ilp import Ilp, build, cover_cuts

if TYPE_CHECKING:
    import pulp  # type: ignore[import-untyped]


def pulp_names() -> tuple[str, ...]:
    """Return the PuLP solvers that work on this machine, without PuLP's decoration (`CBC`, `HiGHS`, …)."""
    import pulp

    return tuple(dict.fromkeys(_short(name) for name in pulp.listSolvers(onlyAvailable=True)))


def _short(name: str) -> str:
    return name.removeprefix("PULP_").removesuffix("_CMD").removesuffix("_PY").removesuffix("_DLL")


def _solver(name: str, time_limit: float | None) -> Any:
    """Return a PuLP solver object. Raises InputError if PuLP doesn't know it or it isn't available here."""
    import pulp

    wanted = name.lower()
    for full in pulp.listSolvers():
        if wanted not in (full.lower(), _short(full).lower()):
            continue
        options: dict[str, Any] = {"msg": False} | ({} if time_limit is None else {"timeLimit": time_limit})
        try:
            found = pulp.getSolver(full, **options, gapRel=0.0)
        except TypeError:  # some of PuLP's interfaces have no gap; their default is kept
            found = pulp.getSolver(full, **options)
        if found.available():
            return found
    raise InputError("PuLP has no such solver here", key="solver", found=f"pulp:{name}",
                     allowed=", ".join(f"pulp:{n}" for n in pulp_names()))


def pulp_solve(problem: IntraOpProblem, name: str, time_limit: float | None = None) -> Solution:
    """Return the optimum by PuLP's solver `name`, one of `pulp.listSolvers()` or its short form (`CBC`).

    PuLP tells no bounds, so a result that isn't proven optimal has the bound −inf. Raises InputError if the solver
    isn't available.
    """
    with warnings.catch_warnings():  # PuLP 3.3 announces PuLP 4 at every variable; the project pins pulp<4
        warnings.simplefilter("ignore", DeprecationWarning)
        return _solve(problem, name, time_limit)


def _solve(problem: IntraOpProblem, name: str, time_limit: float | None) -> Solution:
    import pulp

    begin = time.perf_counter()
    label = f"pulp:{name}"
    solver = _solver(name, time_limit)
    ilp = build(problem)
    while True:
        programme, variables = _programme(ilp)
        if time_limit is not None:
            solver.timeLimit = max(0.01, time_limit - (time.perf_counter() - begin))
        try:
            programme.solve(solver)
        except pulp.PulpSolverError as error:
            raise InputError(f"the solver failed: {error}", key="solver", found=label) from None
        spent = time.perf_counter() - begin
        if programme.status == pulp.LpStatusInfeasible:
            return solution(problem, None, "infeasible", label, seconds=spent)
        if programme.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return solution(problem, None, "time_limit", label, seconds=spent)
        proven = programme.sol_status == pulp.LpSolutionOptimal
        choice = ilp.choice(np.array([v.varValue or 0.0 for v in variables]))
        if problem.evaluate(choice).feasible:
            return solution(problem, choice, "optimal" if proven else "feasible", label, seconds=spent)
        if not proven:
            return solution(problem, None, "time_limit", label, seconds=spent)
        ilp = cover_cuts(problem, ilp, choice)


def _programme(ilp: Ilp) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    import pulp

    programme = pulp.LpProblem("intraop", pulp.LpMinimize)
    variables = [pulp.LpVariable(f"z{i}", 0, float(up), pulp.LpInteger if i < ilp.binaries else pulp.LpContinuous)
                 for i, up in enumerate(ilp.upper)]
    programme += pulp.LpAffineExpression([(variables[i], float(ilp.cost[i])) for i in np.flatnonzero(ilp.cost)])
    matrix = ilp.equal_matrix()
    for row, rhs in enumerate(ilp.rhs.tolist()):
        a, b = matrix.indptr[row], matrix.indptr[row + 1]
        terms = [(variables[i], float(v)) for i, v in zip(matrix.indices[a:b], matrix.data[a:b], strict=True)]
        programme += pulp.LpAffineExpression(terms) == rhs
    for (columns, values), most in zip(ilp.below, ilp.below_rhs, strict=True):
        terms = [(variables[i], float(v)) for i, v in zip(columns, values, strict=True)]
        programme += pulp.LpAffineExpression(terms) <= most
    return programme, variables
