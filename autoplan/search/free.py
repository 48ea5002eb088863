"""Bounds of candidates whose shardings are left to the ILP: what no choice of strategies can beat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoplan.cost.memory import usable_bytes
from autoplan.cost.model import CostModel
from autoplan.cost.schedules import in_flight
from autoplan.intraop.layer_problem import LayerProblem, ParamNode
from autoplan.intraop.solve.batch import minima
from autoplan.intraop.terms import Criterion, Policy, conversion_weights, criteria
from autoplan.model.facts import unmasked_flops_per_token
from autoplan.search.bounds import MemoryPrices, UniformStages, objective
from autoplan.search.pricer import Pricer
from autoplan.search.probe import room_for_layers
from autoplan.search.solve import Variant
from autoplan.search.space import Candidate
from autoplan.workload import Recompute

Array = NDArray[np.float64]

PRICES = np.array([0.1, 0.3, 1.0])  # of all of a device's memory, in stage times
LARGE = 2.0 ** np.arange(10, 16)  # sizes of square products, the largest of which run at the kernels' full speed


@cache
def best_rate(costs: CostModel, dtype: str) -> float:
    """Return the FLOP/s of the fastest matrix product the cost model knows."""
    seconds = np.asarray(costs.matmul(LARGE, LARGE, LARGE, dtype=dtype))
    return float((2.0 * LARGE**3 / seconds).max())


def arithmetic_bound(pricer: Pricer, candidate: Candidate) -> float:
    """Return seconds below which the candidate can't go: all devices at full speed, and the pipeline's bubble.

    What a causal mask hides of attention is left out.
    """
    seq = pricer.workload.seq_len
    flops = pricer.workload.passes * unmasked_flops_per_token(pricer.chain.model, seq) * seq * candidate.micro_batch
    work = flops / best_rate(pricer.costs, pricer.workload.precision.value) / candidate.mesh.num_devices
    return work + (candidate.num_micro_batches - 1) * work / candidate.num_stages


def bounds(pricer: Pricer, candidate: Candidate, kinds: Sequence[Recompute], zeros: Sequence[int],
           wanted: float) -> tuple[list[Variant], float]:
    """Return the candidate's variants (recompute × ZeRO) that may fit in less than `wanted` seconds, with lower bounds;
    and a lower bound of all the others.

    Each layer class is relaxed on its own: its least time, its least bytes with the fewest and the most micro-batches
    in flight, and its least time plus bytes at a few prices (a Lagrangian: a stage that fits pays for no byte beyond
    its device's). All of them by one batched elimination a class.
    """
    layer = pricer.layer_alone(candidate.mesh, candidate.micro_batch, candidate.roles)
    assert layer is not None
    m, p = candidate.num_micro_batches, candidate.num_stages
    # J ≥ Σ time + (m − 1) · max (time + step/m): the slowest stage pays its step at least (m − 1)/m times
    floor = (m - 1) * pricer.chain.count * _cheapest(layer, m) / p
    if floor >= wanted:
        return [], floor
    variants = [(recompute, zero) for recompute in kinds for zero in zeros]
    prices = PRICES * (wanted / (m + p - 1) if np.isfinite(wanted) else 1.0) / _room(pricer)
    most_held = float(min(m, p))
    floor = np.inf
    for some in (prices[:0], prices):  # without prices first: most variants fall there already
        inner = _relax(layer, _of(pricer, candidate, variants, 1), m, most_held, some)
        alone = _values(pricer, candidate, inner, np.zeros((2, len(variants), 4)), some)
        floor = min(floor, float(alone[alone >= wanted].min(initial=np.inf)))
        left = np.flatnonzero(alone < wanted)
        if not len(left):
            return [], floor
        variants, inner = [variants[index] for index in left], inner[left]
    problems = pricer.problems(candidate.mesh, candidate.micro_batch, candidate.roles)
    assert problems is not None
    ends = np.array([_relax(end, _of(pricer, candidate, variants, position), m, most_held, prices[:0])
                     for position, end in ((0, problems.first), (2, pricer.tail(problems, candidate)))])
    value = _values(pricer, candidate, inner, ends, prices)
    found = [Variant(candidate, recompute, zero, float(seconds))
             for (recompute, zero), seconds in zip(variants, value, strict=True) if seconds < wanted]
    return found, min(floor, float(value[value >= wanted].min(initial=np.inf)))


def _of(pricer: Pricer, candidate: Candidate, variants: Sequence[tuple[Recompute, int]],
        position: int) -> list[tuple[Policy, int]]:
    """Return the variants with the policy of the first (0), a repeated (1) or the last layer (2)."""
    return [(pricer.policies(candidate, recompute)[position], zero) for recompute, zero in variants]


def _room(pricer: Pricer) -> float:
    return usable_bytes(pricer.cluster.device.memory_bytes, pricer.runtime)


def _values(pricer: Pricer, candidate: Candidate, inner: Array, ends: Array, prices: Array) -> Array:
    """Return lower bounds of the step time, [V], inf where the layers can't fit.

    inner: minima of the repeated layer, as `_relax` gives them; ends [2, V, 4]: those of the first and the last one.
    """
    count, p, m = pricer.chain.count, candidate.num_stages, candidate.num_micro_batches
    most_held = float(min(m, p))
    every = np.array([ends[0], inner[:, :4], ends[1]])  # [3, V, 4]
    time, with_step, low, high = np.moveaxis(every, -1, 0).swapaxes(1, 2)  # [V, 3] each
    saved = (high - low) / (most_held - 1.0) if most_held > 1 else np.zeros_like(low)
    held = np.array([in_flight(candidate.schedule, index, p, m) for index in range(p)])
    priced = inner[:, 4:].reshape(len(inner), len(prices), 2)  # [V, prices, (fewest, most in flight)]
    share = (held - 1.0) / (most_held - 1.0) if most_held > 1 else np.zeros(p)
    along = priced[..., :1] * (1 - share) + priced[..., 1:] * share  # concave in the count, so a chord bounds it
    none = np.zeros(len(inner))
    stages = UniformStages(count, p, time[:, 0], time[:, 1], time[:, 2], none,
                           room_for_layers(pricer, candidate, low - saved, saved), none)
    plain = objective(stages, m, MemoryPrices(along, prices * _room(pricer)))
    chain = np.array([1.0, count, 1.0])
    value: Array = np.maximum(plain, time @ chain + (m - 1) * (with_step @ chain) / p)
    return value


def _cheapest(problem: LayerProblem, num_micro_batches: int) -> float:
    """Return the least time + step/m of a layer under any ZeRO stage, nothing recomputed."""
    weights = criteria(Policy(Recompute.NONE))
    column = weights[:, Criterion.T_MICRO_BATCH] + weights[:, Criterion.T_STEP] / num_micro_batches
    costs = [node.terms @ column[:, None] for node in problem.nodes]
    edge_costs = [(edge.forward + edge.backward)[..., None] for edge in problem.edges]
    return float(minima(costs, [(edge.u, edge.v) for edge in problem.edges], edge_costs)[0])


def _relax(problem: LayerProblem, variants: Sequence[tuple[Policy, int]], num_micro_batches: int, most_held: float,
           prices: Array) -> Array:
    """Return [V, 4 + 2·prices] minima: time, time + step/m, bytes with one and with `most_held` micro-batches in
    flight, and for each price time + price · bytes with one and with `most_held` in flight."""
    columns, edge_weights = [], []
    for policy, _ in variants:
        weights = criteria(policy)
        t, step = weights[:, Criterion.T_MICRO_BATCH], weights[:, Criterion.T_STEP]
        fewest = weights[:, Criterion.STATE] + weights[:, Criterion.SAVED]
        most = weights[:, Criterion.STATE] + most_held * weights[:, Criterion.SAVED]
        columns += [t, t + step / num_micro_batches, fewest, most]
        columns += [t + price * held for price in prices for held in (fewest, most)]
        forward, backward = conversion_weights(policy.recompute)
        timed = [1.0, 1.0, 0.0, 0.0] + [1.0] * (2 * len(prices))
        edge_weights += [(forward * on, backward * on) for on in timed]
    matrix = np.array(columns).T
    per_variant = len(columns) // len(variants)
    zero = np.repeat([z for _, z in variants], per_variant)
    costs = []
    for node in problem.nodes:
        cost = node.terms @ matrix
        if isinstance(node.content, ParamNode):
            cost = np.where(node.content.zero[:, None] == zero[None, :], cost, np.inf)
        costs.append(cost)
    ahead, back = np.array(edge_weights).T
    edge_costs = []
    for edge in problem.edges:
        possible = np.isfinite(edge.forward)
        seconds = np.where(possible, edge.forward, 0.0)[..., None] * ahead + edge.backward[..., None] * back
        edge_costs.append(np.where(possible[..., None], seconds, np.inf))
    return minima(costs, [(edge.u, edge.v) for edge in problem.edges], edge_costs).reshape(len(variants), per_variant)
