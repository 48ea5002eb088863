"""The commands with the search replaced: what they pass on, what they print, how they end."""

import json
import os
import signal
import types
from pathlib import Path

import pytest

from autoplan import search
from autoplan.cli import cli, main
from autoplan.errors import NoPlanError
from autoplan.plan import Plan
from autoplan.version import __version__

SAMPLE = Path(__file__).parents[1] / "plan" / "sample.json"
PLAN = ("plan", "llama-3.1-8b", "dgx-h100:8")
ESTIMATE = ("estimate", "llama-3.1-8b", "dgx-h100:8", "--micro-batch-size", "1", "--global-batch-size", "8")


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # which test runners set: the width of piped output is ours

    def call(*arguments: str) -> types.SimpleNamespace:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        return types.SimpleNamespace(code=caught.value.code, out=out, err=err)
    return call


@pytest.fixture
def asked(monkeypatch):
    """Replace the search by one that records what it is asked and answers with the sample, or raises `answer`."""
    record = types.SimpleNamespace(calls=[], answer=Plan.load(SAMPLE))

    def stub(model, cluster, **options):
        record.calls.append(types.SimpleNamespace(model=model, cluster=cluster, **options))
        if isinstance(record.answer, BaseException):
            raise record.answer
        return record.answer

    monkeypatch.setattr(search, "plan", stub, raising=False)
    monkeypatch.setattr(search, "estimate", stub, raising=False)
    return record


def over_memory() -> Plan:
    data = json.loads(SAMPLE.read_text())
    data["stages"][2]["memory"]["capacity_bytes"] = 2**34
    return Plan.model_validate_json(json.dumps(data))


def test_plan_passes_its_options_on(run, asked):
    result = run(*PLAN, "--global-batch-size", "64", "--seq-len", "4096", "--precision", "fp16", "--optimizer", "sgd",
                 "--grad-dtype", "fp32", "--micro-batch-size", "2", "--recompute", "full", "--zero", "0",
                 "--fix", "tp=8", "--fix", "sp=yes", "--fix", "vpp=2", "--fix", "schedule=interleaved", "--top", "3",
                 "--solver", "highs", "--time-limit", "2.5", "--gap", "0", "--target", "nemo", "--reduce-dtype", "bf16",
                 "--attention", "fused_softmax", "--dropout")
    assert (result.code, result.err) == (0, "")
    call, = asked.calls
    assert call.model.name == "llama-3.1-8b" and call.cluster.num_devices == 8
    assert (call.global_batch_size, call.seq_len, call.precision, call.optimizer, call.grad_dtype) == (
        64, 4096, "fp16", "sgd", "fp32")
    assert (call.micro_batch_size, call.recompute, call.zero) == (2, "full", 0)
    assert call.fix == {"tp": 8, "sequence_parallel": True, "virtual_stages": 2, "schedule": "interleaved"}
    assert (call.top, call.solver, call.time_limit, call.gap, call.runtime) == (3, "highs", 2.5, 0.0, "nemo")
    assert (call.reduce_dtype, call.attention, call.dropout) == ("bf16", "fused_softmax", True)
    assert call.progress is None  # piped


def test_plan_leaves_open_what_is_not_asked(run, asked):
    run(*PLAN)
    call, = asked.calls
    assert (call.global_batch_size, call.seq_len, call.micro_batch_size, call.recompute, call.zero, call.grad_dtype,
            call.time_limit) == (None,) * 7
    assert (call.precision, call.optimizer, call.solver, call.gap, call.fix) == (None, "adam", "auto", 0.05, {})
    assert (call.runtime, call.reduce_dtype, call.attention, call.dropout) == ("plain", None, None, False)


def test_estimate_passes_its_options_on(run, asked):
    result = run(*ESTIMATE, "--tp", "2", "--pp", "2", "--dp", "2", "--zero", "1", "--recompute", "selective",
                 "--sequence-parallel", "--schedule", "interleaved", "--virtual-stages", "2", "--cp", "1",
                 "--layers", "15,17", "--runtime", "fsdp")
    assert result.code == 0
    call, = asked.calls
    assert (call.tp, call.pp, call.dp, call.cp, call.micro_batch_size, call.global_batch_size) == (2, 2, 2, 1, 1, 8)
    assert (call.zero, call.recompute, call.sequence_parallel, call.schedule, call.virtual_stages) == (
        1, "selective", True, "interleaved", 2)
    assert call.layers == (15, 17) and call.runtime == "fsdp"  # --runtime is the other name of --target


def test_plan_prints_a_readable_summary(run, asked):
    out = run(*PLAN).out
    for text in ("dp 2 × tp 4 × pp 4, ZeRO 1", "micro-batch 1 × 8", "MFU 48.0 %",
                 "25.8 of 76.0 GiB on the fullest stage, at most 26.8", "1–2", "3–6, 2 each",
                 "dp 2 × tp 8 × pp 2, ZeRO 1", "7.0 %", "40 candidates (25 pruned)", "gap 1.0 %",
                 "(layer 0 is the embedding, layer 9 the head; mesh: data × model)"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110 and "\x1b" not in out


def test_runner_ups_of_other_schedules_look_different(run, asked):
    data = json.loads(SAMPLE.read_text())
    other = json.loads(json.dumps(data["alternatives"][0]))
    other["parallelism"] |= {"schedule": "interleaved", "virtual_stages": 2}
    data["alternatives"].append(other)
    asked.answer = Plan.model_validate_json(json.dumps(data))
    first, second = (line for line in run(*PLAN).out.splitlines() if line.startswith("dp 2 × tp 8 × pp 2"))
    assert " 1f1b " in first and " interleaved × 2 " in second


def test_json_is_the_plan_and_nothing_else(run, asked):
    assert run(*PLAN, "--json").out == SAMPLE.read_text()


def test_output_writes_the_plan_and_leaves_nothing_beside_it(run, asked, tmp_path):
    target = tmp_path / "plan.json"
    target.write_text("old")
    assert run(*PLAN, "-o", str(target)).code == 0
    assert target.read_text() == SAMPLE.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_failed_search_leaves_the_old_file(run, asked, tmp_path):
    target = tmp_path / "plan.json"
    target.write_text("old")
    asked.answer = NoPlanError("nothing fits", {"stage": 1})
    assert run(*PLAN, "-o", str(target)).code == 1
    assert target.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("target", ["", "absent/plan.json", "-", "/dev/stdout", "/dev/fd/1"])
def test_an_unwritable_output_is_refused_before_planning(run, asked, tmp_path, target):
    result = run(*PLAN, "-o", target if target[:1] in "-/" and target else str(tmp_path / target))
    assert result.code == 2 and result.err.startswith("error: --output: ") and asked.calls == []


def test_nothing_fits_is_exit_one_with_the_diagnosis(run, asked):
    asked.answer = NoPlanError("nothing fits: stage 1 is 3 GiB over", {"stage": 1})
    result = run(*PLAN, "--json")
    assert result.code == 1 and result.err == "error: nothing fits: stage 1 is 3 GiB over\n"
    error = json.loads(result.out)["error"]
    assert error["kind"] == "no_plan" and error["diagnosis"] == {"stage": 1}


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_estimate_over_its_memory_is_printed_and_exit_one(run, asked, flags):
    asked.answer = over_memory()
    result = run(*ESTIMATE, *flags)
    assert result.code == 1
    assert result.err.startswith("error: doesn't fit: stage 2 may need 24.8 of 16.0 GiB: 8.8 GiB over, mostly opti")
    assert (json.loads(result.out)["kind"] == "training") if flags else ("dp 2 × tp 4" in result.out)


@pytest.mark.parametrize("option", [
    ("--global-batch-size", "0"), ("--global-batch-size", "-1"), ("--global-batch-size", "many"), ("--seq-len", "1.5"),
    ("--seq-len", "nan"), ("--seq-len", "9" * 5000), ("--micro-batch-size", "0"), ("--zero", "4"), ("--top", "0"),
    ("--time-limit", "0"), ("--time-limit", "inf"), ("--time-limit", "nan"), ("--gap", "-0.1"), ("--gap", "1"),
    ("--precision", "int3"), ("--optimizer", "magic"), ("--recompute", "some"), ("--no-such-option",),
    ("--fix", "tp"), ("--fix", "tp=0"), ("--fix", "tp=x"), ("--fix", "tpp=8"), ("--fix", "zero=4"),
    ("--fix", "sp=maybe"), ("--fix", "recompute=some"), ("--fix", "tp=2", "--fix", "tp=4"),
    ("--zero", "1", "--fix", "zero=2"),
])
def test_bad_options_are_one_line_and_exit_two(run, asked, option):
    result = run(*PLAN, *option, "--json")
    assert result.code == 2 and asked.calls == []
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert json.loads(result.out)["error"]["exit_code"] == 2


def test_an_unknown_fix_key_suggests_the_nearest(run, asked):
    error = run(*PLAN, "--fix", "micro_batch=2").err
    assert "did you mean micro_batch_size" in error
    assert all(text in error for text in ("micro_batch_size (mbs)", "sequence_parallel (sp)", "virtual_stages (vpp)"))


@pytest.mark.parametrize("arguments", [
    ("plan", "llama-9b", "dgx-h100:8"), ("plan", "llama-3.1-8b", "dgx-h1000:8"),
    ("plan", "llama-3.1-8b", "dgx-h100:12"), ("plan", "llama-3.1-8b", "dgx-h100:0"),
    ("models", "show", "nothing"), ("clusters", "show", "nothing"),
    ("explain", "absent.json"), ("check", "absent.json"), ("schema", "house"), ("plan", "llama-3.1-8b"), ("dance",), (),
])
def test_bad_arguments_are_exit_two_without_traceback(run, asked, arguments):
    result = run(*arguments)
    assert result.code == 2 and result.err and "Traceback" not in result.err and asked.calls == []


def test_an_interrupt_is_exit_130(run, asked):
    asked.answer = KeyboardInterrupt()
    result = run(*PLAN)
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")


def test_a_search_in_progress_has_no_file_beside_the_target(run, asked, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(search, "plan", lambda *_, **__: seen.append(list(tmp_path.iterdir())) or asked.answer)
    assert run(*PLAN, "-o", str(tmp_path / "plan.json")).code == 0 and seen == [[]]


def test_a_termination_while_writing_leaves_nothing_beside_the_target(run, asked, monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Path, "replace", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert run(*PLAN, "-o", str(tmp_path / "plan.json")).code == 143
    assert list(tmp_path.iterdir()) == [] and signal.getsignal(signal.SIGTERM) is before


def test_a_pipe_is_written_directly(run, asked):
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        assert run(*PLAN, "-o", f"/dev/fd/{write}").code == 0
        os.close(write)
        assert reader.read() == SAMPLE.read_text()


def test_a_bug_is_one_line_and_exit_70(run, asked, monkeypatch):
    asked.answer = ZeroDivisionError("by zero")
    monkeypatch.delenv("AUTOPLAN_TRACEBACK", raising=False)
    result = run(*PLAN)
    assert result.code == 70 and result.err.startswith("error: internal ZeroDivisionError: by zero; please report")
    monkeypatch.setenv("AUTOPLAN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(PLAN)


def test_explain_tells_why_and_where_time_and_memory_go(run):
    result = run("explain", str(SAMPLE))
    assert result.code == 0
    for text in ("within 1.0 % of that bound", "best runner-up takes 146 ms, 7.0 % more", "pipeline bubble", "23.8 %",
                 "physical limit", "Stage 0 sets the pace", "2.0–3.0", "[batch:data, seq, hidden] Σmodel",
                 "weight[hidden, ffn:model]/2 (ZeRO 1)", "Shardings of head (stage 3)"):
        assert text in result.out


def test_explain_names_every_cause_and_what_memory_lies_between(run, tmp_path):
    data = json.loads(SAMPLE.read_text())
    predicted, parts = data["predicted"], data["predicted"]["breakdown"]
    predicted["breakdown"] = dict.fromkeys(parts, predicted["iteration_time_s"] / len(parts))
    predicted["bubble_fraction"] = 1 / len(parts)
    data["workload"] |= {"precision": "fp8", "grad_dtype": "fp32", "attention": "fused_softmax", "dropout": True}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    lines = run("explain", str(tmp_path / "plan.json")).out.splitlines()
    assert "fp8, fp32 gradients, sent as bf16, adam, fused softmax attention, dropout, runtime plain" in lines[1]
    assert any(line.split()[:6] == ["waiting", "for", "the", "host", "to", "launch"] for line in lines)
    after = lines[next(number for number, line in enumerate(lines) if line.startswith("Memory of one GPU")):]
    assert after[1].split()[-5:] == ["total", "at", "least", "at", "most"]
    row = next(line for line in after[2:] if line.split()[:1] == ["0"]).split()
    held = data["stages"][0]["memory"]
    assert row[-3:] == [f"{held[name] / 2**30:.1f}" for name in ("total_bytes", "low_bytes", "high_bytes")]


def test_check_accepts_a_sound_plan(run):
    result = run("check", str(SAMPLE))
    assert result.code == 0 and "10 layers in 4 stages on 32 devices" in result.out
    assert json.loads(run("check", str(SAMPLE), "--json").out) == {"valid": True, "problems": []}


def test_check_tells_flaws_apart_from_no_plan(run, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(over_memory().to_json())
    result = run("check", str(path))
    assert result.code == 1 and f"{path}: stages[2].memory.high_bytes: " in result.out
    path.write_text(SAMPLE.read_text().replace('"runtime": "plain"', '"runtime": null'))
    result = run("check", str(path))
    assert result.code == 2 and f"{path}: runtime: " in result.out and "1 violation of the schema" in result.err


@pytest.mark.parametrize(("kind", "name"), [("models", "llama-3.1-8b"), ("clusters", "dgx-h100")])
def test_what_is_listed_can_be_shown(run, kind, name):
    assert name in run(kind, "list").out.splitlines()
    assert name in json.loads(run(kind, "list", "--json").out)
    facts = json.loads(run(kind, "show", name, "--json").out)
    assert facts["name"] == name and name in run(kind, "show", name).out
    if kind == "models":
        assert facts["parameters"]["total"] == facts["parameters"]["active"] == 8_030_261_248


@pytest.mark.parametrize("kind", ["plan", "model", "cluster"])
def test_schemas_are_printed(run, kind):
    schema = json.loads(run("schema", kind).out)
    assert schema.get("properties") or schema["$defs"]


def test_version_and_help(run):
    assert run("--version").out == f"autoplan, version {__version__}\n"
    out = run("--help").out
    assert all(name in out for name in cli.list_commands(None)) and run("plan", "-h").code == 0
