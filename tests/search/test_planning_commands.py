"""The commands from end to end, on models and clusters of a few files: what they print, write and return."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny import GPT, LLAMA, cluster, gpt
from yaml import safe_dump

import autoplan
from autoplan.cli import cli, main
from autoplan.plan import Plan

FAST = ("--gap", "0.99")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with two models, and nothing else; the working directory."""
    for spec in (GPT, LLAMA):
        (tmp_path / f"{spec['name']}.yaml").write_text(safe_dump({**spec, "biases": list(spec.get("biases", ()))}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(files, capfd):
    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capfd.readouterr()
        return caught.value.code, out, err
    return call


PLAN = ("plan", "tiny-gpt.yaml", "dgx-a100-40gb:4", "--global-batch-size", "16", *FAST)


def test_plan_prints_json_that_is_the_file_and_the_python_plan(run):
    code, out, err = run(*PLAN, "--json", "-o", "plan.json")
    assert (code, err) == (0, "")
    assert Path("plan.json").read_text() == out
    plan = Plan.load("plan.json")
    again = autoplan.plan(gpt(), cluster("dgx-a100-40gb:4"), global_batch_size=16, gap=0.99)
    assert plan.model_dump(exclude={"timing"}) == again.model_dump(exclude={"timing"})
    assert set(json.loads(out)) >= {"schema_version", "kind", "model", "cluster", "workload", "parallelism",
                                    "predicted", "stages", "search", "timing", "alternatives"}


def test_plan_check_explain_estimate_in_a_row(run):
    code, out, _ = run(*PLAN, "-o", "plan.json")
    assert code == 0 and "tiny-gpt" in out
    assert run("check", "plan.json")[0] == 0
    code, out, _ = run("explain", "plan.json")
    assert code == 0 and "ms" in out and "GiB" in out
    how = Plan.load("plan.json").parallelism
    sequence_parallel = ("--sequence-parallel",) if how.sequence_parallel else ()
    code, out, _ = run("estimate", "tiny-gpt.yaml", "dgx-a100-40gb:4", "--tp", how.tp, "--pp", how.pp, "--dp", how.dp,
                       "--micro-batch-size", how.micro_batch_size, "--global-batch-size", 16, "--zero", how.zero,
                       "--recompute", how.recompute.value, "--schedule", how.schedule.value, "--virtual-stages",
                       how.virtual_stages, *sequence_parallel, "--json", "-o", "estimate.json")
    assert code == 0
    assert json.loads(out)["predicted"] == json.loads(Path("plan.json").read_text())["predicted"]
    assert run("check", "estimate.json")[0] == 0


@pytest.mark.parametrize("options, expected", [
    (("--fix", "tp=2", "--fix", "pp=2"), {"tp": 2, "pp": 2, "dp": 1}),
    (("--fix", "dp=4"), {"dp": 4, "tp": 1, "pp": 1}),
    (("--recompute", "full", "--zero", "3", "--fix", "dp=2"), {"recompute": "full", "zero": 3, "dp": 2}),
    (("--micro-batch-size", "2"), {"micro_batch_size": 2}),
    (("--fix", "mbs=2", "--fix", "sp=true"), {"micro_batch_size": 2, "sequence_parallel": True}),
    (("--fix", "schedule=gpipe", "--fix", "pp=2"), {"schedule": "gpipe", "pp": 2}),
    (("--fix", "vpp=2", "--fix", "pp=2"), {"schedule": "interleaved", "virtual_stages": 2}),
    (("--fix", "num_micro_batches=8"), {"num_micro_batches": 8}),
])
def test_what_is_fixed_is_kept(run, options, expected):
    code, out, _ = run(*PLAN, *options, "--json")
    assert code == 0
    plan = json.loads(out)
    assert {key: plan["parallelism"][key] for key in expected} == expected
    for other in plan["alternatives"]:
        assert {key: other["parallelism"][key] for key in expected} == expected


def test_workload_options(run):
    code, out, _ = run("plan", "tiny-llama.yaml", "dgx-a100-40gb:4", "--seq-len", "512", "--precision", "fp16",
                       "--optimizer", "sgd", "--grad-dtype", "fp32", "--reduce-dtype", "bf16", "--attention",
                       "unfused", "--dropout", "--global-batch-size", "8", *FAST, "--json")
    assert code == 0
    assert json.loads(out)["workload"] == {
        "global_batch_size": 8, "seq_len": 512, "precision": "fp16", "optimizer": "sgd", "grad_dtype": "fp32",
        "reduce_dtype": "bf16", "attention": "unfused", "dropout": True, "frozen": False}


def test_top_and_time_limit(run):
    code, out, _ = run(*PLAN, "--top", "2", "--json")
    assert code == 0 and len(json.loads(out)["alternatives"]) == 1
    code, out, _ = run(*PLAN[:-2], "--time-limit", "0.001", "--json")
    assert code == 0 and json.loads(out)["search"]["status"] == "time_limit"


def test_click_runner_sees_the_same(files):
    result = CliRunner().invoke(cli, [*PLAN, "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["model"]["name"] == "tiny-gpt"


@pytest.mark.parametrize("solver", ["highs", "pulp:CBC"])
def test_solvers_agree(run, solver):
    options = ("plan", "tiny-gpt.yaml", "dgx-a100-40gb:2", "--global-batch-size", "4", "--fix", "pp=1", "--zero", "1",
               "--micro-batch-size", "2", *FAST, "--json")
    plain, other = json.loads(run(*options)[1]), json.loads(run(*options, "--solver", solver)[1])
    assert other["predicted"]["iteration_time_s"] == pytest.approx(plain["predicted"]["iteration_time_s"], rel=1e-6)
    assert other["search"]["solver"] == solver


def test_nothing_fits(run):
    code, out, err = run("plan", "llama-3.1-70b", "g5.48xlarge:4", "--global-batch-size", "8", "--json", "-o", "x.json")
    assert code == 1 and err.startswith("error: nothing fits") and err.count("\n") == 1
    diagnosis = json.loads(out)["error"]["diagnosis"]
    assert diagnosis["over_bytes"] > 0 and diagnosis["nearest_change"]
    assert not Path("x.json").exists() and not list(Path().glob(".*"))


def test_estimate_of_what_does_not_fit(run):
    code, out, err = run("estimate", "llama-3.1-70b", "g5.48xlarge:4", "--tp", "4", "--micro-batch-size", "1",
                         "--global-batch-size", "8", "--json")
    assert code == 1 and json.loads(out)["predicted"]["peak_memory_bytes"] > 2**36
    assert err.startswith("error: ") and err.count("\n") == 1


ESTIMATE = ("estimate", "tiny-gpt.yaml", "dgx-a100-40gb:4", "--micro-batch-size", "1", "--global-batch-size", "16")
BAD = [
    (("plan", "llama-3.1-8B-instruct", "dgx-h100:8"), "llama-3.1-8b"),
    (("plan", "llama-3.1-8b", "dgx-h10:8"), "dgx-h100"),
    (("plan", "llama-3.1-8b", "dgx-a100-80gb:12"), "8"),
    (("plan", "llama-3.1-8b", "dgx-h100:0"), "0"),
    (("plan", "llama-3.1-8b", "dgx-h100:-8"), "-8"),
    (("plan", "llama-3.1-8b", "dgx-h100:eight"), "eight"),
    (("plan", "broken.yaml", "dgx-h100:8"), "broken.yaml"),
    (("plan", "broken.json", "dgx-h100:8"), "broken.json"),
    (("plan", "missing.yaml", "dgx-h100:8"), "hidden"),
    (("plan", "null.yaml", "dgx-h100:8"), "layers"),
    (("plan", "negative.yaml", "dgx-h100:8"), "heads"),
    (("plan", "empty.yaml", "dgx-h100:8"), "empty.yaml"),
    (("plan", "nowhere.yaml", "dgx-h100:8"), "nowhere.yaml"),
    (("plan", "tiny-gpt.yaml", "broken.yaml"), "broken.yaml"),
    ((*PLAN, "--global-batch-size", "0"), "global-batch-size"),
    ((*PLAN, "--global-batch-size", "-4"), "global-batch-size"),
    ((*PLAN, "--global-batch-size", "many"), "global-batch-size"),
    ((*PLAN, "--seq-len", "4096"), "1024"),
    ((*PLAN, "--precision", "fp8"), "precision"),
    ((*PLAN, "--optimizer", "magic"), "optimizer"),
    ((*PLAN, "--recompute", "some"), "recompute"),
    ((*PLAN, "--zero", "4"), "zero"),
    ((*PLAN, "--runtime", "nccl"), "plain"),
    ((*PLAN, "--target", "megatron"), "megatron-lm"),
    ((*PLAN, "--target", "megatron-lm", "--zero", "3"), "allowed: 0, 1"),
    ((*PLAN, "--target", "nemo", "--solver", "highs"), "overlaps"),
    ((*PLAN, "--target", "fsdp", "--fix", "schedule=interleaved"), "allowed: 1f1b"),
    ((*PLAN, "--attention", "flush"), "flash"),
    ((*PLAN, "--reduce-dtype", "fp8"), "bf16"),
    ((*PLAN, "--fix", "layers=1,2"), "4 equal layers"),
    ((*PLAN, "--fix", "layers=2,2", "--fix", "pp=4"), "2 stages"),
    ((*PLAN, "--fix", "layers=two"), "layers"),
    ((*PLAN, "--solver", "cplexx"), "solver"),
    ((*PLAN, "--fix", "tp=3"), "tp"),
    ((*PLAN, "--fix", "tp"), "KEY=VALUE"),
    ((*PLAN, "--fix", "tpp=2"), "tp"),
    ((*PLAN, "--fix", "tp=2", "--fix", "tp=4"), "two values"),
    ((*PLAN, "--fix", "tp=4", "--fix", "pp=4"), "16"),
    ((*PLAN, "--fix", "zero=2", "--zero", "1"), "zero"),
    ((*PLAN, "--micro-batch-size", "3"), "micro_batch_size"),
    ((*PLAN, "--fix", "mbs=8", "--fix", "dp=4"), "no multiple"),
    ((*PLAN, "--fix", "dp=2", "--fix", "mbs=2", "--fix", "num_micro_batches=8"), "= 32"),
    ((*PLAN, "--fix", "schedule=interleaved", "--fix", "pp=1"), "stages"),
    ((*PLAN, "--fix", "sp=yes", "--fix", "tp=1"), "sequence_parallel"),
    ((*PLAN, "--time-limit", "-1"), "time-limit"),
    ((*PLAN, "--gap", "nan"), "gap"),
    ((*PLAN, "--top", "0"), "top"),
    (("plan", "llama-3.1-8b", "dgx-h100:64", "--fix", "pp=64"), "32"),
    ((*ESTIMATE, "--tp", "4", "--pp", "4"), "16"),
    ((*ESTIMATE, "--tp", "2"), "dp"),
    ((*ESTIMATE, "--dp", "4", "--micro-batch-size", "8"), "no multiple"),
    (("estimate", "odd.yaml", "dgx-a100-40gb:2", "--tp", "2", "--micro-batch-size", "1", "--global-batch-size", "2"),
     "heads"),
    (("estimate", "tiny-gpt.yaml", "dgx-a100-40gb:8", "--pp", "8", "--micro-batch-size", "1", "--global-batch-size",
      "8"), "stages"),
    ((*ESTIMATE, "--dp", "4", "--virtual-stages", "2"), "virtual"),
    ((*ESTIMATE, "--pp", "4", "--layers", "1,1,2"), "3 stages, but pp is 4"),
    ((*ESTIMATE, "--pp", "4", "--layers", ""), "layers"),
    ((*ESTIMATE, "--dp", "4", "--target", "ddp", "--zero", "1"), "allowed: 0"),
    (("check", "nowhere.json"), "nowhere.json"),
    (("check", "broken.json"), "broken.json"),
    (("explain", "broken.yaml"), "broken.yaml"),
    (("explain", "list.json"), "list.json"),
]


@pytest.mark.parametrize("arguments, told", BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_error(files, run, arguments, told):
    bad = {"null": {"layers": None}, "negative": {"heads": -16}, "odd": {"heads": 15, "hidden": 960}}
    for name, change in bad.items():
        (files / f"{name}.yaml").write_text(safe_dump({**GPT, "biases": [], **change}))
    (files / "missing.yaml").write_text(safe_dump({key: GPT[key] for key in GPT if key not in ("hidden", "biases")}))
    (files / "broken.yaml").write_text("layers: [1,\nheads: :\n")
    (files / "broken.json").write_text('{"hidden_size": 12,,}')
    (files / "list.json").write_text("[1, 2]")
    (files / "empty.yaml").write_text("")
    before = sorted(path.name for path in files.iterdir())
    output = () if arguments[0] in ("check", "explain") else ("-o", "plan.json")
    code, out, err = run(*arguments, *output)
    assert code == 2, err
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert told in err and "Traceback" not in err
    assert sorted(path.name for path in files.iterdir()) == before


def test_bad_input_as_json(run):
    code, out, err = run("plan", "llama-3.1-8b", "dgx-h10:8", "--json")
    assert code == 2 and err.count("\n") == 1
    assert json.loads(out)["error"]["exit_code"] == 2


def test_installed_command_plans(files):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from autoplan.cli import main; main()"]
    result = subprocess.run([*program, *PLAN, "-o", "plan.json"], cwd=files, env=environment, capture_output=True,
                            text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "tiny-gpt" in result.stdout and "\x1b" not in result.stdout
    assert Plan.load(files / "plan.json").model.name == "tiny-gpt"
