"""From rows to prices: assumptions, arguments of an estimate, cuts, what can't be priced."""

import json

import pytest
from training import assumptions, pricing, results, tables
from training.assumptions import Assumed, assumed, matches
from training.models import Unpriced
from training.rows import parsed

GPT = {
    "row_id": "t_1", "source_id": "nobody_knows", "framework": "Megatron-LM", "arch_family": "gpt", "model": "gpt",
    "layers": "4", "hidden": "512", "heads": "8", "ffn": "2048", "vocab": "1000", "seq_len": "256", "tied_emb": "1",
    "gpu": "A100-SXM-80GB", "num_gpus": "8", "tp": "2", "pp": "2", "dp": "2", "micro_batch": "1", "global_batch": "16",
    "recompute": "full", "precision": "fp16/mixed", "step_time_norm_s": "1.0",
}


def test_every_set_of_assumptions_has_known_keys_and_says_where():
    data = assumptions.table()
    known = set(Assumed.__dataclass_fields__)
    for source, given in data["sources"].items():
        for one in (given, *given.get("cases", ())):
            assert one.keys() - {"where", "match", "cases"} <= known, source
        assert given.get("where"), source


def test_cases_go_before_the_source_and_the_source_before_the_framework():
    bloom = {"source_id": "bloom_prequel", "framework": "Megatron-DeepSpeed", "precision": "fp16"}
    assert assumed(parsed(bloom)).grad_dtype == "fp16"
    assert assumed(parsed(bloom | {"precision": "bf16"})).grad_dtype == "fp32"
    assert assumed(parsed(bloom | {"source_id": "other"})).zero == 0


def test_conditions_are_expressions_or_numbers():
    row = parsed(GPT)
    assert matches({"framework": "^megatron", "layers": 4}, row)
    assert not matches({"framework": "deepspeed"}, row)
    assert not matches({"kv_heads": 8}, row)


@pytest.mark.parametrize(("text", "name"), [
    ("fp16/mixed", "fp16"), ("amp_bf16 (MP mode DEFAULT)", "bf16"), ("FP8 (25.09)", "fp8"), ("nvfp4+bf16 tail", "fp4"),
    ("TF32", "tf32"), ("FP32", "fp32"), ("", None),
])
def test_words_of_precision(text, name):
    assert pricing.precision_of(text) == name


@pytest.mark.parametrize(("text", "name"), [
    ("full (remat)", "full"), ("none (no flag seen)", "none"), ("selective op", "selective"), ("unknown", None)])
def test_words_of_recompute(text, name):
    assert pricing.recompute_of(text) == name


@pytest.mark.parametrize(("cut", "count", "pp", "found"), [
    ("best", 24, 4, [None]), ("equal", 24, 4, [[6, 6, 6, 6]]), ("equal", 10, 4, [[3, 3, 2, 2]]),
    ("ceil", 78, 12, [[7] * 11 + [1]]), ("ends", 70, 12, [[5, *[6] * 10, 5]]),
    ("last", 6, 3, [[3, 3, 0], [2, 3, 1], [2, 2, 2]]),
])
def test_cuts(cut, count, pp, found):
    arguments = {"pp": pp, "schedule": "1f1b"}
    assert pricing.cuts_of(parsed(GPT), Assumed(cut=cut), count, arguments) == found


def test_a_cut_by_items_counts_layers_only():
    row = parsed(GPT | {"plan_json": json.dumps({"layer_partition": [0, 9, 15, 21, 30]})})
    arguments = {"pp": 4, "schedule": "1f1b"}
    assert pricing.cuts_of(row, Assumed(cut="items", items_before=2), 24, arguments) == [[7, 6, 6, 5]]


def test_micro_batches_follow_from_accumulation_or_are_not_recorded():
    row = parsed(GPT | {"micro_batch": "", "grad_accum": "4"})
    assert pricing.micro_batch_of(row, Assumed(), 2) == 2
    assert pricing.micro_batch_of(parsed(GPT | {"micro_batch": ""}), Assumed(micro_batch="one"), 2) == 8
    with pytest.raises(Unpriced, match="micro-batch"):
        pricing.micro_batch_of(parsed(GPT | {"micro_batch": ""}), Assumed(), 2)


@pytest.mark.parametrize(("change", "reason"), [
    ({"heads": ""}, "heads not recorded"), ({"gpu": "Cray-1"}, "device Cray-1"), ({"tp": ""}, "plan not recorded"),
    ({"global_batch": ""}, "global batch"), ({"seq_len": ""}, "sequence length"), ({"precision": ""}, "precision"),
    ({"step_time_norm_s": ""}, "nothing measured"), ({"task": "qlora"}, "quantised"), ({"num_gpus": "12"}, "12"),
    ({"arch_family": "perceptron"}, "architecture"), ({"tp": "3"}, "don't divide"), ({"layers": "99999999"}, "layers"),
    ({"global_batch": "7"}, "7"), ({"hidden": "513"}, "head"),
])
def test_rows_that_cant_be_priced_say_why(change, reason):
    with pytest.raises(Unpriced, match=reason):
        pricing.price(parsed(GPT | change), {})


def test_a_price_is_the_estimate_of_the_row():
    plans = pricing.Plans()
    found = pricing.price(parsed(GPT | {"mem_gib": "2", "mem_kind": "nvidia-smi"}), plans)
    assert found.seconds == pytest.approx(sum(found.terms.values()), rel=1e-6)
    assert found.memory == pytest.approx(sum(found.held.values()), rel=1e-6)
    assert found.measured_memory == 2 * 2**30
    assert found.fits and 0 < found.ideal < found.seconds
    pricing.price(parsed(GPT | {"row_id": "t_2", "step_time_norm_s": "2.0"}), plans)
    assert len(plans) == 1


def test_dimensions_are_read_from_the_words_of_an_architecture():
    row = {"row_id": "t_1", "source_id": "alpa_weak2021", "framework": "Alpa data_parallel", "model": "wresnet",
           "arch_family": "wide-resnet-50 (base channels 32, width 2, fp32)", "gpu": "V100-SXM2-32GB", "num_gpus": "2",
           "tp": "1", "pp": "1", "dp": "2", "global_batch": "8", "precision": "fp32", "step_time_norm_s": "1"}
    narrow = pricing.price(parsed(row), {})
    wide = pricing.price(parsed(row | {"arch_family": row["arch_family"].replace("channels 32", "channels 64")}), {})
    assert 3 < wide.parameters / narrow.parameters < 4.5
    with pytest.raises(Unpriced, match="width_factor not recorded"):
        pricing.price(parsed(row | {"arch_family": "wide-resnet-50 (base channels 32)"}), {})


def test_what_a_source_counts_as_memory():
    all_, reserved, allocated = (
        pricing.price(parsed(GPT | {"mem_gib": "2", "mem_kind": kind}), {}).memory
        for kind in ("nvidia-smi", "peak reserved", "allocated"))
    assert allocated < reserved < all_


def test_a_report_counts_every_row_once():
    rows = [parsed(GPT | {"row_id": f"t_{index}", **change}) for index, change in enumerate((
        {}, {"step_time_norm_s": "1.1"}, {"micro_batch": "2"}, {"micro_batch": "4"}, {"qc": "suspect"},
        {"heads": ""}, {"qc": "repeat_of_earlier_release"}, {"step_time_norm_s": "", "oom": "1"}))]
    outcome = results.price_all(rows)
    ranked = results.groups(outcome.clean, {"G1": [row.row_id for row in rows]})
    found = results.report(rows, outcome, ranked)
    summary, source = found["summary"], found["sources"]["nobody_knows"]
    assert summary["rows_total"] == 8
    assert (len(outcome.clean), summary["rows_flagged"], summary["rows_repeated"], summary["rows_unpriced"]) == (
        5, 1, 1, 1)
    assert source["n"] == 4 and source["oom_n"] == 1 and source["ran_n"] == 4
    assert source["reasons"] == {"heads not recorded": 1}
    assert [group.plans for group in ranked] == [3]  # two rows of one plan are averaged
    assert summary["step_time_mape"] == source["mape"]
    assert [line for line in tables.markdown(found) if line.startswith("| nobody_knows | 4 | ")]
    text = "\n".join(tables.lines(found))
    assert "heads not recorded" in text and text.splitlines()[-1].startswith("rows_total=8 rows_priced=6 ")


def test_a_line_a_row_is_written(tmp_path):
    outcome = results.price_all([parsed(GPT), parsed(GPT | {"row_id": "t_2", "heads": ""})])
    results.write_rows(tmp_path / "rows.csv", outcome)
    lines = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and "forward_s" in lines[0] and "heads not recorded" in lines[2]
