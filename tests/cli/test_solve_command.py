"""`autoplan solve` on the contest's small example."""

import json

import pytest

from autoplan.cli import main

EXAMPLE = {"problem": {
    "name": "example",
    "nodes": {"intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
              "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
              "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]]},
    "edges": {"nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
              "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]]},
    "usage_limit": 50}}


@pytest.fixture
def problem(tmp_path):
    def write(limit=50):
        path = tmp_path / "problem.json"
        path.write_text(json.dumps({"problem": EXAMPLE["problem"] | {"usage_limit": limit}}))
        return str(path)
    return write


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["solve", *arguments])
    return stop.value.code


def test_json_tells_cost_bound_and_peak_and_the_file_holds_the_choice(problem, tmp_path, capsys):
    out = tmp_path / "solution.json"
    assert run(problem(), "--json", "-o", str(out)) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["feasible"], report["gap"], report["peak_usage"]) == ("optimal", True, 0, 50)
    assert report["cost"] == report["lower_bound"] and isinstance(report["cost"], int)
    assert json.loads(out.read_text()) == [0, 0, 2, 1, 0]


def test_the_table_groups_digits(problem, capsys):
    assert run(problem()) == 0
    printed = capsys.readouterr().out
    assert "optimal" in printed and "5 nodes, 5 edges" in printed


def test_nothing_fits_is_exit_one_and_one_line(problem, capsys):
    assert run(problem(10), "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["status"] == "infeasible"
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["nowhere.json"], ["{}", "--time-limit", "0"], ["{}", "--jobs", "0"]])
def test_bad_input_is_exit_two(problem, arguments, capsys):
    assert run(*[problem() if a == "{}" else a for a in arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
