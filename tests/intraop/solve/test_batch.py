"""The batched minima are those of one elimination an objective."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.intraop.problem import IntraOpProblem
from autoplan.intraop.solve.batch import minima
from autoplan.intraop.solve.elimination import minimum


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 6), objectives=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_each_objective_has_the_minimum_of_its_own_problem(seed: int, nodes: int, objectives: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, nodes)
    costs = [rng.integers(0, 20, (size, objectives)).astype(float) for size in sizes]
    for cost in costs:
        cost[rng.random(cost.shape) < 0.1] = np.inf
    pairs = [(u, v) for u in range(nodes) for v in range(u + 1, nodes) if rng.random() < 0.5]
    pairs += [(v, u) for u, v in pairs[:1]]  # a parallel edge, written the other way round
    edge_costs = [rng.integers(0, 20, (sizes[u], sizes[v], objectives)).astype(float) for u, v in pairs]
    for cost in edge_costs:
        cost[rng.random(cost.shape) < 0.1] = np.inf
    found = minima(costs, pairs, edge_costs)
    for column in range(objectives):
        problem = IntraOpProblem(tuple(map(str, range(nodes))), tuple(cost[:, column] for cost in costs), tuple(pairs),
                                 tuple(cost[..., column] for cost in edge_costs))
        assert found[column] == minimum(problem).cost
