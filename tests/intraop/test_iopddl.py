import gzip
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from small_problems import problems

from autoplan.errors import InputError
from autoplan.intraop.iopddl import FORBIDDEN, read_problem, write_problem
from autoplan.intraop.problem import IntraOpProblem, UsageTerm
from autoplan.intraop.solve.brute_force import brute_force


def small() -> dict:
    return {"problem": {"nodes": {"intervals": [[0, 2], [3, 3]], "costs": [[1, FORBIDDEN], [3, 4]],
                                  "usages": [[5, 6], [7, 8]]},
                        "edges": {"nodes": [[1, 0]], "costs": [[10, 20, 30, 40]]}, "usage_limit": 5}}


def test_reads_the_contest_format(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    problem = read_problem(path)
    assert problem.costs[0].tolist() == [1.0, math.inf] and problem.limit == 5.0
    assert problem.edge_costs[0].tolist() == [[10.0, 20.0], [30.0, 40.0]]
    found = problem.evaluate((0, 1))
    assert (found.cost, found.peak, found.feasible) == (1 + 4 + 30, 5.0, True)


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
@given(problem=problems(whole=True))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_written_problem_reads_back_with_the_same_optimum(tmp_path_factory, name, problem):
    path = tmp_path_factory.mktemp("iopddl") / name
    write_problem(problem, path)
    back = read_problem(path)
    assert back.limit == problem.limit
    ours = brute_force(problem)
    if len(back.costs) == len(problem.costs):
        assert brute_force(back).choice == ours.choice
    if ours.choice is not None:
        companions = [t.node for i, t in enumerate(problem.usages) if t.node in [u.node for u in problem.usages[:i]]]
        copied = (*ours.choice, *(ours.choice[node] for node in companions))
        assert back.evaluate(copied) == problem.evaluate(ours.choice)


def test_a_second_usage_term_becomes_a_tied_companion_node(tmp_path):
    usages = (UsageTerm(0, 0, 1, np.array([1.0, 2.0])), UsageTerm(0, 0, 1, np.array([10.0, 20.5])))
    problem = IntraOpProblem(("a",), (np.array([0.5, 1.0]),), (), (), usages, 40.0)
    write_problem(problem, tmp_path / "p.json")
    back = read_problem(tmp_path / "p.json")
    finite = [c for c in itertools.product(range(2), repeat=2) if back.evaluate(c).feasible]
    assert finite == [(0, 0), (1, 1)]
    assert back.evaluate((1, 1)).peak == 22.5 and back.evaluate((0, 0)).cost == 0.5


def put(*path, value):
    """Return a change of `small()` at this path in the problem."""
    def change(data):
        at = data["problem"]
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
    return change


@pytest.mark.parametrize(("change", "key"), [
    (lambda p: p.update(problem=None), "problem"),
    (lambda p: p.pop("problem"), "problem"),
    (lambda p: p["problem"].pop("edges"), "problem.edges"),
    (lambda p: p["problem"]["nodes"].pop("costs"), "problem.nodes.costs"),
    (put("nodes", "costs", value={}), "problem.nodes.costs"),
    (put("nodes", "costs", 1, value=[]), "problem.nodes.costs[1]"),
    (put("nodes", "costs", 1, value=[3, -4]), "problem.nodes.costs[1][1]"),
    (put("nodes", "costs", 1, value=[3, "4"]), "problem.nodes.costs[1][1]"),
    (put("nodes", "costs", 1, value=[True, 4]), "problem.nodes.costs[1][0]"),
    (put("nodes", "costs", 1, value=[3, 10**400]), "problem.nodes.costs[1][1]"),
    (put("nodes", "intervals", value=None), "problem.nodes.intervals"),
    (put("nodes", "intervals", value=[[0, 2]]), "problem.nodes.intervals"),
    (put("nodes", "intervals", 0, value=[70, 30]), "problem.nodes.intervals[0]"),
    (put("nodes", "intervals", 1, value=[0, 1.5]), "problem.nodes.intervals[1]"),
    (put("nodes", "intervals", 1, value=[0, 2**63]), "problem.nodes.intervals[1]"),
    (put("nodes", "intervals", 1, value=[0]), "problem.nodes.intervals[1]"),
    (put("nodes", "usages", 0, value=[-1, 2]), "problem.nodes.usages[0][0]"),
    (put("nodes", "usages", 0, value=["1", 2]), "problem.nodes.usages[0][0]"),
    (put("nodes", "usages", 0, value=[[1], 2]), "problem.nodes.usages[0][0]"),
    (put("nodes", "usages", 0, value=[1]), "problem.nodes.usages[0]"),
    (put("nodes", "usages", 0, value=5), "problem.nodes.usages[0]"),
    (put("edges", "nodes", value=[[1, 1]]), "problem.edges.nodes[0]"),
    (put("edges", "nodes", value=[[1, 2]]), "problem.edges.nodes[0]"),
    (put("edges", "nodes", value=[[-1, 0]]), "problem.edges.nodes[0]"),
    (put("edges", "nodes", value=[["1", 0]]), "problem.edges.nodes[0]"),
    (put("edges", "nodes", value=[[1, 0], [1, 0]]), "problem.edges.costs"),
    (put("edges", "costs", 0, value=[1, 2, 3]), "problem.edges.costs[0]"),
    (put("edges", "costs", 0, value=[1, 2, 3, -4]), "problem.edges.costs[0][3]"),
    (put("usage_limit", value="50"), "problem.usage_limit"),
    (put("usage_limit", value=-1), "problem.usage_limit"),
    (put("usage_limit", value=True), "problem.usage_limit"),
    (put("usage_limit", value=10**400), "problem.usage_limit"),
])
def test_what_the_format_does_not_allow_is_told_with_file_and_key(tmp_path, change, key):
    data = small()
    change(data)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as failure:
        read_problem(path)
    assert (failure.value.where, failure.value.key) == (str(path), key)
    assert len(str(failure.value)) < len(str(path)) + 250


@pytest.mark.parametrize(("name", "content"), [
    ("no.json", None), ("cut.json", b'{"problem'), ("bad.json.gz", b"plain"),
    ("short.json.gz", gzip.compress(b"{}" * 99)[:20]),
    ("broken.json.gz", gzip.compress(b"{}" * 99)[:10] + b"\xff" * 40),
    ("latin.json", b'{"problem": "\xe9"}'), ("nan.json", b'{"problem": NaN}'), ("long.json", b"9" * 5000)])
def test_a_file_that_can_not_be_read_is_one_clear_error(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_problem(tmp_path / name)
