import json
from pathlib import Path

import pytest

from autoplan.plan import Plan
from autoplan.plan.check import over_capacity, problems

SAMPLE = Path(__file__).parent / "sample.json"
GIB = 2**30


def changed(*changes: tuple[str, object]) -> Plan:
    """The sample with values replaced; a path is dotted, numbers are positions in lists."""
    data = json.loads(SAMPLE.read_text())
    for path, value in changes:
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("/"))
        place = data
        for part in parents:
            place = place[part]
        place[last] = value
    return Plan.model_validate_json(json.dumps(data), strict=True)


def test_the_sample_is_sound():
    assert problems(Plan.load(SAMPLE)) == []


SPEC = {"dims": ["batch", "hidden"], "axes": [["data"], ["model"]], "partial": []}
CASES = [
    ("cluster/num_devices", 40, "cluster.num_devices: 40 is not 4 nodes × 8 GPUs"),
    ("model/parameters/active", 10**12, "model.parameters.active"),
    ("stages/1/devices", list(range(8)), "stages: devices 0, 1, 2, 3, 4, 5, 6, 7 are used more than once"),
    ("stages/1/devices", [8, 9, 10, 11, 12, 13, 14, 99], "stages: device 99 is outside the cluster of 32"),
    ("stages/1/devices", [8, 9, 10, 11], "stages[1].mesh.shape: 2 × 4 = 8 is not the number of its devices, 4"),
    ("stages/1/index", 5, "stages[1].index: is 5, not 1"),
    ("stages/1/layers", [3, 5], "stages[1].layers: is [3, 5], but the first chunk is [3, 4]"),
    ("stages/1/chunks", [[4, 4]], "stages[1].chunks[0]: starts at layer 4 where layer 3 is next: layer 3 is"),
    ("stages/1/chunks", [[2, 4]], "layer 2 is covered twice"),
    ("stages/1/chunks", [[4, 3]], "stages[1].chunks[0]: ends at layer 3, before its first layer 4"),
    ("stages/1/chunks", [[3, 3], [4, 4]], "stages[1].chunks: has 2 chunks, but parallelism.virtual_stages is 1"),
    ("model/num_layers", 11, "stages: cover layers 0 to 9, but the model has 11 layers"),
    ("parallelism/pp", 3, "parallelism.pp: is 3, but there are 4 stages"),
    ("parallelism/virtual_stages", 2, "parallelism.virtual_stages: 2 doesn't go with the schedule 1f1b"),
    ("parallelism/tp", 8, "parallelism.tp: is 8, but the stages' values give 4"),
    ("parallelism/recompute", None, "parallelism.recompute: is null, but the stages' values give none"),
    ("stages/2/parallelism/zero", 3, "parallelism.zero: is 1, but the stages' values give null"),
    ("stages/2/parallelism/tp", 8, "stages[2].parallelism: dp 2 × tp 8 × cp 1 is not the number of its devices, 8"),
    ("parallelism/num_micro_batches", 9, "dp 2 × micro_batch_size 1 × num_micro_batches 9 is not the global batch"),
    ("stages/0/mesh/axes", ["data", "data"], "stages[0].mesh.axes: needs one distinct name"),
    ("stages/0/memory/in_flight", 9.0, "stages[0].memory.in_flight: keeps 9 micro-batches of 8"),
    ("predicted/breakdown/forward_s", 0.0, "predicted.breakdown: adds up to "),
    ("predicted/tokens_per_s", 1.0, "predicted.tokens_per_s: is not 65536 tokens / "),
    ("predicted/tokens_per_s_per_device", 1.0, "predicted.tokens_per_s_per_device: "),
    ("predicted/bubble_fraction", 0.9, "predicted.bubble_fraction: "),
    ("predicted/physical_limit_s", 99.0, "predicted.physical_limit_s: 99 s is more than the iteration time"),
    ("predicted/peak_memory_bytes", 5, "predicted.peak_memory_bytes: is 5, but the fullest stage has"),
    ("stages/3/time/step_s", 1.0, "stages[3].time.breakdown: adds up to "),
    ("stages/3/memory/breakdown/weights", 5, "stages[3].memory.breakdown: adds up to "),
    ("stages/3/memory/capacity_bytes", GIB, "stages[3].memory.high_bytes: "),
    ("stages/3/memory/high_bytes", GIB, "stages[3].memory.total_bytes: 24427626496 is not between low_bytes, 2389"),
    ("stages/3/memory/low_bytes", 60 * GIB, "is not between low_bytes, 64424509440, and high_bytes, 2550"),
    ("stages/3/memory/capacity_bytes", 90 * GIB, "stages[3].memory.capacity_bytes: "),
    ("stages/3/shardings/layer.up/output", SPEC | {"axes": [["rows"], []]},
     "shardings['layer.up'].output: uses the axis 'rows', which"),
    ("stages/3/shardings/layer.up/output", SPEC | {"partial": ["data"]}, "uses the axis 'data' 2 times"),
    ("stages/3/shardings/layer.up/inputs", {"x": SPEC | {"axes": [[]]}}, ".inputs['x'].axes: has 1 entries for 2 dims"),
    ("stages/3/shardings/layer.up/params", {"w": SPEC | {"zero": 1, "shards": 3}}, ".shards: 3 doesn't divide"),
    ("stages/3/shardings/layer.up/params", {"w": SPEC | {"axes": [[], []], "partial": ["data"]}}, "['w'].partial: "),
    ("search/lower_bound_s", None, "search.gap: goes with lower_bound_s"),
    ("search/lower_bound_s", 99.0, "search.lower_bound_s: 99 s is more than the iteration time"),
    ("search/gap", 0.5, "search.gap: is 0.5, but 1 − lower_bound_s / iteration_time_s = 0.01"),
    ("stages/1/shardings", {}, "stages[1].shardings: lists no operator of the layers between embedding and head, but"),
    ("stages/1/mesh/axes", ["model", "data"], "stages[1].parallelism.dp: is 2, but the mesh's axis 'data' has 4"),
    ("stages/1/mesh/axes", ["data", "context"], "stages[1].parallelism.tp: is 4, but the mesh's axis 'model' has 1"),
    ("predicted/simulated_time_s", 0.05, "predicted.simulated_time_s: 0.05 s is less than stage 0 works, 0.0915 s"),
    ("stages/0/time/forward_s", 0.012, "stages[0].time: forward_s and weight_gradient_s are more than micro_batch_s"),
    ("predicted/mfu", 0.1, "predicted.mfu: 0.1 is less than physical_limit_s / iteration_time_s, 0.48"),
    ("predicted/model_tflops_per_device", 0.0, "predicted.mfu: goes with model_tflops_per_device"),
    ("alternatives/0/predicted/iteration_time_s", 0.1, "alternatives[0].predicted.iteration_time_s: 0.1 s is faster"),
    ("alternatives/0/predicted/mfu", 0.9, "alternatives[0].predicted.mfu: 0.9 in 0.146055 s is other work than"),
    ("alternatives/0/predicted/peak_memory_bytes", 90 * GIB, "alternatives[0].predicted.peak_memory_bytes: "),
    ("search/pruned", 41, "search.pruned: 41 is more than the 40 candidates"),
]


@pytest.mark.parametrize(("path", "value", "expected"), CASES, ids=[f"{case[0]}={case[1]}"[:60] for case in CASES])
def test_each_flaw_is_named(path, value, expected):
    found = problems(changed((path, value)))
    assert any(expected in problem for problem in found), found


def without(*operators: tuple[int, str]) -> Plan:
    """The sample without some operators of some stages."""
    data = json.loads(SAMPLE.read_text())
    for stage, operator in operators:
        del data["stages"][stage]["shardings"][operator]
    return Plan.model_validate_json(json.dumps(data), strict=True)


@pytest.mark.parametrize(("operators", "expected"), [
    ([(2, "layer.up")], "stages[2].shardings: lacks layer.up, which other stages list"),
    ([(stage, "layer.up") for stage in range(4)], "stages[0].shardings: lists no operator of 'layer' that gives up or"),
    ([(0, "embedding.embedding")], "stages[0].shardings: lists no operator of 'embedding', but the stage holds"),
    ([(3, "head.head")], "stages[3].shardings: lists no operator of 'head', but the stage holds layer 9"),
])
def test_an_operator_that_is_missing_is_named(operators, expected):
    found = problems(without(*operators))
    assert any(expected in problem for problem in found), found


def test_an_operator_of_a_layer_that_another_stage_holds_is_named():
    head = json.loads(SAMPLE.read_text())["stages"][3]["shardings"]["head.head"]
    found = problems(changed(("stages/1/shardings/head.head", head)))
    assert found == ["stages[1].shardings: lists operators of 'head', but the stage doesn't hold layer 9"]


def test_degrees_without_a_recipe_need_not_be_those_of_the_axes():
    changes = [(f"stages/{i}/parallelism/recipe", None) for i in range(4)]
    changes += [("parallelism/recipe", None), ("stages/1/mesh/axes", ["model", "data"])]
    assert problems(changed(*changes)) == []


def test_a_search_without_a_bound_is_no_proof():
    assert problems(changed(("search/lower_bound_s", None), ("search/gap", None))) == [
        "search.lower_bound_s: is null, but the status is optimal"]
    assert problems(changed(("search/lower_bound_s", None), ("search/gap", None), ("search/status", "estimate"))) == []


def test_interleaved_chunks_are_followed_chunk_by_chunk():
    chunks = [[[0, 0], [4, 5]], [[1, 1], [6, 6]], [[2, 2], [7, 7]], [[3, 3], [8, 9]]]
    changes = [(f"stages/{i}/chunks", chunk) for i, chunk in enumerate(chunks)]
    changes += [(f"stages/{i}/layers", chunk[0]) for i, chunk in enumerate(chunks)]
    changes += [("parallelism/schedule", "interleaved"), ("parallelism/virtual_stages", 2)]
    assert problems(changed(*changes)) == []
    assert "stages[1].chunks[1]: starts at layer 5" in problems(changed(*changes, ("stages/1/chunks/1", [5, 6])))[0]


def test_chunks_of_zero_bubble_v_are_followed_there_and_back():
    chunks = [[[0, 1], [8, 9]], [[2, 2], [7, 7]], [[3, 3], [6, 6]], [[4, 4], [5, 5]]]
    stages = json.loads(SAMPLE.read_text())["stages"]
    first, inner, last = (stages[i]["shardings"] for i in (0, 1, 3))
    changes = [(f"stages/{i}/chunks", chunk) for i, chunk in enumerate(chunks)]
    changes += [(f"stages/{i}/layers", chunk[0]) for i, chunk in enumerate(chunks)]
    changes += [("parallelism/schedule", "zb_v"), ("parallelism/virtual_stages", 2)]
    changes += [("stages/0/shardings", first | inner | last), ("stages/3/shardings", inner)]
    assert problems(changed(*changes)) == []
    assert "stages[2].chunks[1]: starts at layer 5" in problems(changed(*changes, ("stages/2/chunks/1", [5, 6])))[0]


def test_over_capacity_names_the_stages_that_do_not_fit():
    assert over_capacity(Plan.load(SAMPLE)) == []
    assert [stage.index for stage in over_capacity(changed(("stages/2/memory/capacity_bytes", GIB)))] == [2]
