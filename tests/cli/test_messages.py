"""What the commands say of bad input: the file, the key, what was found and what is allowed, in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoplan.cli import main
from autoplan.cli.units import percent

SAMPLE = Path(__file__).parents[1] / "plan" / "sample.json"
BATCH = ("--micro-batch-size", "1", "--global-batch-size", "16")
LLAMA = ("estimate", "llama-3.1-8b", "dgx-a100-80gb:16")
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must end with exit code 2 and one line, and return the line."""
    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        err = capsys.readouterr().err
        assert caught.value.code == 2 and err.startswith("error: ") and err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")
    return call


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "prof.json"


def test_a_row_is_named_once(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "c.csv"
    rows.write_text("kind,target,seconds,bytes,ranks\nall_reduce,dgx-h100,0.006,1e6,1\n")
    error = refused("calibrate", str(rows), "-o", str(tmp_path / "out.json"))
    assert error == f"{rows}:2: ranks: a collective needs two ranks or more (found 1)"


def test_a_step_that_cant_run_names_its_row_and_key(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "c.csv"
    rows.write_text("kind,target,seconds,model,micro_batch_size,global_batch_size,dp,tp\n"
                    "step,dgx-h100:8,1,llama-3.1-8b,1,8,2,2\n")
    error = refused("calibrate", str(rows), "-o", str(tmp_path / "out.json"))
    assert error.startswith(f"{rows}:2: tp, pp, dp, cp: ") and error.count(str(rows)) == 1


def test_a_binary_file_is_no_csv(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "c.csv"
    rows.write_bytes(b"\xff\xfe\x00")
    assert refused("calibrate", str(rows), "-o", str(tmp_path / "o")) == f"{rows}: is no CSV file: not UTF-8 text"


def test_a_profile_of_another_device_names_its_file(refused: Refused, profile: Path) -> None:
    profile.write_text(json.dumps({"source": "c.csv", "devices": {"h100-sxm5-80gb": {}}}))
    assert refused(*LLAMA, "--dp", "16", *BATCH, "--profile", str(profile)) == (
        f"{profile}: devices, clusters: the profile says nothing about this cluster or its device "
        "(found h100-sxm5-80gb); allowed: the device a100-sxm4-80gb or the cluster dgx-a100-80gb")


def test_an_empty_profile_names_its_file(refused: Refused, profile: Path) -> None:
    profile.write_text("{}")
    error = refused(*LLAMA, "--dp", "16", *BATCH, "--profile", str(profile))
    assert error.startswith(f"{profile}: devices, clusters: ") and "(found nothing); allowed: the device" in error


@pytest.mark.parametrize("command", [("simulate",), ("explain",), ("export", "--to", "jax"), ("verify",)])
@pytest.mark.parametrize(("place", "value", "says"), [
    (("parallelism", "pp"), 3, "parallelism.pp: is 3, but there are 4 stages"),
    (("parallelism", "tp"), 2, "parallelism.tp: is 2, but the stages' values give 4"),
    (("parallelism", "num_micro_batches"), 10**12, "stages[0].parallelism: dp 2 × micro_batch_size"),
])
def test_no_command_goes_by_an_unsound_plan(refused: Refused, tmp_path: Path, command: tuple[str, ...],
                                            place: tuple[str, str], value: int, says: str) -> None:
    data = json.loads(SAMPLE.read_text())
    data[place[0]][place[1]] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert refused(command[0], str(path), *command[1:]).startswith(f"{path}: not a sound plan: {says}")


def test_a_plan_over_its_memory_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = json.loads(SAMPLE.read_text())
    data["stages"][2]["memory"]["capacity_bytes"] = 2**34
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SystemExit) as caught:
        main(("explain", str(path)))
    assert not caught.value.code and "doesn't fit: stage 2" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "says"), [
    ("1" * 6001, "a whole number has too many digits"), ("[" * 200_000, "nested too deeply"),
    ("null", "the file holds no JSON object (found nothing); allowed: a mapping"),
    ("[]", "the file holds no JSON object (found a list); allowed: a mapping"),
])
def test_a_file_that_is_no_plan(refused: Refused, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert refused("check", str(path)) == f"{path}: not a plan: {says}"


@pytest.mark.parametrize(("text", "says"), [
    ("[" * 200_000, "malformed JSON: nested too deeply"), ("9" * 6001, "a whole number has too many digits"),
    ("null", "(found nothing); allowed: a mapping"), ("[]", "(found a list); allowed: a mapping"),
])
def test_a_file_that_is_no_model(refused: Refused, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert refused("models", "show", str(path)).endswith(says)


def test_a_deep_profile_is_refused(refused: Refused, profile: Path) -> None:
    profile.write_text("[" * 200_000)
    assert refused(*LLAMA, "--dp", "16", *BATCH, "--profile", str(profile)) == (
        f"{profile}: is no profile: malformed JSON: nested too deeply")


def test_a_list_is_no_model_file(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("[]")
    assert refused("models", "show", str(path)).endswith("(found a list); allowed: a mapping")


def test_another_model_is_told_by_its_size(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(SystemExit):
        main((*LLAMA, "--dp", "4", "--tp", "4", *BATCH, "-o", str(path)))
    error = refused("export", str(path), "--to", "jax", "--model", "mixtral-8x7b")
    assert error.endswith("(found 34 layers with 46,702,792,704 parameters); "
                          "allowed: 34 layers with 8,030,261,248 parameters")


@pytest.mark.parametrize(("options", "says"), [
    (("--shard", "3", "--zero", "1"), "shard: ZeRO splits over a part of dp (found 3); allowed: 1, 2, 4"),
    (("--shard", "2"), "shard: without ZeRO (zero 0) nothing is split (found 2); allowed: 1, or a zero of 1, 2 or 3"),
    (("--etp", "2"), "etp: dense models have no experts to share (found 2); allowed: 1"),
    (("--ep", "2"), "ep: dense models have no experts to spread (found 2); allowed: 1"),
])
def test_degrees_that_do_nothing_are_refused(refused: Refused, options: tuple[str, ...], says: str) -> None:
    assert refused(*LLAMA, "--dp", "4", "--tp", "4", *BATCH, *options) == says


def test_experts_over_more_than_dp_are_told_of_etp(refused: Refused) -> None:
    error = refused("estimate", "mixtral-8x7b", "dgx-h100:16", "--dp", "4", "--tp", "4", "--ep", "8", *BATCH)
    assert "8 doesn't divide dp 4; with etp 1 they are spread over the devices of tp 4 too" in error
    with pytest.raises(SystemExit) as caught:  # as it says
        main(("estimate", "mixtral-8x7b", "dgx-h100:16", "--dp", "4", "--tp", "4", "--ep", "8", "--etp", "1", *BATCH))
    assert caught.value.code != 2


@pytest.mark.parametrize(("fraction", "text"), [
    (2e-16, "0.0 %"), (-2e-16, "0.0 %"), (0.0, "0.0 %"), (1e-5, "0.001 %"), (0.07, "7.0 %"), (-0.07, "-7.0 %"),
])
def test_a_difference_within_rounding_is_none(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_a_folder_is_no_cluster(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    for ref in ("mine", "./mine", "mine:16"):
        assert refused("clusters", "show", ref) == f"{ref.partition(':')[0]}: is a folder, not a cluster file"
    assert refused("models", "show", "mine") == "mine/config.json: the folder has no config.json"


def test_messages_hold_no_control_characters(capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    assert "Choose from: jax" in refused("export", str(SAMPLE))
    assert refused("check", "a\0b\033[31m").startswith(r"a\x00b\x1b[31m: ")
    with pytest.raises(SystemExit):
        main(("estimate", "llama-3.1-8b", "dgx\0", *BATCH, "--json"))
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "\0" not in report["error"]["message"]
