import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_problems import problems

import autoplan.intraop.solve.messages as messages
from autoplan.intraop.solve.elimination import tabulate
from autoplan.intraop.solve.frontier import frontier
from autoplan.intraop.solve.pareto import pareto_rows

LAW = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def cases(draw, combine=None, prune=False):
    """A whole-valued problem with criteria: costs, edges, edge costs, kept nodes, combine, prune."""
    problem = draw(problems(usage=False, whole=True))
    n = len(problem.costs)
    how = ("sum", *draw(st.lists(st.sampled_from(["sum", "max"]), max_size=3))) if combine is None else combine
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    costs = []
    for cost in problem.costs:
        costs.append(rng.integers(0, 5, (cost.size, len(how))).astype(float))
        costs[-1][:, 0] = cost
    weights = None
    if prune:
        least = draw(st.sampled_from([-1, 0]))
        weights = rng.integers(least, 4, (draw(st.integers(1, 3)), len(how))).astype(float)
        weights[:, [h == "max" for h in how]] = 0
    keep = tuple(draw(st.permutations(range(n)))[:draw(st.integers(0, min(2, n)))])
    return costs, problem.edges, problem.edge_costs, keep, how, weights


def functionals(values, combine, prune):
    is_max = np.array([h == "max" for h in combine])
    sums = values[..., ~is_max] if prune is None else values @ prune.T
    return np.concatenate([sums, values[..., is_max]], axis=-1)


def every_choice(costs, edges, edge_costs, combine):
    is_max = np.array([h == "max" for h in combine])
    for choice in itertools.product(*(range(len(c)) for c in costs)):
        rows = np.array([c[s] for c, s in zip(costs, choice, strict=True)])
        if not np.isfinite(rows).all():
            continue
        value = np.where(is_max, rows.max(axis=0), rows.sum(axis=0))
        value[0] += sum(m[choice[u], choice[v]] for (u, v), m in zip(edges, edge_costs, strict=True))
        if np.isfinite(value[0]):
            yield choice, value


def brute_frontier(costs, edges, edge_costs, keep, combine, prune):
    """Per kept assignment the non-dominated functionals, each with its lexicographically first choice."""
    found: dict[tuple, dict[tuple, tuple]] = {}
    for choice, value in every_choice(costs, edges, edge_costs, combine):
        key = tuple(choice[k] for k in keep)
        found.setdefault(key, {}).setdefault(tuple(functionals(value, combine, prune).tolist()), choice)
    return {(key, row): choice for key, rows in found.items() for row, choice in rows.items()
            if not any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows)}


def check(case, *, choices=False):
    costs, edges, edge_costs, keep, combine, prune = case
    found = frontier(*case)
    expected = brute_frontier(*case)
    rows = functionals(found.values, combine, prune)
    got = {(tuple(k.tolist()), tuple(r.tolist())): tuple(c.tolist())
           for k, r, c in zip(found.kept, rows, found.choice, strict=True)}
    assert len(got) == len(rows)
    assert got.keys() == expected.keys()
    if choices:
        assert got == expected
    priced = dict(every_choice(costs, edges, edge_costs, combine))
    for choice, value in zip(found.choice.tolist(), found.values, strict=True):
        assert np.array_equal(priced[tuple(choice)], value)
    assert np.array_equal(found.kept, found.choice[:, list(keep)])
    again = frontier(*case)
    assert np.array_equal(again.choice, found.choice) and np.array_equal(again.values, found.values)


@LAW
@given(case=cases())
def test_the_frontier_is_the_pareto_set_of_brute_force(case):
    check(case)


@LAW
@given(case=cases(combine=("sum", "max", "max")))
def test_the_frontier_is_complete_with_criteria_that_compose_by_max(case):
    check(case)


@LAW
@given(case=cases(prune=True))
def test_the_frontier_is_the_pareto_set_of_the_functionals(case):
    check(case)


@LAW
@given(case=cases(combine=("sum", "sum")))
def test_of_equal_rows_the_lexicographically_first_choice_is_kept(case):
    costs, edges, edge_costs, keep, combine, _ = case
    check((costs, edges, [np.zeros(m.shape) for m in edge_costs], keep, combine, None), choices=True)


@LAW
@given(case=cases(), chunk=st.integers(1, 40))
def test_the_size_of_the_chunks_does_not_matter(case, chunk):
    whole = frontier(*case)
    before, messages._CHUNK_ROWS = messages._CHUNK_ROWS, chunk
    try:
        parts = frontier(*case)
    finally:
        messages._CHUNK_ROWS = before
    assert np.array_equal(whole.choice, parts.choice)


@LAW
@given(problem=problems(usage=False))
def test_one_criterion_is_the_marginal_table(problem):
    keep = tuple(range(min(2, len(problem.costs))))
    table = tabulate(problem, keep)
    found = frontier([c[:, None] for c in problem.costs], problem.edges, problem.edge_costs, keep, ("sum",))
    assert len(found.values) == np.isfinite(table.values).sum()
    got = table.values[tuple(found.kept.T)]
    np.testing.assert_allclose(found.values[:, 0], got, rtol=1e-11)


@LAW
@given(case=cases(prune=True), resolution=st.sampled_from([2.0**-3, 2.0**-6, 0.01]))
def test_a_coarse_resolution_misses_no_trade_off_by_more_than_it_says(case, resolution):
    costs, edges, edge_costs, keep, combine, prune = case
    found = frontier(*case, resolution=resolution)
    rows = functionals(found.values, combine, prune)
    finite = [np.where(np.isfinite(c), c, 0.0) for c in costs]
    total = sum(np.abs(functionals(c, combine, prune)).max(axis=0) for c in finite)
    total[:len(prune)] += np.abs(prune[:, 0]) * sum(np.where(np.isfinite(m), m, 0.0).max() for m in edge_costs)
    slack = 2 * (len(costs) + len(edges)) * resolution * total + 1e-9
    for key, row in brute_frontier(*case):
        near = rows[(found.kept == key).all(axis=1)] if keep else rows
        assert ((near <= np.array(row) + slack).all(axis=1)).any()


def test_sums_in_another_order_do_not_multiply_rows():
    # Three equal thirds sum to the same in any order up to rounding; the other criterion rounds the other way.
    thirds = [np.array([[0.1, 0.7], [0.2, 0.6], [0.3, 0.5]])] * 3
    assert len(frontier(thirds, [], [], (), ("sum", "sum")).values) == 7


def test_choices_of_many_nodes_are_packed_in_order():
    # 60 nodes of 5 strategies need more than two words of 64 bits; the choice is forced by node costs.
    rng = np.random.default_rng(0)
    best = rng.integers(0, 5, 60)
    costs = [np.where(np.arange(5) == b, 0.0, 1.0)[:, None] for b in best]
    edges = [(i, i + 1) for i in range(59)]
    found = frontier(costs, edges, [np.zeros((5, 5))] * 59, (59,), ("sum",))
    assert found.kept.ravel().tolist() == list(range(5))
    assert found.choice[best[59]].tolist() == best.tolist()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 300), groups=st.integers(1, 5), columns=st.integers(1, 4),
       most=st.integers(1, 30))
def test_rows_of_groups_are_pruned_as_one_by_one(seed, rows, groups, columns, most):
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(0, groups, rows))
    values = rng.integers(0, most, (columns, rows)).astype(float)
    words = rng.permutation(rows).astype(np.uint64)[None]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    kept = pareto_rows(values, starts, lambda index: words[:, index])
    expected = [
        r for r in range(rows) if not any(
            group[q] == group[r] and (values[:, q] <= values[:, r]).all()
            and ((values[:, q] < values[:, r]).any() or words[0, q] < words[0, r]) for q in range(rows))]
    assert sorted(kept.tolist()) == expected
    assert np.all(np.diff(group[kept]) >= 0)


@pytest.mark.parametrize(("change", "word"), [
    ({"costs": []}, "node"), ({"costs": [np.zeros((2, 3))]}, "shape"), ({"combine": ("max", "sum")}, "criterion 0"),
    ({"combine": ("sum", "min")}, "criterion 0"), ({"keep": (0, 0)}, "repeat"), ({"prune": np.ones((1, 3))}, "prune"),
    ({"combine": ("sum", "max"), "prune": np.ones((1, 2))}, "zeros"),
])
def test_arrays_that_do_not_agree_are_refused(change, word):
    good = {"costs": [np.zeros((2, 2))], "edges": [], "edge_costs": [], "keep": (0,), "combine": ("sum", "sum")}
    assert len(frontier(**good).values) == 2
    with pytest.raises(ValueError, match=word):
        frontier(**good | change)


@pytest.mark.parametrize("resolution", [0.0, 1e-20, 1.0, float("nan")])
def test_a_resolution_finer_than_rounding_or_coarser_than_all_is_refused(resolution):
    with pytest.raises(ValueError, match="resolution"):
        frontier([np.zeros((1, 1))], [], [], (), ("sum",), resolution=resolution)
