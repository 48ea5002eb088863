"""Cheap lower bounds of named candidates: what a recipe costs on its tensor-parallel group alone.

Kernels and conversions of a named recipe don't depend on the data-parallel degree, so they are priced once a
(recipe, tensor-parallel degree, micro-batch size); what data parallelism adds (gradient sync, gathers) is linear in
bytes. The bound of a candidate leaves out nothing large, so few candidates need a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import mesh
from autoplan.cost.memory import usable_bytes
from autoplan.cost.schedules import in_flight
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode
from autoplan.intraop.overlap import evaluate
from autoplan.intraop.pricing import Setting
from autoplan.intraop.terms import NUM_TERMS, Criterion, Term, policies
from autoplan.search.bounds import UniformStages, interleaved_objective, objective
from autoplan.search.pricer import Pricer
from autoplan.search.solve import Variant, neighbour
from autoplan.search.space import Candidate, interleaved_layers
from autoplan.sharding import PARTIAL
from autoplan.workload import Recompute, Schedule

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """Of the first, the repeated and the last layer: summed terms [3, NUM_TERMS], each the least it can be (most: the
    most), and the bytes of weights and of gradients [3] that are synchronised over the data axes alone. boundary: bytes
    sent. ranks: devices that share a layer's products."""

    terms: Array
    most: Array
    weights: Array
    gradients: Array
    boundary: float
    ranks: int


def probe(pricer: Pricer, candidate: Candidate) -> Probe | None:
    """Price a candidate's recipe on a mesh without data parallelism; None where it doesn't divide the model."""
    shape = (1, *candidate.mesh.shape[1:])
    alone = mesh(pricer.cluster, shape, candidate.mesh.names)
    key = ("probe", alone, candidate.micro_batch_size, candidate.roles, candidate.num_stages == 1)
    if key not in pricer.kept:
        problems = pricer.problems(alone, candidate.micro_batch_size, candidate.roles)
        pricer.kept[key] = None if problems is None else _probe(
            (problems.first, problems.layer, pricer.tail(problems, candidate)))
    found = pricer.kept[key]
    assert found is None or isinstance(found, Probe)
    return found


def _probe(problems: Sequence[LayerProblem]) -> Probe:
    terms, most = np.zeros((2, 3, NUM_TERMS))
    weights, gradients = np.zeros(3), np.zeros(3)
    for index, problem in enumerate(problems):
        for node in problem.nodes:
            if isinstance(node.content, ParamNode):
                least = node.terms[0]  # ZeRO stage 0: nothing is split without data parallelism
                if not (node.content.layouts[0, 1:] == PARTIAL).any():
                    weights[index] += least[Term.WEIGHTS]
                    gradients[index] += least[Term.GRADIENTS]
                keep = [Term.WEIGHTS, Term.GRADIENTS, Term.STATES, Term.OPTIMIZER]
                terms[index, keep] += least[keep]
            else:
                terms[index] += node.terms.min(axis=0)
                most[index] += node.terms.max(axis=0)
        for edge in problem.edges:
            for total, edge_of in ((terms, np.min), (most, np.max)):
                total[index, Term.CONVERT_FORWARD] += edge_of(edge.forward[np.isfinite(edge.forward)])
                total[index, Term.CONVERT_BACKWARD] += edge_of(edge.backward[np.isfinite(edge.forward)])
    layer = problems[1]
    assert layer.input is not None and isinstance(layer.nodes[layer.input].content, LayoutNode)
    boundary = float(layer.nodes[layer.input].terms[:, Term.BOUNDARY].min())
    return Probe(terms, most, weights, gradients, boundary, layer.setting.tensor_ranks)


def bounds(pricer: Pricer, candidate: Candidate, kinds: Sequence[Recompute], zeros: Sequence[int]) -> list[Variant]:
    """Return the candidate's variants (recompute × ZeRO) that may fit, each with a lower bound of its step time."""
    found = probe(pricer, candidate)
    if found is None:
        return []
    variants = [(recompute, zero) for recompute in kinds for zero in zeros]
    if not variants:
        return []
    stages = _stages(pricer, candidate, found, variants)
    m = candidate.num_micro_batches
    if candidate.schedule is Schedule.INTERLEAVED:
        layers = interleaved_layers(pricer.chain, candidate.num_stages, candidate.virtual_stages)
        value = interleaved_objective(stages, layers, m, candidate.virtual_stages)
    else:
        value = objective(stages, m)
    return [Variant(candidate, recompute, zero, float(seconds))
            for (recompute, zero), seconds in zip(variants, value, strict=True) if np.isfinite(seconds)]


@dataclass(frozen=True)
class LayerBounds:
    """Lower bounds of the first, a repeated and the last layer for V variants (recompute × ZeRO), [V, 3].

    time: seconds a micro-batch. step: seconds a step. state, saved: bytes held always, and a micro-batch in flight.
    send: seconds a micro-batch of one boundary tensor to the next stage.
    """

    time: Array
    step: Array
    state: Array
    saved: Array
    send: float


def layer_bounds(pricer: Pricer, candidate: Candidate, found: Probe,
                 variants: Sequence[tuple[Recompute, int]]) -> LayerBounds:
    """Return a probe's bounds with what data parallelism adds to them."""
    dp = candidate.mesh.shape[0]
    zero = np.array([z for _, z in variants])[:, None]
    split = [np.where(zero >= stage, float(dp), 1.0) for stage in (1, 2, 3)]
    least, most = (np.repeat(terms[None], len(variants), axis=0) for terms in (found.terms, found.most))
    state = (least[..., Term.WEIGHTS] / split[2] + least[..., Term.GRADIENTS] / split[1]
             + least[..., Term.STATES] / split[0])
    for terms in (least, most):
        terms[..., Term.OPTIMIZER] = found.terms[:, Term.OPTIMIZER] / split[0]
        if dp > 1:
            rates = _rates(pricer, candidate)
            gradients = found.gradients[None] * pricer.workload.reduce_bytes / pricer.workload.grad_bytes
            reduce = gradients * rates["reduce_scatter"]
            gather = found.weights[None] * rates["all_gather"]
            terms[..., Term.REDUCE] = np.where(zero >= 2, reduce, 0.0)
            terms[..., Term.GATHER] = np.where(zero == 3, 2 * gather, 0.0)
            terms[..., Term.SYNC] = np.where(zero == 0, gradients * rates["all_reduce"],
                                             np.where(zero == 1, reduce, 0.0))
            terms[..., Term.GATHER_STEP] = np.where((zero == 1) | (zero == 2), gather, 0.0)
    values, hiding = (np.array([_evaluated(pricer, candidate, found, one, recompute)
                                for one, (recompute, _) in zip(terms, variants, strict=True)])
                      for terms in (least, most))  # [V, 3, 6]; the longer a pass is, the more of a step it hides
    link = neighbour(pricer.cluster, candidate.mesh.num_devices)
    hidden = pricer.runtime.overlap.sends and candidate.virtual_stages > 1
    send = 0.0 if hidden else candidate.virtual_stages * float(pricer.costs.p2p(found.boundary, link))
    return LayerBounds(values[..., Criterion.T_MICRO_BATCH], hiding[..., Criterion.T_STEP], state,
                       values[..., Criterion.SAVED], send)


def _evaluated(pricer: Pricer, candidate: Candidate, found: Probe, terms: Array, recompute: Recompute) -> Array:
    """Return the criteria [3, 6] of the three layers' terms."""
    return np.array([evaluate(one, policy, pricer.runtime, found.ranks)
                     for one, policy in zip(terms, policies(recompute, candidate.schedule), strict=True)])


def _stages(pricer: Pricer, candidate: Candidate, found: Probe,
            variants: Sequence[tuple[Recompute, int]]) -> UniformStages:
    count, p = pricer.chain.count, candidate.num_stages
    layers = layer_bounds(pricer, candidate, found, variants)
    total_step = layers.step[:, 0] + count * layers.step[:, 1] + layers.step[:, 2]
    sends = 0.0 if p == 1 else layers.send
    return UniformStages(
        count, p, layers.time[:, 0] + sends, layers.time[:, 1], layers.time[:, 2] + sends,
        np.full(len(variants), 2 * sends), room_for_layers(pricer, candidate, layers.state, layers.saved),
        total_step / p)


def room_for_layers(pricer: Pricer, candidate: Candidate, state: Array, saved: Array) -> NDArray[np.int64]:
    """Return an upper bound of the equal layers that fit on each stage, [V, p].

    state, saved [V, 3]: lower bounds of the bytes of the first, a repeated and the last layer.
    """
    p, m = candidate.num_stages, candidate.num_micro_batches
    held = np.array([in_flight(candidate.schedule, index, p, m, candidate.virtual_stages,
                               pricer.runtime.extra_in_flight) for index in range(p)])
    room = usable_bytes(pricer.cluster.device.memory_bytes, pricer.runtime)
    fixed = np.zeros((len(state), p))
    fixed[:, 0] += state[:, 0] + held[0] * saved[:, 0]
    last = state[:, 2] + held[-1] * saved[:, 2]
    if p > 1 or pricer.chain.tied is None:
        fixed[:, -1] += last
    most = np.floor((room - fixed) / (state[:, [1]] + held[None, :] * saved[:, [1]]) + 1e-9)
    return np.clip(most, -1, pricer.chain.count).astype(np.int64)


def _rates(pricer: Pricer, candidate: Candidate) -> dict[str, float]:
    """Return seconds a byte of gradient and parameter collectives over the data axis."""
    key = ("rates", candidate.mesh)
    if key not in pricer.kept:
        setting = Setting(candidate.mesh, pricer.costs, pricer.runtime, pricer.workload, candidate.micro_batch)
        axes = tuple(range(len(candidate.mesh.shape) - 1))  # data and context
        axes = tuple(axis for axis in axes if candidate.mesh.shape[axis] > 1)
        pricer.kept[key] = {kind: setting.bucketed(kind, axes) if axes else 0.0
                            for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    found = pricer.kept[key]
    assert isinstance(found, dict)
    return found
