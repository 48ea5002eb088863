"""Models by name and by path; the shipped ones have the published sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoplan import model, specs
from autoplan.errors import InputError

CONFIGS = Path(__file__).parent.parent / "data" / "hf_configs"

# Parameters: exact where the published checkpoint's are known to the unit, else as counted from the dimensions, which
# agrees with the size that the source prints.
SHIPPED = {
    "gpt3-175b": 174_615_846_912,
    "gpt-350m": 355_788_800, "gpt-760m": 760_175_616, "gpt-1.3b": 1_315_557_376, "gpt-2.6b": 2_651_345_920,
    "gpt-6.7b": 6_658_072_576, "gpt-15b": 15_370_086_400, "gpt-39b": 39_087_652_864,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-72b": 72_706_203_648, "mistral-7b": 7_241_732_096,
}
# SC'21, table 1: the size in billions, and the batch.
MEGATRON = {
    "1.7b": (1.7, 512), "3.6b": (3.6, 512), "7.5b": (7.5, 512), "18.4b": (18.4, 1024), "39.1b": (39.1, 1536),
    "76.1b": (76.1, 1792), "145.6b": (145.6, 2304), "310.1b": (310.1, 2160), "529.6b": (529.6, 2520),
    "1008b": (1008.0, 3072),
}


@pytest.mark.parametrize(("name", "total"), SHIPPED.items())
def test_sizes_of_shipped_models(name: str, total: int) -> None:
    graph = model.load(name)
    assert graph.name == name
    assert graph.num_params == total
    assert graph.facts["source"]


@pytest.mark.parametrize(("size", "published"), MEGATRON.items())
def test_megatron_models(size: str, published: tuple[float, int]) -> None:
    graph = model.load(f"megatron-gpt-{size}")
    layers, hidden = int(graph.facts["layers"]), int(graph.facts["hidden"])
    assert round(graph.num_params / 1e9, 1) == published[0]
    assert graph.facts["global_batch_size"] == published[1]
    assert (graph.facts["vocab"], graph.facts["seq_len"]) == (51_200, 2_048)
    # SC'21, equation 2, and the final norm that it leaves out; then equation 3's FLOPs without recompute, of which the
    # forward pass is a third
    assert graph.num_params == 12 * layers * hidden**2 + 13 * layers * hidden + (51_200 + 2_048 + 2) * hidden
    forward = 24 * layers * hidden**2 + 4 * layers * 2_048 * hidden + 2 * hidden * 51_200
    assert model.describe(graph)["forward_flops_per_token"] == forward


def test_a_padded_vocabulary() -> None:
    assert model.load("gpt3-175b").facts["vocab"] == 51_200


def test_load_by_path(tmp_path: Path) -> None:
    text = (specs.shipped("models") / "mistral-7b.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    shipped, mine = model.load("mistral-7b"), model.load(path)
    assert (mine.name, mine.classes, mine.layers) == ("mine", shipped.classes, shipped.layers)
    assert model.load(str(path)) == mine


def test_load_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-2-7b-hf"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "llama-2-7b.json").read_text())
    by_folder, by_file = model.load(folder), model.load(folder / "config.json")
    assert by_folder == by_file
    assert by_folder.name == "Llama-2-7b-hf"
    assert by_folder.classes == model.load("llama-2-7b").classes
    assert model.load(CONFIGS / "llama-2-7b.json").name == "llama-2-7b"


def test_the_real_config_and_the_shipped_file_agree() -> None:
    assert model.load(CONFIGS / "llama-3.1-70b.json").classes == model.load("llama-3.1-70b").classes


def test_a_shipped_name_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt-39b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model.load("gpt-39b").num_params == SHIPPED["gpt-39b"]
    with pytest.raises(InputError, match=r"no config\.json"):
        model.load("./gpt-39b/")


@pytest.mark.parametrize(("ref", "says"), [
    ("llama-3.1-80b", "did you mean llama-3.1-"),
    ("", "no such model"), ("gpt3", r"did you mean gpt3-175b "), ("x" * 5000, "no such model"), ("\0", "no such model"),
    ("x" * 5000 + "/config.json", "no such file"), ("x" * 5000 + ".yaml", "no such file"),
    (5, "model: not a reference to a model \\(found 'int'\\)"), (None, "found 'NoneType'"),
    (b"gpt3-175b", "found 'bytes'"),
    ("nowhere/model.yaml", "no such file"),
    ("nowhere/config.json", "no such file"),
    (str(CONFIGS), "the folder has no config.json"),
    (str(CONFIGS / "README.md"), "not a model file"),
])
def test_what_is_no_model(ref: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        model.load(ref)


def test_malformed_yaml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("layers: 2\nhidden: [\n")
    with pytest.raises(InputError, match=r"broken\.yaml:\d"):
        model.load(path)


def test_describe_is_json() -> None:
    told = json.loads(json.dumps(model.describe(model.load("llama-3.1-70b"))))
    assert told["parameters"] == {
        "total": 70_553_706_496, "active": 70_553_706_496, "embedding": 128_256 * 8_192,
        "layers": 80 * 855_654_400, "head": 128_256 * 8_192 + 8_192}
    assert told["kv_bytes_per_token"] == 2 * 2 * 8 * 128 * 80
    assert [layer["layers"] for layer in told["classes"]] == [1, 80, 1]
    assert told["num_layers"] == 82
    assert told["seq_len"] == 8_192


def test_describe_without_a_default_sequence() -> None:
    told = model.describe(model.load(CONFIGS / "llama-3.1-70b.json"))
    assert told["seq_len"] == 8_192


def test_importing_the_room_is_cheap() -> None:
    heavy = "[name for name in ('pydantic', 'yaml', 'numpy', 'scipy') if name in sys.modules]"
    code = f"import sys, autoplan.model; loaded = {heavy}; sys.exit(f'{{loaded}}' if loaded else 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
