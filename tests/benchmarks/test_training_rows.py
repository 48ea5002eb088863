"""Rows of a CSV of training measurements: reading, flags, repeats."""

from pathlib import Path

from training.rows import REPEAT, once, parsed, read

RECORD = {"row_id": "a_1", "source_id": "a", "layers": "24.0", "hidden": "1024", "params_b": "0.35", "seq_len": "",
          "step_time_norm_s": "1.5", "mem_gib": "inf", "oom": "", "qc": "suspect;gbs_mismatch", "unknown_column": "x"}


def test_numbers_are_whole_but_for_sizes_and_measurements():
    row = parsed(RECORD)
    assert (row.layers, row.hidden, row.seq_len) == (24, 1024, None)
    assert isinstance(row.layers, int)
    assert (row.params_b, row.step_time_norm_s) == (0.35, 1.5)


def test_what_is_no_number_is_not_recorded():
    row = parsed(RECORD | {"tp": "many", "pp": "nan", "dp": "-"})
    assert (row.tp, row.pp, row.dp, row.mem_gib) == (None, None, None, None)


def test_a_column_that_lacks_is_not_recorded():
    row = parsed({"row_id": "a_1"})
    assert row.heads is None and row.notes == "" and not row.ran and not row.ran_out


def test_flags_are_parted():
    assert parsed(RECORD).flags == {"suspect", "gbs_mismatch"}


def test_a_run_that_ran_out_of_memory_did_not_run():
    assert parsed(RECORD | {"oom": "1.0"}).ran_out and not parsed(RECORD | {"oom": "1.0"}).ran
    assert parsed(RECORD | {"oom": "0", "step_time_norm_s": ""}).ran


def test_a_repeat_counts_only_where_its_first_print_is_absent():
    first = parsed(RECORD | {"qc": ""})
    again = parsed(RECORD | {"row_id": "a_2", "qc": REPEAT})
    third = parsed(RECORD | {"row_id": "a_3", "qc": REPEAT})
    assert once([again, first]) == ([first], [again])
    assert once([again, third]) == ([again], [third])


def test_another_measurement_of_the_same_setting_is_no_repeat():
    first = parsed(RECORD | {"qc": ""})
    again = parsed(RECORD | {"row_id": "a_2", "qc": REPEAT, "step_time_norm_s": "1.6"})
    assert once([first, again]) == ([first, again], [])
    assert first.setting == again.setting


def test_a_file_is_read_row_by_row(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("row_id,source_id,layers\nx_1,x,12\nx_2,x,\n", encoding="utf-8")
    assert [(row.row_id, row.layers) for row in read(path)] == [("x_1", 12), ("x_2", None)]
