"""A whole stage as one intra-operator problem, and stage tables whose rows a MILP solver found.

The stage's equal layers are tied: a layer's variables appear once, its costs and bytes as often as there are layers.
Solved by any of `autoplan.intraop.solve`, it gives the same optimum as the tables built by elimination.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.cost.memory import usable_bytes
from autoplan.intraop.layer_problem import LayerProblem
from autoplan.intraop.problem import IntraOpProblem, UsageTerm
from autoplan.intraop.solve import solve
from autoplan.intraop.tables import LayerTable, StageTable, by_name, param_node
from autoplan.intraop.terms import NUM_TERMS, Criterion, conversion_weights, criteria

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Query:
    """A stage to be solved: does it hold the chain's first and last layer, its layers in between by kind, its in-flight
    count."""

    first: bool
    last: bool
    layers: tuple[int, ...]
    in_flight: float


@dataclass(frozen=True)
class _Part:
    """One layer class within the stage's problem: where its nodes begin, and how many layers it stands for."""

    table: LayerTable
    offset: int
    times: int

    @property
    def problem(self) -> LayerProblem:
        return self.table.problem

    def node(self, index: int | None) -> int:
        assert index is not None
        return self.offset + index


def stage_problem(table: StageTable, query: Query) -> tuple[IntraOpProblem, list[tuple[str, int, int]]]:
    """Return the stage's problem, and for each part `(name, first node, nodes)`.

    The objective is seconds of a step: m · (seconds a micro-batch) + (seconds a step). Bytes held always and the saved
    bytes of all micro-batches in flight live throughout; what a layer holds while it runs lives while its nodes run;
    an operator's workspace at its own time.
    """
    parts = _parts(table, query)
    setting, m = table.setting, float(table.num_micro_batches)
    names: list[str] = []
    costs: list[Array] = []
    usages: list[UsageTerm] = []
    edges: list[tuple[int, int]] = []
    edge_costs: list[Array] = []
    total = sum(len(part.problem.nodes) for _, part in parts)
    for name, part in parts:
        weights = criteria(part.table.policy)
        ahead, back = conversion_weights(part.table.policy.recompute)
        end = part.offset + len(part.problem.nodes)
        for index, node in enumerate(part.problem.nodes):
            values = node.terms @ weights
            at = part.offset + index
            names.append(f"{name}/{node.name}")
            costs.append(part.times * (m * values[:, Criterion.T_MICRO_BATCH] + values[:, Criterion.T_STEP]))
            held = values[:, Criterion.STATE] + query.in_flight * values[:, Criterion.SAVED]
            usages += [UsageTerm(at, 0, total, part.times * held),
                       UsageTerm(at, part.offset, end, values[:, Criterion.TRANSIENT]),
                       UsageTerm(at, at, at + 1, values[:, Criterion.WORKSPACE])]
        for edge in part.problem.edges:
            edges.append((part.offset + edge.u, part.offset + edge.v))
            edge_costs.append(m * part.times * (ahead * edge.forward + back * edge.backward))
    _seams(table, query, [part for _, part in parts], costs, edges, edge_costs)
    limit = usable_bytes(setting.costs.cluster.device.memory_bytes, setting.runtime)
    problem = IntraOpProblem(tuple(names), tuple(costs), tuple(edges), tuple(edge_costs), tuple(usages), limit)
    return problem, [(name, part.offset, len(part.problem.nodes)) for name, part in parts]


def _parts(table: StageTable, query: Query) -> list[tuple[str, _Part]]:
    chosen = [("first", table.first, 1)] if query.first else []
    chosen += [(f"layer {kind}", one, times) for kind, (one, times)
               in enumerate(zip(table.layers, query.layers, strict=True)) if times]
    apart = query.first and table.whole is not table.last
    chosen += [("whole", table.whole, 1) if apart else ("last", table.last, 1)] if query.last else []
    parts, offset = [], 0
    for name, one, times in chosen:
        parts.append((name, _Part(one, offset, times)))
        offset += len(one.problem.nodes)
    return parts


def _seams(table: StageTable, query: Query, parts: Sequence[_Part], costs: list[Array],
           edges: list[tuple[int, int]], edge_costs: list[Array]) -> None:
    """Add what lies between layers: conversions of the residual stream, sends to neighbours, tied embeddings."""
    m = float(table.num_micro_batches)
    for left, right in itertools.pairwise(parts):
        edges.append((left.node(left.problem.output), right.node(right.problem.input)))
        made, read = _every(left.table, left.problem.output), _every(right.table, right.problem.input)
        alike = (made.residual[:, None] == read.residual[None]).all(axis=2)
        inner = left.table in table.layers and right.table in table.layers
        edge_costs.append(np.where(alike, 0.0, np.inf) if inner else m * table.between(made, read))
    if not query.first:
        node = parts[0].node(parts[0].problem.input)
        every = _every(parts[0].table, parts[0].problem.input)
        costs[node] = costs[node] + table.send(every, output=False) @ (m, 1.0)
    if not query.last:
        node = parts[-1].node(parts[-1].problem.output)
        every = _every(parts[-1].table, parts[-1].problem.output)
        costs[node] = costs[node] + table.send(every, output=True) @ (m, 1.0)
    if table.tied is None:
        return
    ends = [(parts[0], table.tied[0])] if query.first else []
    ends += [(parts[-1], table.tied[1])] if query.last else []
    nodes = [part.offset + param_node(part.problem, name) for part, name in ends]
    tables = [_every(part.table, param_node(part.problem, name)) for part, name in ends]
    if query.first and query.last:
        layouts = [by_name(one, name) for one, (_, name) in zip(tables, ends, strict=True)]
        same = (layouts[0][:, None, :] == layouts[1][None, :, :]).all(axis=2)
        edges.append((nodes[0], nodes[1]))
        edge_costs.append(np.where(same, 0.0, np.inf))
        return
    for node, one, (_, name) in zip(nodes, tables, ends, strict=True):
        costs[node] = costs[node] + table.tied_sync(one, name)


def _every(table: LayerTable, node: int | None) -> LayerTable:
    """Return a table with a row for every strategy of one node (the other nodes' choices don't matter)."""
    assert node is not None
    count = len(table.problem.nodes[node].terms)
    choice = np.zeros((count, len(table.problem.nodes)), np.int16)
    choice[:, node] = np.arange(count)
    return replace(table, choice=choice, values=np.zeros((count, len(Criterion))))


def solved(table: StageTable, queries: Iterable[Query], solver: str) -> StageTable:
    """Return the stage table whose rows are those that `solver` chooses for some query."""
    kinds = [f"layer {kind}" for kind in range(len(table.layers))]
    rows: dict[str, dict[tuple[int, ...], None]] = {name: {} for name in ("first", *kinds, "last", "whole")}
    for query in queries:
        problem, parts = stage_problem(table, query)
        choice = solve(problem, solver).choice
        if choice is None:
            continue
        for name, offset, count in parts:
            rows[name].setdefault(tuple(choice[offset:offset + count]))
    first, last = (_table(part, rows[name], table) for name, part in (("first", table.first), ("last", table.last)))
    layers = tuple(_table(part, rows[name], table) for name, part in zip(kinds, table.layers, strict=True))
    whole = last if table.whole is table.last else _table(table.whole, rows["whole"], table)
    return replace(table, first=first, layers=layers, last=last, whole=whole)


def _table(part: LayerTable, rows: Iterable[tuple[int, ...]], table: StageTable) -> LayerTable:
    choice = np.array(list(rows), np.int16).reshape(-1, len(part.problem.nodes))
    terms = np.array([part.problem.terms(row) for row in choice]).reshape(len(choice), NUM_TERMS)
    return LayerTable(part.problem, part.policy, terms @ criteria(part.policy), choice)
