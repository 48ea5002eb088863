"""Builds the tables of stages, each once: what differs only in what a problem doesn't see shares it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from autoplan.cluster import Axis, Cluster, Mesh
from autoplan.cost.model import CostModel
from autoplan.cost.schedules import in_flight
from autoplan.intraop.layer_problem import LayerProblem, layer_problem
from autoplan.intraop.pricing import Setting, attention_kernel
from autoplan.intraop.tables import LayerTable, StageTable, layer_table, restrict
from autoplan.intraop.terms import Policy, layer_policies
from autoplan.intraop.unrolled import Query, solved
from autoplan.model.graph import LayerClass
from autoplan.runtimes import Runtime
from autoplan.search.space import Candidate, Chain
from autoplan.workload import Attention, Recompute, Workload

ZERO_STAGES = (0, 1, 2, 3)


@dataclass
class Counters:
    """What the search did: intra-operator problems built, tables solved and the seconds that took, tables found in the
    cache."""

    problems: int = 0
    solves: int = 0
    seconds: float = 0.0
    hits: int = 0


@dataclass(frozen=True)
class Problems:
    """The problems of a chain's classes in one setting."""

    first: LayerProblem
    layers: tuple[LayerProblem, ...]
    last: LayerProblem

    @property
    def all(self) -> tuple[LayerProblem, ...]:
        """The problems in the order of the chain, each kind once."""
        return (self.first, *self.layers, self.last)


@dataclass
class Pricer:
    """Prices stages of one chain on one cluster under one runtime and workload."""

    chain: Chain
    cluster: Cluster
    costs: CostModel
    runtime: Runtime
    workload: Workload
    solver: str = "auto"
    shard: int | None = None  # ranks of the data axis over which ZeRO splits; None: all
    counters: Counters = field(default_factory=Counters)
    _problems: dict[object, Problems | None] = field(default_factory=dict)
    _tables: dict[object, LayerTable] = field(default_factory=dict)
    kept: dict[object, object] = field(default_factory=dict)  # what bounds have computed

    @property
    def attention(self) -> Attention:
        """The kernel of attention."""
        return attention_kernel(self.workload, self.cluster.device)

    def policies(self, candidate: Candidate, recompute: Recompute) -> tuple[Policy, Policy, Policy]:
        """Return the policies of the first, a repeated and the last layer."""
        return layer_policies(recompute, candidate.schedule, all_again=self.runtime.recomputes_ends)

    def problems(self, mesh: Mesh, micro_batch: int, roles: tuple[str, ...] | None) -> Problems | None:
        """Return the problems of all classes, with every ZeRO stage; None where the roles don't divide the model."""
        key = (mesh, micro_batch, roles)
        if key not in self._problems:
            layer = self.layer_alone(mesh, micro_batch, roles)
            self._problems[key] = None if layer is None else self._build(layer, roles)
        return self._problems[key]

    def layer_alone(self, mesh: Mesh, micro_batch: int, roles: tuple[str, ...] | None) -> LayerProblem | None:
        """Return the problem of the first kind of layer in between, with every ZeRO stage."""
        key = ("layer", mesh, micro_batch, roles)
        if key not in self.kept:
            setting = Setting(mesh, self.costs, self.runtime, self.workload, micro_batch, self.shard)
            self.kept[key] = self._problem(self.chain.layers[0], setting, roles)
        found = self.kept[key]
        assert found is None or isinstance(found, LayerProblem)
        return found

    def _build(self, layer: LayerProblem, roles: tuple[str, ...] | None) -> Problems | None:
        first, *others, last = (self._problem(one, layer.setting, roles)
                                for one in (self.chain.first, *self.chain.layers[1:], self.chain.last))
        kinds = tuple(one for one in others if one is not None)
        if first is None or last is None or len(kinds) < len(others):
            return None
        return Problems(first, (layer, *kinds), last)

    def _problem(self, layer: LayerClass, setting: Setting, roles: tuple[str, ...] | None,
                 shared: frozenset[str] = frozenset()) -> LayerProblem | None:
        self.counters.problems += 1
        return layer_problem(layer, setting, zero=ZERO_STAGES, roles=roles, shared=shared)

    def _between(self, size: int, start: int) -> tuple[int, ...]:
        """Return, by kind, `size` layers in between from the one at `start` on."""
        counts = self.chain.before[start + size] - self.chain.before[start]
        return tuple(int(one) for one in counts)

    def tail(self, problems: Problems, candidate: Candidate) -> LayerProblem:
        """Return the last layer's problem: in a stage that holds the first too, tied embeddings are stored once."""
        if self.chain.tied is None or not candidate.joined:
            return problems.last
        key = ("whole", id(problems))
        if key not in self.kept:
            shared = frozenset({self.chain.tied[1]})
            self.kept[key] = self._problem(self.chain.last, problems.last.setting, candidate.roles, shared)
        found = self.kept[key]
        assert isinstance(found, LayerProblem)
        return found

    def stage_table(self, candidate: Candidate, recompute: Recompute, zero: int, neighbour: Axis) -> StageTable | None:
        """Return the table of all stages of a candidate at one recompute policy and ZeRO stage."""
        problems = self.problems(candidate.mesh, candidate.micro_batch, candidate.roles)
        if problems is None:
            return None
        m = candidate.num_micro_batches
        tied = self.chain.tied
        most = in_flight(candidate.schedule, 0, candidate.num_stages, m, candidate.virtual_stages,
                         self.runtime.extra_in_flight)
        ends = self.policies(candidate, recompute)

        def table(problem: LayerProblem, policy: Policy, keep: str | None = None) -> LayerTable:
            key = (id(problem), policy, zero, m if candidate.roles is None else None, most)
            if key in self._tables:
                self.counters.hits += 1
            else:
                begin = time.perf_counter()
                self._tables[key] = layer_table(restrict(problem, zero), policy, m, (min(1.0, most), most),
                                                () if keep is None else (keep,))
                self.counters.solves += 1
                self.counters.seconds += time.perf_counter() - begin
            return self._tables[key]

        first = table(problems.first, ends[0], tied and tied[0])
        layers = tuple(table(one, ends[1]) for one in problems.layers)
        last = table(problems.last, ends[2], tied and tied[1])
        whole = table(self.tail(problems, candidate), ends[2], tied and tied[1]) if candidate.joined else last
        found = StageTable(problems.first.setting, recompute, m, first, layers, last, whole, tied, neighbour,
                           candidate.num_stages, candidate.virtual_stages)
        return found if self.solver == "auto" else self._by_solver(found, candidate)

    def _by_solver(self, table: StageTable, candidate: Candidate) -> StageTable:
        """Return the table with the rows that the user's solver finds, for every stage the candidate may have."""
        p, m, count = candidate.num_stages, candidate.num_micro_batches, self.chain.count
        key = (*(id(one) for one in (table.first, *table.layers, table.last, table.whole)), candidate)
        if key not in self.kept:
            queries = []
            for index in range(p):
                held = in_flight(candidate.schedule, index, p, m, candidate.virtual_stages,
                                 self.runtime.extra_in_flight)
                first, last = index == 0, index == (0 if candidate.joined else p - 1)
                some = range(count + 1) if first or last else range(1, count + 1)
                every = (count,) if p == 1 else some
                starts = (0,) if first else range(count) if not last else None
                stages = {self._between(size, start) for size in every
                          for start in (starts if starts is not None else (count - size,)) if start + size <= count}
                queries += [Query(first, last, layers, held) for layers in sorted(stages)]
            begin = time.perf_counter()
            self.kept[key] = solved(table, queries, self.solver)
            self.counters.solves += len(queries)
            self.counters.seconds += time.perf_counter() - begin
        found = self.kept[key]
        assert isinstance(found, StageTable)
        return found
