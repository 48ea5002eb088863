import json
from pathlib import Path

import jsonschema
import pytest

from autoplan.errors import InputError
from autoplan.plan import Plan, plan_schema

SAMPLE = Path(__file__).parent / "sample.json"


@pytest.fixture
def data() -> dict:
    return json.loads(SAMPLE.read_text())


def load(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "plan.json"
    path.write_text(text)
    return Plan.load(path)


def test_a_plan_survives_writing_and_reading_byte_for_byte():
    assert Plan.load(SAMPLE).to_json() == SAMPLE.read_text()


def test_floats_round_trip(tmp_path, data):
    data["timing"]["wall_s"] = 0.1 + 0.2
    assert json.loads(load(tmp_path, json.dumps(data)).to_json())["timing"]["wall_s"] == 0.1 + 0.2


def test_the_published_schema_accepts_the_sample_and_rejects_what_pydantic_rejects(data):
    validator = jsonschema.Draft202012Validator(plan_schema())
    validator.check_schema(plan_schema())
    validator.validate(data)
    for change in ({"schema_version": 2}, {"unknown": 1}, {"stages": []}, {"runtime": None}):
        assert not validator.is_valid(data | change)


def test_the_schema_has_the_names_others_rely_on():
    definitions = plan_schema()["$defs"]
    assert set(definitions["Parallelism"]["properties"]) >= {
        "dp", "tp", "pp", "cp", "ep", "sequence_parallel", "zero", "micro_batch_size", "num_micro_batches", "schedule",
        "virtual_stages", "recompute"}
    assert set(definitions["Predicted"]["properties"]) >= {
        "iteration_time_s", "tokens_per_s_per_device", "model_tflops_per_device", "mfu", "peak_memory_bytes",
        "breakdown"}
    assert set(definitions["Stage"]["properties"]) >= {"layers", "devices", "mesh", "time", "memory", "shardings"}
    assert set(definitions["SearchInfo"]["properties"]) >= {"lower_bound_s", "gap", "candidates", "pruned", "solves"}


@pytest.mark.parametrize(("change", "message"), [
    ({"schema_version": 7}, r"schema_version: .*can't read it \(found 7\); allowed: 1"),
    ({"schema_version": True}, "schema_version"),
    ({"colour": "red"}, r"colour: extra inputs are not permitted \(found 'red'\)"),
    ({"runtime": None}, r"runtime: .*string \(found None\)"),
    ({"runtime": 3, "kind": "x"}, r"kind: .*and 1 more"),
    ({"stages": []}, "stages: "),
])
def test_a_wrong_field_is_one_clear_error(tmp_path, data, change, message):
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, json.dumps(data | change))
    assert "\n" not in str(caught.value) and "plan.json" in str(caught.value)


def test_numbers_are_not_read_from_text_nor_negative_nor_infinite(tmp_path, data):
    for value in ("5", -5, 0, 2.5, None):
        data["model"]["num_layers"] = value
        with pytest.raises(InputError, match=r"model\.num_layers: "):
            load(tmp_path, json.dumps(data))
    data["model"]["num_layers"] = 10
    for value in (float("inf"), float("nan"), -1.0):
        data["predicted"]["iteration_time_s"] = value
        with pytest.raises(InputError, match=r"predicted\.iteration_time_s: "):
            load(tmp_path, json.dumps(data))


@pytest.mark.parametrize(("text", "message"), [
    ("", "not JSON"), ("{", r"line 1, column 2"), ("[1]", "no JSON object"), ("[" * 100_000, "not a plan"),
    ('{"schema_version": ' + "9" * 5000 + "}", "not a plan"),
])
def test_what_is_no_plan_is_an_input_error(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "binary"):
        with pytest.raises(InputError, match=path.name):
            Plan.load(path)
