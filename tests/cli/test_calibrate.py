"""`autoplan calibrate`, and that `estimate` and `plan` use what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from autoplan.cli import cli
from autoplan.search import estimate

STEP = {"tp": 2, "pp": 1, "dp": 4, "micro_batch_size": 1, "global_batch_size": 8}
ARGUMENTS = ["estimate", "llama-3.1-8b", "dgx-a100-80gb:8", "--tp", "2", "--dp", "4", "--micro-batch-size", "1",
             "--global-batch-size", "8", "--json"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False, standalone_mode=False)
    return str(result.stdout)


@pytest.fixture(scope="module")
def step_seconds() -> float:
    return estimate("llama-3.1-8b", "dgx-a100-80gb:8", **STEP).predicted.iteration_time_s  # type: ignore[arg-type]


def test_steps_scale_every_kernel(tmp_path: Path, step_seconds: float) -> None:
    measured, output = tmp_path / "steps.csv", tmp_path / "profile.json"
    measured.write_text("kind,target,seconds,model," + ",".join(STEP) + "\n"
                        f"step,dgx-a100-80gb:8,{1.3 * step_seconds},llama-3.1-8b,"
                        + ",".join(map(str, STEP.values())) + "\n", encoding="utf-8")
    (change,) = json.loads(run("calibrate", str(measured), "-o", str(output), "--json"))["changes"]
    assert change["group"] == "step" and 1.2 < change["variable"] < 1.6
    assert change["before"] == pytest.approx(1 - 1 / 1.3, rel=0.01) and change["after"] < 2e-3
    after = json.loads(run(*ARGUMENTS, "--profile", str(output)))["predicted"]["iteration_time_s"]
    assert after == pytest.approx(1.3 * step_seconds, rel=2e-3)


def test_kernels_are_printed_and_used(tmp_path: Path, step_seconds: float) -> None:
    measured, output = tmp_path / "kernels.csv", tmp_path / "profile.json"
    measured.write_text("kind,target,seconds,m,n,k\ngemm,a100-sxm4-80gb,0.0089,8192,8192,8192\n", encoding="utf-8")
    printed = run("calibrate", str(measured), "-o", str(output))
    assert "gemm bf16" in printed and "off before" in printed and str(output) in printed
    after = json.loads(run(*ARGUMENTS, "--profile", str(output)))["predicted"]["iteration_time_s"]
    assert after > 1.2 * step_seconds


def test_bad_rows_write_nothing(tmp_path: Path) -> None:
    measured, output = tmp_path / "bad.csv", tmp_path / "profile.json"
    measured.write_text("kind,target,seconds,m,n,k\ngemm,a100-sxm4-80gb,zero,1,1,1\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"bad\.csv:2: seconds: must be a number above zero"):
        run("calibrate", str(measured), "-o", str(output))
    assert not output.exists()


def test_the_schema_of_profiles_is_that_of_what_is_written(tmp_path: Path) -> None:
    measured, output = tmp_path / "kernels.csv", tmp_path / "profile.json"
    measured.write_text("kind,target,seconds,bytes,ranks\nall_reduce,dgx-a100-80gb,0.006,536870912,8\n",
                        encoding="utf-8")
    run("calibrate", str(measured), "-o", str(output))
    schema = json.loads(run("schema", "profile"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(output.read_text(encoding="utf-8")))
    assert not validator.is_valid({"version": 2})
