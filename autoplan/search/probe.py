"""Cheap lower bounds of named candidates: what a recipe costs on its tensor-parallel group alone.

Kernels and conversions of a named recipe don't depend on the data-parallel degree, so they are priced once a
(recipe, tensor-parallel degree, micro-batch size); what data parallelism adds (gradient sync, gathers) is linear in
bytes. The bound of a candidate leaves out nothing large, so few candidates need a table of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import mesh
from autoplan.cost.memory import usable_bytes
from autoplan.cost.schedules import in_flight, weight_relief
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode
from autoplan.intraop.overlap import evaluate
from autoplan.intraop.pricing import Among, Setting
from autoplan.intraop.terms import NUM_TERMS, Criterion, Term
from autoplan.search.bounds import UniformStages, chunked_objective, objective
from autoplan.search.pricer import Pricer
from autoplan.search.recipes import replicas
from autoplan.search.solve import Variant, neighbour
from autoplan.search.space import Candidate, chunked_layers
from autoplan.sharding import PARTIAL
from autoplan.workload import Recompute

Array = NDArray[np.float64]


STORED = [Term.WEIGHTS, Term.GRADIENTS, Term.STATES, Term.OPTIMIZER]


@dataclass(frozen=True)
class Probe:
    """Of the first layer, each kind in between and the last (L in all): summed terms [L, NUM_TERMS], each the least it
    can be (most: the most), and bytes of weights, gradients and states and seconds of the update [L, 4], by the mesh
    axes besides the data axis that synchronise them. boundary: least bytes sent. ranks: devices that share a layer's
    products."""

    terms: Array
    most: Array
    stored: dict[tuple[int, ...], Array]
    boundary: float
    ranks: int


def probe(pricer: Pricer, candidate: Candidate) -> Probe | None:
    """Price a candidate's recipe on a mesh whose data axis is one device; None where it doesn't divide the model."""
    shape = (1, *candidate.mesh.shape[1:])
    alone = mesh(pricer.cluster, shape, candidate.mesh.names)
    key = ("probe", alone, candidate.micro_batch_size, candidate.roles, candidate.joined)
    if key not in pricer.kept:
        problems = pricer.problems(alone, candidate.micro_batch_size * replicas(alone), candidate.roles)
        pricer.kept[key] = None if problems is None else _probe(
            (problems.first, *problems.layers, pricer.tail(problems, candidate)))
    found = pricer.kept[key]
    assert found is None or isinstance(found, Probe)
    return found


def _probe(problems: Sequence[LayerProblem]) -> Probe:
    terms, most = np.zeros((2, len(problems), NUM_TERMS))
    stored: dict[tuple[int, ...], Array] = {}
    for index, problem in enumerate(problems):
        for node in problem.nodes:
            if isinstance(node.content, ParamNode):
                axes = tuple(int(axis) for axis in np.flatnonzero(node.content.layouts[0] == PARTIAL) if axis > 0)
                axes = tuple(axis for axis in axes if problem.setting.mesh.shape[axis] > 1)
                held = stored.setdefault(axes, np.zeros((len(problems), len(STORED))))
                held[index] += node.terms[0, STORED]  # ZeRO stage 0
            else:
                terms[index] += node.terms.min(axis=0)
                most[index] += node.terms.max(axis=0)
        for edge in problem.edges:
            for total, edge_of in ((terms, np.min), (most, np.max)):
                total[index, Term.CONVERT_FORWARD] += edge_of(edge.forward[np.isfinite(edge.forward)])
                total[index, Term.CONVERT_BACKWARD] += edge_of(edge.backward[np.isfinite(edge.forward)])
                if edge.exchanges:
                    total[index, Term.EXCHANGE_FORWARD] += edge_of(edge.forward)
                    total[index, Term.EXCHANGE_BACKWARD] += edge_of(edge.backward)
    boundary = min(_boundary(problem) for problem in problems[1:])
    return Probe(terms, most, stored, boundary, problems[1].setting.tensor_ranks)


def _boundary(problem: LayerProblem) -> float:
    """Return the least bytes of what a layer reads of the one before it."""
    assert problem.input is not None and isinstance(problem.nodes[problem.input].content, LayoutNode)
    return float(problem.nodes[problem.input].terms[:, Term.BOUNDARY].min())


def bounds(pricer: Pricer, candidate: Candidate, kinds: Sequence[Recompute], zeros: Sequence[int]) -> list[Variant]:
    """Return the candidate's variants (recompute × ZeRO) that may fit, each with a lower bound of its step time."""
    found = probe(pricer, candidate)
    if found is None:
        return []
    variants = [(recompute, zero) for recompute in kinds for zero in zeros]
    if not variants:
        return []
    layers = layer_bounds(pricer, candidate, found, variants)
    value = _uniform_seconds(pricer, candidate, found, layers) if pricer.chain.uniform else \
        _mixed_seconds(pricer, candidate, layers)
    return [Variant(candidate, recompute, zero, float(seconds))
            for (recompute, zero), seconds in zip(variants, value, strict=True) if np.isfinite(seconds)]


def _uniform_seconds(pricer: Pricer, candidate: Candidate, found: Probe, layers: LayerBounds) -> Array:
    """Return lower bounds [V] of the step time of a chain of equal layers."""
    stages = _stages(pricer, candidate, layers)
    m = candidate.num_micro_batches

    def seconds_of(*, bubble: bool = True) -> Array:
        if not candidate.schedule.chunked:
            return objective(stages, m, bubble=bubble)
        cut = chunked_layers(pricer.chain, candidate)
        return chunked_objective(stages, cut, m, candidate.virtual_stages if bubble else math.inf)

    value = seconds_of()
    if candidate.schedule.splits_backward:
        weight = found.most[:, Term.WEIGHT_GRADIENT] @ [1.0, pricer.chain.count, 1.0]
        relief = weight_relief(candidate.schedule, candidate.num_stages, m)
        value = np.maximum(value - relief * weight, seconds_of(bubble=False))
    return value


def _mixed_seconds(pricer: Pricer, candidate: Candidate, layers: LayerBounds) -> Array:
    """Return lower bounds [V] of the step time of a chain of several kinds of layers, inf where it can't fit.

    Whatever the cut, the slowest stage takes and the fullest holds at least a p-th part of the chain.
    """
    p, m = candidate.num_stages, candidate.num_micro_batches
    chain = np.array([1, *pricer.chain.before[-1], 1], float)
    total = layers.time @ chain + 2 * (p - 1) * layers.send
    filled = 0.0 if candidate.schedule.splits_backward else (total - total / p) / candidate.virtual_stages
    held = (layers.state + layers.saved) @ chain
    room = usable_bytes(pricer.cluster.device.memory_bytes, pricer.runtime)
    seconds: Array = np.where(held / p <= room, m * total / p + filled + layers.step @ chain / p, np.inf)
    return seconds


@dataclass(frozen=True)
class LayerBounds:
    """Lower bounds of the first layer, each kind in between and the last for V variants (recompute × ZeRO), [V, L].

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
    zero = np.array([z for _, z in variants])[:, None]
    least, most = (np.repeat(terms[None], len(variants), axis=0) for terms in (found.terms, found.most))
    state = np.zeros((len(variants), len(found.terms)))
    for axes, stored in found.stored.items():
        group = tuple(axis for axis in (0, *axes) if candidate.mesh.shape[axis] > 1)
        rates = _rates(pricer, candidate, group)
        shards = rates["shards"]
        split = [np.where(zero >= stage, shards, 1.0) for stage in (1, 2, 3)]
        weights, gradients, states, update = stored.T[:, None, :]
        state += weights / split[2] + gradients / split[1] + states / split[0]
        trained = 0.0 if pricer.workload.frozen else 1.0
        sent = trained * weights * pricer.workload.reduce_bytes / pricer.workload.weight_bytes  # not all that are held
        reduce, gather = sent * (rates["reduce_scatter"] + rates["replicas"] / shards), weights * rates["all_gather"]
        for terms in (least, most):
            terms[..., Term.OPTIMIZER] += update / split[0]
            terms[..., Term.REDUCE] += np.where(zero >= 2, reduce, 0.0)
            terms[..., Term.GATHER] += np.where(zero == 3, 2 * gather, 0.0)
            terms[..., Term.SYNC] += np.where(zero == 0, sent * rates["all_reduce"], np.where(zero == 1, reduce, 0.0))
            terms[..., Term.GATHER_STEP] += np.where((zero == 1) | (zero == 2), trained * gather, 0.0)
    kinds = [recompute for recompute, _ in variants]
    values = _evaluated(pricer, candidate, found, least, kinds)
    # the longer a pass is, the more of a step it hides
    hiding = values if pricer.runtime.linear else _evaluated(pricer, candidate, found, most, kinds)
    link = neighbour(pricer.cluster, candidate.mesh.num_devices)
    hidden = pricer.runtime.overlap.sends and candidate.virtual_stages > 1
    boundary = found.boundary / (found.ranks if pricer.runtime.scatters_sends else 1)
    send = 0.0 if hidden else candidate.virtual_stages * float(pricer.costs.p2p(boundary, link))
    return LayerBounds(values[..., Criterion.T_MICRO_BATCH], hiding[..., Criterion.T_STEP], state,
                       values[..., Criterion.SAVED], send)


def _evaluated(pricer: Pricer, candidate: Candidate, found: Probe, terms: Array, kinds: Sequence[Recompute]) -> Array:
    """Return the criteria [V, layers, 6] of the layers' terms [V, layers, NUM_TERMS]."""
    values = np.empty((*terms.shape[:2], len(Criterion)))
    for recompute in set(kinds):
        rows = [row for row, kind in enumerate(kinds) if kind is recompute]
        first, inner, last = pricer.policies(candidate, recompute)
        for layer, policy in enumerate((first, *[inner] * (terms.shape[1] - 2), last)):
            values[rows, layer] = evaluate(terms[rows, layer], policy, pricer.runtime, found.ranks)
    return values


def _stages(pricer: Pricer, candidate: Candidate, layers: LayerBounds) -> UniformStages:
    count, p = pricer.chain.count, candidate.num_stages
    total_step = layers.step[:, 0] + count * layers.step[:, 1] + layers.step[:, 2]
    sends = 0.0 if p == 1 else layers.send
    middle = np.full(len(total_step), 2 * sends)
    first, last = layers.time[:, 0] + sends, layers.time[:, 2] + sends
    if p > 1 and candidate.joined:
        first, last = layers.time[:, 0] + layers.time[:, 2] + sends, middle
    return UniformStages(count, p, first, layers.time[:, 1], last, middle,
                         room_for_layers(pricer, candidate, layers.state, layers.saved), total_step / p)


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
    tail = 0 if candidate.joined else p - 1
    last = state[:, 2] + held[tail] * saved[:, 2]
    if not candidate.joined or pricer.chain.tied is None:
        fixed[:, tail] += last
    most = np.floor((room - fixed) / (state[:, [1]] + held[None, :] * saved[:, [1]]) + 1e-9)
    return np.clip(most, -1, pricer.chain.count).astype(np.int64)


def _rates(pricer: Pricer, candidate: Candidate, axes: tuple[int, ...]) -> dict[str, float]:
    """Return seconds a byte of gradient and parameter collectives over some mesh axes (`replicas`: of an all-reduce
    between those that hold the same part), and over how many ranks ZeRO splits (`shards`)."""
    key = ("rates", candidate.mesh, axes)
    if key not in pricer.kept:
        setting = Setting(candidate.mesh, pricer.costs, pricer.runtime, pricer.workload, candidate.micro_batch,
                          pricer.shard)
        collectives: tuple[tuple[str, str, Among], ...] = (
            ("all_reduce", "all_reduce", "all"), ("reduce_scatter", "reduce_scatter", "shards"),
            ("all_gather", "all_gather", "shards"), ("replicas", "all_reduce", "replicas"))
        ranks = float(math.prod(candidate.mesh.shape[axis] for axis in axes))
        pricer.kept[key] = {"shards": ranks / float(setting.replicas(np.array([[0 in axes]]))[0])} | {
            name: setting.bucketed(kind, axes, among) if axes else 0.0 for name, kind, among in collectives}
    found = pricer.kept[key]
    assert isinstance(found, dict)
    return found
