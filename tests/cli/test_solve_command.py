"""`autoplan solve` on the contest's small example."""

import json
from pathlib import Path

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


def test_a_conflict_names_the_window_who_holds_what_and_the_limit(problem, capsys):
    assert run(problem(5), "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["conflict"] == {
        "start": 50, "end": 70, "excess": 45, "least_usage": 50, "nodes": [1, 2, 0], "num_nodes": 3}
    for part in ("50 ≤ t < 70", "at least 50 bytes", "the limit of 5 ", "nodes 1, 2, 0"):
        assert part in captured.err


def test_forbidden_costs_alone_are_named_as_the_reason(tmp_path, capsys):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"problem": {"nodes": {"intervals": [[0, 1]], "costs": [[10**18]], "usages": [[1]]},
                                            "edges": {"nodes": [], "costs": []}}}))
    assert run(str(path)) == 1
    assert capsys.readouterr().err.endswith("no choice avoids all forbidden costs\n")


def test_nothing_to_choose_is_optimal_at_no_cost(tmp_path, capsys):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"problem": {"nodes": {"intervals": [], "costs": [], "usages": []},
                                            "edges": {"nodes": [], "costs": []}, "usage_limit": 5}}))
    assert run(str(path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["cost"], report["nodes"], report["edges"]) == ("optimal", 0, 0, 0)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "0.05", "1e12", "soon"])
def test_a_time_limit_that_is_no_time_is_refused(problem, seconds, capsys):
    assert run(problem(), "--time-limit", seconds) == 2
    assert "--time-limit" in capsys.readouterr().err


@pytest.mark.parametrize("content", [
    None, b"[]", b"5", b"\xff\xfe\x00x", b"", b'{"problem": NaN}', b"[" * 200_000, b"9" * 5000])
def test_a_file_that_is_no_problem_is_told_without_words_of_python(tmp_path, content, capsys):
    path = tmp_path / "p.json"
    if content is not None:
        path.write_bytes(content)
    assert run(str(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ") and error.count("\n") == 1
    assert not any(word in error for word in ("Errno", "indices", "codec", "recursion", "sys.", "NoneType"))


def test_a_folder_is_no_problem(tmp_path, capsys):
    assert run(str(tmp_path)) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: can't be read: Is a directory\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_takes_nothing_is_named(problem, capsys):
    assert run(problem(), "-o", "/dev/full") == 2
    assert capsys.readouterr().err.startswith("error: --output: can't be written: ")
