"""The programme of `ilp` through scipy's HiGHS."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

from autoplan.intraop.problem import IntraOpProblem, Solution, solution
from autoplan.intraop.solve.ilp import build, cover_cuts


def highs(problem: IntraOpProblem, time_limit: float | None = None) -> Solution:
    """Return the optimum by `scipy.optimize.milp`; with a `time_limit` in seconds, the best found by then."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    begin = time.perf_counter()
    ilp = build(problem)
    integrality: npt.NDArray[np.int8] = np.zeros(ilp.cost.size, dtype=np.int8)
    integrality[:ilp.binaries] = 1
    equal = LinearConstraint(ilp.equal_matrix(), ilp.rhs, ilp.rhs)
    bound, presolve = -math.inf, True
    while True:
        rows = [equal]
        if ilp.below:
            rows.append(LinearConstraint(ilp.below_matrix(), -np.inf, np.array(ilp.below_rhs)))
        left = math.inf if time_limit is None else max(0.01, time_limit - (time.perf_counter() - begin))
        result = milp(ilp.cost, integrality=integrality, bounds=Bounds(0.0, ilp.upper), constraints=rows,
                      options={"mip_rel_gap": 0.0, "presolve": presolve, "time_limit": left})
        proven = result.status == 0
        spent = time.perf_counter() - begin
        if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
            bound = max(bound, ilp.scale * float(result.mip_dual_bound) + ilp.offset)
        if result.status == 2:
            return solution(problem, None, "infeasible", "highs", seconds=spent)
        if result.x is None and result.status != 1 and presolve:
            presolve = False  # presolve may only tell "infeasible or unbounded", and nothing here is unbounded
            continue
        if result.x is None:
            return solution(problem, None, "time_limit", "highs", lower_bound=bound, seconds=spent)
        choice = ilp.choice(result.x)
        if problem.evaluate(choice).feasible:
            return solution(problem, choice, "optimal" if proven else "feasible", "highs", lower_bound=bound,
                            seconds=spent)
        if not proven:
            return solution(problem, None, "time_limit", "highs", lower_bound=bound, seconds=spent)
        ilp = cover_cuts(problem, ilp, choice)
