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


@pytest.mark.parametrize(("change", "word"), [
    (lambda p: p["problem"].pop("edges"), "edges"),
    (lambda p: p["problem"]["nodes"].pop("costs"), "costs"),
    (lambda p: p["problem"]["edges"]["nodes"].append([0, 9]), "IOPDDL"),
    (lambda p: p["problem"]["edges"]["costs"][0].pop(), "IOPDDL"),
    (lambda p: p["problem"]["nodes"].update(intervals=None), "IOPDDL"),
    (lambda p: p["problem"]["nodes"]["usages"].__setitem__(0, [-1, 2]), "IOPDDL"),
    (lambda p: p.update(problem=None), "IOPDDL"),
])
def test_a_file_that_is_not_in_the_format_is_one_clear_error(tmp_path, change, word):
    data = small()
    change(data)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=word):
        read_problem(path)


@pytest.mark.parametrize(("name", "content"), [
    ("no.json", None), ("cut.json", b'{"problem'), ("bad.json.gz", b"plain")])
def test_a_file_that_can_not_be_read_is_one_clear_error(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_problem(tmp_path / name)
