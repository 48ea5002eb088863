"""Layer tables are the brute-force Pareto sets, and the best stage is the optimum of the unrolled, tied problem."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from byte_prices import model
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_layers import every_choice, problems, real_setting, without

from autoplan.cluster import Axis
from autoplan.cost.memory import peak_bytes, usable_bytes
from autoplan.cost.model import CostModel
from autoplan.intraop import pricing, tables
from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, ParamNode, layer_problem
from autoplan.intraop.pricing import Setting
from autoplan.intraop.problem import IntraOpProblem, UsageTerm
from autoplan.intraop.solve import solve
from autoplan.intraop.solve.frontier import FINEST
from autoplan.intraop.tables import LayerTable, StageTable, layer_table, restrict
from autoplan.intraop.terms import Criterion, Policy, conversion_weights, criteria
from autoplan.sharding import codes_to_index
from autoplan.workload import Recompute

Array = NDArray[np.float64]
NEIGHBOUR = Axis(size=2, intra=2, nodes=1, sharing=1)
RECOMPUTE = st.sampled_from(list(Recompute))


def functionals(values: Array, m: int, low: float, high: float) -> Array:
    """What dominance is about: seconds a micro-batch, bytes at the two extremes in flight, transient, workspace."""
    t, step, state, saved, transient, workspace = values.T
    return np.stack([t + step / m, state + low * saved, state + high * saved, transient, workspace], axis=1)


def exact_table(problem: LayerProblem, recompute: Recompute, m: int, in_flight: tuple[float, float],
                keep: tuple[str, ...] = ()) -> LayerTable:
    """The table without listing (which keeps dominated rows) and without rounding."""
    with patch.object(tables, "FEW", 0), patch.object(tables, "RESOLUTION", FINEST):
        return layer_table(problem, Policy(recompute), m, in_flight, keep)


def check_pareto(problem: LayerProblem, table: LayerTable, recompute: Recompute, m: int, in_flight: tuple[float, float],
                 tolerance: Array | float, *, minimal: bool) -> None:
    """Every choice is matched by a row of its boundary; no row is beaten by a choice. tolerance: of each functional."""
    choices, terms = every_choice(problem)
    everything = functionals(terms @ criteria(Policy(recompute)), m, *in_flight)
    rows = functionals(table.values, m, *in_flight)
    assert problem.input is not None
    for boundary in np.unique(choices[:, problem.input]):
        points = everything[choices[:, problem.input] == boundary]
        covered = np.zeros(len(points), bool)
        for row in rows[table.choice[:, problem.input] == boundary]:
            covered |= (row <= points + tolerance).all(axis=1)
            # bytes are whole numbers, which rounding leaves alone; seconds may tie in one and not in the other
            beaten = (points[:, 1:] <= row[1:]).all(axis=1) & (points < row - tolerance)[:, 0]
            assert not (minimal and beaten.any())
        assert covered.all()


@settings(max_examples=25, deadline=None)
@given(problems(), RECOMPUTE, st.integers(1, 16), st.integers(1, 8))
def test_a_layer_table_is_the_brute_force_pareto_set(
        problem: LayerProblem, recompute: Recompute, m: int, most: int) -> None:
    in_flight = (1.0, float(most))
    table = exact_table(problem, recompute, m, in_flight)
    _, terms = every_choice(problem)
    noise = 1e-9 * functionals(terms @ criteria(Policy(recompute)), m, *in_flight).max(axis=0)
    check_pareto(problem, table, recompute, m, in_flight, noise, minimal=True)
    for row, values in zip(table.choice, table.values, strict=True):
        assert values == pytest.approx(problem.terms(row) @ criteria(Policy(recompute)), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(problems(), RECOMPUTE, st.integers(1, 16))
def test_rounding_and_listing_miss_no_trade_off_by_more_than_they_say(
        problem: LayerProblem, recompute: Recompute, m: int) -> None:
    """The bound of `frontier`: 2 · (nodes + edges) · resolution · (the greatest entry of every node and edge)."""
    in_flight = (1.0, 4.0)
    table = layer_table(problem, Policy(recompute), m, in_flight)
    forward, backward = conversion_weights(recompute)
    total = np.sum([functionals(node.terms @ criteria(Policy(recompute)), m, *in_flight).max(axis=0)
                    for node in problem.nodes], axis=0)
    for edge in problem.edges:
        cost = forward * edge.forward + backward * edge.backward
        total[0] += cost[np.isfinite(cost)].max()
    parts = len(problem.nodes) + len(problem.edges)
    check_pareto(problem, table, recompute, m, in_flight, 2 * parts * tables.RESOLUTION * total, minimal=False)


@settings(max_examples=15, deadline=None)
@given(problems(), RECOMPUTE, st.integers(1, 16))
def test_scalar_elimination_and_the_milp_are_the_brute_force_optimum(
        problem: LayerProblem, recompute: Recompute, m: int) -> None:
    _, terms = every_choice(problem)
    values = terms @ criteria(Policy(recompute))
    best = (m * values[:, Criterion.T_MICRO_BATCH] + values[:, Criterion.T_STEP]).min()
    ilp = unrolled([(problem, 1)], recompute, m, 1.0, np.inf)
    for solver in ("elimination", "highs"):
        found = solve(ilp, solver)
        assert found.status == "optimal" and found.cost == pytest.approx(best, rel=1e-9)


def test_every_strategy_of_a_kept_parameter_keeps_its_rows() -> None:
    problem = layer_problem(without(model().layer(1), "act"), real_setting((2,), 2, 256))
    assert problem is not None
    table = exact_table(problem, Recompute.NONE, 4, (1.0, 2.0), ("up.weight",))
    node, strategy = table.param("up.weight")
    assert set(strategy.tolist()) == set(range(len(node.layouts)))
    free = exact_table(problem, Recompute.NONE, 4, (1.0, 2.0))
    assert len(free.choice) < len(table.choice)


def test_restricting_keeps_the_strategies_of_one_zero_stage() -> None:
    problem = layer_problem(without(model().layer(1), "act"), real_setting((2,), 2, 256), zero=(0, 1, 2, 3))
    alone = layer_problem(without(model().layer(1), "act"), real_setting((2,), 2, 256), zero=(2,))
    assert problem is not None and alone is not None
    for ours, theirs in zip(restrict(problem, 2).nodes, alone.nodes, strict=True):
        assert (ours.terms == theirs.terms).all()
        assert not isinstance(ours.content, ParamNode) or set(ours.content.zero.tolist()) == {2}
    for ours, theirs in zip(restrict(problem, 2).edges, alone.edges, strict=True):
        assert (ours.forward == theirs.forward).all()


# ------------------------------------------------------------------ stages

def unrolled(parts: list[tuple[LayerProblem, int]], recompute: Recompute, m: int, in_flight: float,
             limit: float) -> IntraOpProblem:
    """The ILP of a stage: each problem's layers, tied (so costs and held bytes times their number), one after another.

    A layer's transient bytes live while it runs, an operator's workspace while that runs; all else lives always.
    """
    weights = criteria(Policy(recompute))
    forward, backward = conversion_weights(recompute)
    names, costs, usages, edges, matrices, starts = [], [], [], [], [], []
    end = sum(len(problem.nodes) for problem, _ in parts)
    for problem, layers in parts:
        begin = len(names)
        starts.append(begin)
        for node in problem.nodes:
            values = node.terms @ weights
            cost = layers * (m * values[:, Criterion.T_MICRO_BATCH] + values[:, Criterion.T_STEP])
            at = len(names)
            names.append(f"{begin}:{node.name}")
            costs.append(cost)
            held = layers * (values[:, Criterion.STATE] + in_flight * values[:, Criterion.SAVED])
            usages.append(UsageTerm(at, 0, end, held))
            usages.append(UsageTerm(at, begin, begin + len(problem.nodes), values[:, Criterion.TRANSIENT]))
            usages.append(UsageTerm(at, at, at + 1, values[:, Criterion.WORKSPACE]))
        for edge in problem.edges:
            edges.append((begin + edge.u, begin + edge.v))
            matrices.append(layers * m * (forward * edge.forward + backward * edge.backward))
    for (left, _), (right, _), at, to in zip(parts, parts[1:], starts, starts[1:], strict=False):
        u, v = left.output if left.output is not None else left.input, right.input
        assert u is not None and v is not None
        a, b = (problem.nodes[node].content for problem, node in ((left, u), (right, v)))
        assert isinstance(a, LayoutNode) and isinstance(b, LayoutNode)
        table = left.setting.conversions(boundary_shape(right))
        i, j = codes_to_index(a.forward, 3), codes_to_index(b.forward, 3)
        edges.append((at + u, to + v))
        matrices.append(m * (forward * table[np.ix_(i, j)] + backward * table[np.ix_(j, i)].T))
    return IntraOpProblem(tuple(names), tuple(costs), tuple(edges), tuple(matrices), tuple(usages), limit)


def boundary_shape(problem: LayerProblem) -> tuple[float, ...]:
    op = problem.layer.ops[0]
    return pricing.tensor_shape(op, op.inputs[0].dims, problem.setting)


def stack(rows: list[LayerTable]) -> tuple[LayerTable, tuple[LayerTable, ...], LayerTable, LayerTable]:
    """The tables of a first layer, one kind in between and a last layer, as `StageTable` takes them."""
    first, layer, last = rows
    return first, (layer,), last, last


def with_memory(setting: Setting, memory: float) -> Setting:
    """The same setting on devices with that much memory."""
    cluster = setting.costs.cluster
    (group,) = cluster.groups
    device = replace(group.node.device, memory_bytes=int(memory))
    small = replace(cluster, groups=(replace(group, node=replace(group.node, device=device)),))
    return replace(setting, costs=CostModel(small, setting.runtime))


@settings(max_examples=15, deadline=None)
@given(problems(), RECOMPUTE, st.sampled_from([1, 4]), st.sampled_from([1, 2, 3]), st.sampled_from([0.0, 0.3, 0.9]),
       st.data())
def test_a_stage_of_equal_layers_is_the_tied_milp(problem: LayerProblem, recompute: Recompute, m: int, layers: int,
                                                  part: float, data: st.DataObject) -> None:
    """Under memory limits from the smallest that anything fits into up to one that doesn't bind."""
    table = exact_table(problem, recompute, m, (1.0, 3.0))
    in_flight = data.draw(st.sampled_from([1.0, 2.0, 3.0]))
    _, terms = every_choice(problem)
    values = terms @ criteria(Policy(recompute))
    peak = peak_bytes(layers * values[:, Criterion.STATE], layers * values[:, Criterion.SAVED],
                      values[:, Criterion.TRANSIENT] + values[:, Criterion.WORKSPACE], in_flight,
                      problem.setting.runtime)
    memory = np.ceil(np.quantile(peak, part)) + 1024
    setting = with_memory(problem.setting, memory)
    stage = StageTable(setting, recompute, m, table, (table,), table, table, None, NEIGHBOUR)
    best = stage.best(first=False, last=False, layers=np.array([[layers]]), in_flight=np.array([in_flight]))

    ilp = unrolled([(problem, layers)], recompute, m, in_flight, usable_bytes(memory, setting.runtime))
    found = solve(with_sends(ilp, problem, m, setting), "highs")
    assert found.status == "optimal"
    assert m * best.time[0, 0] + best.step[0, 0] == pytest.approx(found.cost, rel=1e-7)
    assert best.memory[0, 0] <= memory
    nothing = replace(stage, setting=with_memory(setting, peak.min() - 1024))
    smallest = nothing.best(first=False, last=False, layers=np.array([[layers]]), in_flight=np.array([in_flight]))
    assert np.isinf(smallest.time[0, 0])
    assert smallest.memory[0, 0] == pytest.approx(peak.min(), rel=1e-9)


def with_sends(ilp: IntraOpProblem, problem: LayerProblem, m: int, setting: Setting) -> IntraOpProblem:
    """Add what a stage inside a pipeline waits for its two neighbours."""
    at = problem.input
    assert at is not None
    content = problem.nodes[at].content
    assert isinstance(content, LayoutNode)
    nbytes = pricing.local_bytes(content.forward, boundary_shape(problem), setting)
    costs = list(ilp.costs)
    costs[at] = costs[at] + 2 * m * np.asarray(setting.costs.p2p(nbytes, NEIGHBOUR))
    return replace(ilp, costs=tuple(costs))


@pytest.mark.parametrize("shape", [(2,), (4,)])
@pytest.mark.parametrize("recompute", list(Recompute))
def test_a_whole_model_on_one_stage_is_the_unrolled_milp(shape: tuple[int, ...], recompute: Recompute) -> None:
    """Embedding, equal layers, head: each end its own layout, conversions between, transients one layer at a time."""
    graph = model(vocab_size=4096)
    m, layers, in_flight = 4, 3, 2.0
    setting = real_setting(shape, 4, 512)
    chain = (graph.layer(0), without(graph.layer(1), "act"), graph.layer(3))
    parts = [layer_problem(layer, setting, zero=(0, 1)) for layer in chain]
    first, layer, last = (part for part in parts if part is not None)
    rows = [exact_table(part, recompute, m, (1.0, 2.0)) for part in (first, layer, last)]

    def best(memory: float) -> tables.Best:
        stage = StageTable(with_memory(setting, memory), recompute, m, *stack(rows), None, NEIGHBOUR)
        return stage.best(first=True, last=True, layers=np.array([[layers]]), in_flight=np.array([in_flight]))

    free = best(1e12)
    least, most = float(best(1.0).memory[0, 0]), float(free.memory[0, 0])
    assert least < most
    costs = []
    for part in (0.0, 0.25, 0.75, 1.0):
        memory = np.ceil(least + part * (most - least)) + 1024
        got = best(memory)
        limit = usable_bytes(memory, setting.runtime)
        ilp = unrolled([(first, 1), (layer, layers), (last, 1)], recompute, m, in_flight, limit)
        found = solve(ilp, "highs")
        assert found.status == "optimal"
        assert m * got.time[0, 0] + got.step[0, 0] == pytest.approx(found.cost, rel=1e-7)
        costs.append(found.cost)
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]


@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)])
def test_stages_of_no_equal_layer_cost_the_same_alone_and_in_a_row_of_sizes(ends: tuple[bool, bool]) -> None:
    """A stage may hold an end of the chain alone; asking for several sizes at once must not change it."""
    graph = model(vocab_size=4096)
    setting = real_setting((2,), 4, 512)
    made = [layer_problem(layer, setting) for layer in (graph.layer(0), without(graph.layer(1), "act"), graph.layer(3))]
    rows = [exact_table(part, Recompute.NONE, 4, (1.0, 2.0)) for part in made if part is not None]
    stage = StageTable(setting, Recompute.NONE, 4, *stack(rows), None, NEIGHBOUR)
    both = stage.best(first=ends[0], last=ends[1], layers=np.array([[0], [2]]), in_flight=np.array([1.0]))
    for at, layers in enumerate((0, 2)):
        alone = stage.best(first=ends[0], last=ends[1], layers=np.array([[layers]]), in_flight=np.array([1.0]))
        assert both.time[0, at] == pytest.approx(alone.time[0, 0], rel=1e-9)
        assert both.step[0, at] == pytest.approx(alone.step[0, 0], rel=1e-9)
        assert both.memory[0, at] == pytest.approx(alone.memory[0, 0], rel=1e-9)


def test_sends_count_once_a_boundary_and_virtual_stage() -> None:
    graph = model(vocab_size=4096)
    setting = real_setting((2,), 4, 512)
    made = [layer_problem(graph.layer(index), setting, roles=("tensor",)) for index in (0, 1, 3)]
    rows = [layer_table(part, Policy(Recompute.NONE), 4, (1.0, 1.0)) for part in made if part is not None]
    once = float(setting.costs.p2p(4 * 512 * 512 * 2, NEIGHBOUR))
    for stages, sends in ((1, 1), (2, 1), (4, 3)):
        stage = StageTable(setting, Recompute.NONE, 4, *stack(rows), None, NEIGHBOUR, stages, sends)
        for first, last in ((True, True), (True, False), (False, True), (False, False)):
            row = int(stage.best(first=first, last=last, layers=np.array([[2]]), in_flight=np.array([1.0])).row[0, 0])
            back = first and last and stages > 1  # a pipeline that ends where it began
            boundaries = (not first) + (not last) + back
            assert stage.sent(first, last, (True,), row) == pytest.approx([sends * once * boundaries, 0.0])


def test_hidden_sends_cost_one_way_through_the_pipeline_a_step() -> None:
    graph = model(vocab_size=4096)
    waited = real_setting((2,), 4, 512)
    hidden = replace(waited, runtime=replace(waited.runtime, overlap=replace(waited.runtime.overlap, sends=True)))
    once = float(waited.costs.p2p(4 * 512 * 512 * 2, NEIGHBOUR))
    for setting, stages, sends, expected in (
            (hidden, 4, 3, [0.0, 4 * once]), (hidden, 4, 1, [once, 0.0]), (waited, 4, 3, [3 * once, 0.0])):
        made = [layer_problem(graph.layer(index), setting, roles=("tensor",)) for index in (0, 1, 3)]
        rows = [layer_table(part, Policy(Recompute.NONE), 4, (1.0, 1.0)) for part in made if part is not None]
        stage = StageTable(setting, Recompute.NONE, 4, *stack(rows), None, NEIGHBOUR, stages, sends)
        row = int(stage.best(first=True, last=False, layers=np.array([[2]]), in_flight=np.array([1.0])).row[0, 0])
        assert stage.sent(True, False, (True,), row) == pytest.approx(expected)


def test_tied_embeddings_cost_one_copy_on_one_stage_and_a_reduction_on_two() -> None:
    graph = model(vocab_size=4096, tied_embeddings=True)
    setting = real_setting((2,), 4, 512)
    tied = ("embedding.table", "head.weight")
    chain = (graph.layer(0), graph.layer(1), graph.layer(3))
    made = [layer_problem(layer, setting, roles=("tensor",)) for layer in chain]
    whole = layer_problem(chain[2], setting, roles=("tensor",), shared=frozenset({tied[1]}))
    assert whole is not None
    kept = [problem for problem in (*made, whole) if problem is not None]
    first, layer, last, shared = (layer_table(problem, Policy(Recompute.NONE), 4, (1.0, 1.0)) for problem in kept)
    table_bytes = 4096 * 512 / 2 * (2 + 2 + 12)
    state = Criterion.STATE
    assert last.values[0, state] - shared.values[0, state] == pytest.approx(table_bytes)
    both = StageTable(setting, Recompute.NONE, 4, first, (layer,), last, shared, tied, NEIGHBOUR)
    loose = replace(both, tied=None)
    copy = float(setting.costs.all_reduce(4096 * 512 / 2 * 2, NEIGHBOUR))
    for ends, more in (((True, True), 0.0), ((True, False), copy), ((False, True), copy), ((False, False), 0.0)):
        a, b = (stage.combinations(*ends, (True,)).fixed[0, Criterion.T_STEP] for stage in (both, loose))
        assert a - b == pytest.approx(more)
