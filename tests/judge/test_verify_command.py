"""`autoplan verify` and `autoplan export` on plans of a small model: figures, numbers, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoplan.cli import main

MODEL = """
layers: 2
hidden: 64
heads: 8
kv_heads: 4
ffn: 128
gated: true
vocab_size: 100
seq_len: 32
biases: [qkv]
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err
    return call


@pytest.fixture
def plan(run: Callable[..., tuple[int, str, str]], model: str, tmp_path: Path) -> Callable[..., str]:
    def estimate(devices: int, **options: object) -> str:
        path = str(tmp_path / "plan.json")
        flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        code, _, err = run("estimate", model, f"dgx-h100:{devices}", "--micro-batch-size", "4", "--global-batch-size",
                           "16", *(flag for flag in flags if flag != "True"), "-o", path)
        assert code == 0, err
        return path
    return estimate


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[int, str, str, int], tuple[float, float]]:
    return {(row["stage"], row["layer"], row["collective"], row["group"]):
            (row["predicted_bytes"], row["compiled_bytes"]) for row in rows}


def test_a_plan_is_what_xla_makes_of_it(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                        model: str) -> None:
    """Two stages of 2 × 2 devices, sequence parallelism and ZeRO-1: figures by layer, and a run of small stages."""
    pytest.importorskip("jax")
    path = plan(8, pp=2, dp=2, tp=2, zero=1, sequence_parallel=True)
    code, out, err = run("verify", path, "--model", model, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["loss_matches"] is True and result["largest_difference"] < 1e-4
    assert result["max_relative_error"] < 0.01  # norms: over data and model at once, or one after the other
    assert [(row["stage"], row["layer"], row["layers"]) for row in result["flops"]] == [
        (0, "embedding", 1), (0, "layer", 1), (1, "layer", 1), (1, "head", 1)]
    sent = by_key(result["collectives"])
    for row in result["argument_bytes"]:
        assert row["predicted"] == row["compiled"] > 0
    stream = 8 * 32 * 64 * 4 / 2  # of the sequences that two devices share
    assert sent[0, "layer", "all_gather", 2][0] == pytest.approx(sent[0, "layer", "all_gather", 2][1])
    assert sent[0, "layer", "reduce_scatter", 2][1] > 4 * stream / 2
    assert sent[0, "layer", "reduce_scatter", 2] == sent[1, "layer", "reduce_scatter", 2]


def test_the_table_names_layers_and_says_what_was_judged(run: Callable[..., tuple[int, str, str]],
                                                         plan: Callable[..., str], model: str) -> None:
    pytest.importorskip("jax")
    path = plan(2, dp=2)
    code, out, _ = run("verify", path, "--model", model, "--scale", "small")
    assert code == 0
    assert "layer ×2" in out and "all-reduce" in out and "small sizes" in out
    assert "equal the unsharded ones" in out


def test_what_xla_is_known_for_is_said(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                       model: str) -> None:
    """Four key and value heads on eight devices: all layers share a mesh whose axis is split; figures differ."""
    pytest.importorskip("jax")
    code, out, err = run("verify", plan(8, tp=8), "--model", model, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["loss_matches"] is True
    assert result["max_relative_error"] > 0.01
    assert any("key and value heads on several devices" in note for note in result["notes"])
    sent = by_key(result["collectives"])
    (ours, theirs), = [row for key, row in sent.items() if key[1:] == ("layer", "all_reduce", 8)]
    assert ours == pytest.approx(theirs)


def test_sharded_results_that_differ_are_an_error(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                                  model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setattr("autoplan.judge.verify.SAME", 0.0)
    code, _, err = run("verify", plan(2, tp=2), "--model", model, "--scale", "small")
    assert code == 1 and "differ from the unsharded ones" in err


def test_without_jax_the_extra_is_named(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                        model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan(2, dp=2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run("verify", path, "--model", model)
    assert code == 2 and "autoplan-parallel[jax]" in err and err.count("\n") == 1


def test_a_model_that_is_not_the_plans_is_refused(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                                  model: str) -> None:
    path = plan(2, dp=2)
    code, _, err = run("verify", path)
    assert code == 2 and "--model" in err
    code, _, err = run("export", path, "--to", "jax", "--model", "gpt-350m")
    assert code == 2 and "not the model that was planned" in err


def test_shardings_that_miss_an_operator_are_refused(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                                     model: str) -> None:
    path = plan(2, dp=2)
    content = json.loads(Path(path).read_text())
    del content["stages"][0]["shardings"]["head.loss"]  # what no operator reads: only the model tells
    Path(path).write_text(json.dumps(content))
    code, _, err = run("export", path, "--to", "jax", "--model", model)
    assert code == 2 and "stages[0].shardings.head.loss" in err


def test_export_writes_every_parameter_and_activation(run: Callable[..., tuple[int, str, str]],
                                                      plan: Callable[..., str], model: str) -> None:
    path = plan(8, dp=2, tp=4, zero=3)
    code, out, _ = run("export", path, "--to", "jax", "--model", model)
    assert code == 0
    (stage,) = json.loads(out)["stages"]
    assert stage["mesh"] == {"shape": [2, 4], "axes": ["data", "model"]}
    layer = stage["layers"]["layer"]
    assert layer["count"] == 2
    assert layer["params"]["q.weight"] == {
        "dims": ["hidden", "heads", "head_dim"], "read": [None, "model", None], "weight": ["data", "model", None],
        "gradient": ["data", "model", None], "state": ["data", "model", None]}
    assert layer["activations"]["o"] == {
        "dims": ["batch", "seq", "hidden"], "inputs": {"attention": ["data", None, "model", None]}, "output": None}
    assert layer["activations"]["add2"]["output"] == ["data", None, None]


def test_heads_on_several_devices_split_an_axis(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                                model: str) -> None:
    """8 devices, 4 key and value heads: each is on two, and queries are split over both parts of the axis."""
    code, out, _ = run("export", plan(8, tp=8), "--to", "jax", "--model", model)
    assert code == 0
    (stage,) = json.loads(out)["stages"]
    assert stage["mesh"] == {"shape": [1, 4, 2], "axes": ["data", "model", "model_copies"]}
    params = stage["layers"]["layer"]["params"]
    assert params["k.weight"]["read"] == [None, "model", None]
    assert params["q.weight"]["read"] == [None, ["model", "model_copies"], None]


def test_the_python_module_holds_partition_specs(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str],
                                                 model: str, tmp_path: Path) -> None:
    jax_sharding = pytest.importorskip("jax.sharding")
    target = tmp_path / "shardings.py"
    code, out, _ = run("export", plan(8, dp=2, tp=4, zero=1), "--to", "jax", "--model", model, "-o", str(target))
    assert code == 0 and out == ""
    module: dict[str, Any] = {}
    exec(target.read_text(), module)
    params = module["STAGES"][0]["layers"]["layer"]["params"]
    assert params["up.weight"]["weight"] == jax_sharding.PartitionSpec(None, "model")
    assert params["up.weight"]["state"] == jax_sharding.PartitionSpec("data", "model")


def test_export_knows_two_formats(run: Callable[..., tuple[int, str, str]], plan: Callable[..., str], model: str,
                                  tmp_path: Path) -> None:
    code, _, err = run("export", plan(2, dp=2), "--to", "jax", "--model", model, "-o", str(tmp_path / "out.txt"))
    assert code == 2 and ".json, .py" in err
    assert not (tmp_path / "out.txt").exists()
