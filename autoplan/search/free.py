"""Bounds of candidates whose shardings are left to the ILP: what no choice of strategies can beat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoplan.cost.model import CostModel
from autoplan.intraop.layer_problem import LayerProblem, ParamNode
from autoplan.intraop.problem import IntraOpProblem
from autoplan.intraop.solve.elimination import minimum
from autoplan.intraop.terms import Criterion, conversion_weights, criteria
from autoplan.model.facts import forward_flops_per_token
from autoplan.search.bounds import UniformStages, objective
from autoplan.search.pricer import Pricer
from autoplan.search.probe import room_for_layers
from autoplan.search.solve import Variant
from autoplan.search.space import Candidate
from autoplan.workload import Recompute

Array = NDArray[np.float64]

LARGE = 2.0 ** np.arange(10, 16)  # sizes of square products, the largest of which run at the kernels' full speed


@cache
def best_rate(costs: CostModel, dtype: str) -> float:
    """Return the FLOP/s of the fastest matrix product the cost model knows."""
    seconds = np.asarray(costs.matmul(LARGE, LARGE, LARGE, dtype=dtype))
    return float((2.0 * LARGE**3 / seconds).max())


def arithmetic_bound(pricer: Pricer, candidate: Candidate) -> float:
    """Return seconds below which the candidate can't go: all devices at full speed, and the pipeline's bubble.

    Half of attention's FLOPs are left out, since a causal mask may spare them.
    """
    seq = pricer.workload.seq_len
    full = forward_flops_per_token(pricer.chain.model, seq)
    attention = full - forward_flops_per_token(pricer.chain.model, 1)
    flops = 3.0 * (full - 0.5 * attention) * seq * candidate.micro_batch
    work = flops / best_rate(pricer.costs, pricer.workload.precision.value) / candidate.mesh.num_devices
    return work + (candidate.num_micro_batches - 1) * work / candidate.num_stages


def bounds(pricer: Pricer, candidate: Candidate, policies: Sequence[Recompute], zeros: Sequence[int],
           wanted: float) -> tuple[list[Variant], float]:
    """Return the candidate's variants (recompute × ZeRO) that may fit in less than `wanted` seconds, with lower bounds;
    and a lower bound of all the others.

    Time, held bytes and saved bytes of each layer class are minimised one by one, by elimination; first what all
    variants share, so that most fall before they are looked at alone.
    """
    problems = pricer.problems(candidate.mesh, candidate.micro_batch, candidate.roles)
    assert problems is not None
    classes = [_Relaxation(problem) for problem in (problems.first, problems.layer, problems.last)]
    m = candidate.num_micro_batches
    together = [relaxed.seconds(Recompute.NONE, None, 1.0 / m) for relaxed in classes]
    floor = _mixed(pricer, candidate, [0.0, 0.0, 0.0], together)
    if floor >= wanted:
        return [], floor
    shared = [relaxed.seconds(Recompute.NONE, None, 0.0) for relaxed in classes]
    floor = _mixed(pricer, candidate, shared, together)
    if floor >= wanted:
        return [], floor
    floor = float("inf")
    state = {zero: [relaxed.least(Criterion.STATE, Recompute.NONE, zero) for relaxed in classes] for zero in zeros}
    saved = {policy: [relaxed.least(Criterion.SAVED, policy, None) for relaxed in classes] for policy in policies}
    found = []
    for policy in policies:
        for zero in zeros:
            most = room_for_layers(pricer, candidate, np.array([state[zero]]), np.array([saved[policy]]))
            bound = _plain(pricer, candidate, shared, most)
            if bound >= wanted:
                floor = min(floor, bound)
                continue
            seconds = [relaxed.seconds(policy, zero, 0.0) for relaxed in classes]
            with_step = [relaxed.seconds(policy, zero, 1.0 / m) for relaxed in classes]
            bound = max(_plain(pricer, candidate, seconds, most), _mixed(pricer, candidate, seconds, with_step))
            if bound < wanted:
                found.append(Variant(candidate, policy, zero, bound))
            else:
                floor = min(floor, bound)
    return found, floor


def _plain(pricer: Pricer, candidate: Candidate, seconds: Sequence[float], most: NDArray[np.int64]) -> float:
    """Return the step time with these seconds a micro-batch (first, repeated, last layer) and no once-a-step work."""
    first, layer, last = (np.array([value]) for value in seconds)
    none = np.zeros(1)
    stages = UniformStages(pricer.chain.count, candidate.num_stages, first, layer, last, none, most, none)
    return float(objective(stages, candidate.num_micro_batches)[0])


def _mixed(pricer: Pricer, candidate: Candidate, seconds: Sequence[float], with_step: Sequence[float]) -> float:
    """Return Σ time + (m − 1) · Σ (time + step/m) / p: the slowest stage pays its step at least (m − 1)/m times."""
    chain = np.array([1.0, pricer.chain.count, 1.0])
    share = (candidate.num_micro_batches - 1) / candidate.num_stages
    return float(chain @ np.array(seconds) + share * (chain @ np.array(with_step)))


class _Relaxation:
    """One layer's problem with a single criterion minimised at a time."""

    def __init__(self, problem: LayerProblem) -> None:
        self.problem = problem
        self.names = tuple(node.name for node in problem.nodes)
        self.edges = tuple((edge.u, edge.v) for edge in problem.edges)
        self.fits = tuple(np.where(np.isfinite(edge.forward + edge.backward), 0.0, np.inf) for edge in problem.edges)

    def seconds(self, recompute: Recompute, zero: int | None, step_weight: float) -> float:
        """Return the least seconds a micro-batch, plus `step_weight` times a step's; zero None: any ZeRO stage."""
        weights = criteria(recompute)
        forward, backward = conversion_weights(recompute)
        column = weights[:, Criterion.T_MICRO_BATCH] + step_weight * weights[:, Criterion.T_STEP]
        costs = tuple(forward * edge.forward + backward * edge.backward for edge in self.problem.edges)
        return self._minimum(column, costs, zero)

    def least(self, criterion: Criterion, recompute: Recompute, zero: int | None) -> float:
        """Return the least bytes of one criterion."""
        return self._minimum(criteria(recompute)[:, criterion], self.fits, zero)

    def _minimum(self, column: Array, edge_costs: tuple[Array, ...], zero: int | None) -> float:
        costs = []
        for node in self.problem.nodes:
            cost = node.terms @ column
            if zero is not None and isinstance(node.content, ParamNode):
                cost = np.where(node.content.zero == zero, cost, np.inf)
            costs.append(cost)
        return minimum(IntraOpProblem(self.names, tuple(costs), self.edges, edge_costs)).cost
