"""Hugging Face configurations: published sizes to the unit, refusals that say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import model
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph
from autoplan.model.importers import huggingface
from autoplan.model.importers.keys import Keys

CONFIGS = Path(__file__).parent.parent / "data" / "hf_configs"

# Parameters of the published checkpoints (tied ones once), as their model cards give them in billions.
SIZES = {
    "llama-2-7b": (6_738_415_616, 6.738), "llama-3.1-70b": (70_553_706_496, 70.554),
    "llama-3.2-3b": (3_212_749_824, 3.213), "yi-34b": (34_388_917_248, 34.389),
    "mistral-7b-instruct-v0.2": (7_241_732_096, 7.242), "qwen2-7b": (7_615_616_512, 7.616),
    "qwen2.5-32b": (32_763_876_352, 32.764), "qwen3-0.6b": (596_049_920, 0.596), "qwen3-32b": (32_762_123_264, 32.762),
    "phi-4": (14_659_507_200, 14.66), "dialogpt-345m-gpt2": (354_823_168, 0.355), "distilgpt2": (81_912_576, 0.082),
    "wizardcoder-15b-gptbigcode-starcoder": (15_517_462_528, 15.517), "bloom-560m": (559_214_592, 0.559),
}
UNSUPPORTED = {
    "pythia-6.9b-deduped": "use_parallel_residual", "qwen3-30b-a3b": "model_type", "deepseek-v2-lite": "model_type",
    "gemma-2-2b": "model_type", "llava-1.5-7b-hf-nested": "model_type", "distilbert-base-uncased": "model_type",
    "phi-3.5-moe": "model_type",
}
SIZE_KEYS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return data


def read(folder: Path, data: object) -> ModelGraph:
    path = folder / "config.json"
    path.write_text(json.dumps(data))
    return build(huggingface.read(path, "m"))


def without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in names}


@pytest.mark.parametrize(("name", "sizes"), SIZES.items())
def test_published_sizes(name: str, sizes: tuple[int, float]) -> None:
    graph = model.load(CONFIGS / f"{name}.json")
    assert graph.num_params == sizes[0]
    assert round(graph.num_params / 1e9, 3) == pytest.approx(sizes[1], abs=1e-9)


@pytest.mark.parametrize(("name", "key"), UNSUPPORTED.items())
def test_what_is_not_supported_is_refused(name: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"{name}\.json: {key}: ") as caught:
        model.load(CONFIGS / f"{name}.json")
    assert key != "model_type" or "llama, mistral, phi3, qwen2, qwen3" in str(caught.value)


def test_every_configuration_is_checked() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == {*SIZES, *UNSUPPORTED}


@pytest.mark.parametrize("key", SIZE_KEYS)
@pytest.mark.parametrize("value", [0, -1, "4096", 1.5, True, [], 10**30])
def test_sizes_are_positive_integers(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"config\.json: {key}: .*positive integer"):
        read(tmp_path, {**config("llama-2-7b"), key: value})


@pytest.mark.parametrize("key", SIZE_KEYS)
def test_sizes_may_not_be_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=rf"{key}: missing"):
        read(tmp_path, without(config("llama-2-7b"), key))
    with pytest.raises(InputError, match=rf"{key}: is null"):
        read(tmp_path, {**config("llama-2-7b"), key: None})


@pytest.mark.parametrize(("name", "change", "key"), [
    ("llama-2-7b", {"num_attention_heads": 33}, "num_attention_heads"),
    ("llama-2-7b", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("llama-2-7b", {"num_key_value_heads": -8}, "num_key_value_heads"),
    ("llama-2-7b", {"head_dim": 0}, "head_dim"),
    ("llama-2-7b", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ("llama-2-7b", {"attention_bias": 1}, "attention_bias"),
    ("llama-2-7b", {"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ("llama-2-7b", {"model_type": 3}, "model_type"),
    ("llama-2-7b", {"model_type": "llama4"}, "model_type"),
    ("llama-2-7b", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("llama-2-7b", {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    ("llama-2-7b", {"num_local_experts": 8}, "num_local_experts"),
    ("llama-2-7b", {"vision_config": {"depth": 2}}, "vision_config"),
    ("llama-2-7b", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    ("llama-2-7b", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    ("qwen2-7b", {"use_sliding_window": True, "max_window_layers": 14}, "max_window_layers"),
    ("qwen2-7b", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
    ("mistral-7b-instruct-v0.2", {"sliding_window": 0}, "sliding_window"),
    ("dialogpt-345m-gpt2", {"n_head": 15}, "n_head"),
    ("dialogpt-345m-gpt2", {"n_inner": -1}, "n_inner"),
    ("dialogpt-345m-gpt2", {"model_type": "gpt2", "hidden_size": 512}, "hidden_size"),
    ("dialogpt-345m-gpt2", {"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
    ("dialogpt-345m-gpt2", {"afn": "gelu"}, "model_type"),
    ("bloom-560m", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
])
def test_wrong_values(tmp_path: Path, name: str, change: dict[str, object], key: str) -> None:
    with pytest.raises(InputError, match=rf"config\.json: {key}: ") as caught:
        read(tmp_path, {**config(name), **change})
    assert "\n" not in str(caught.value)


def test_llama_defaults(tmp_path: Path) -> None:
    llama = config("llama-2-7b")
    short = without(llama, "num_key_value_heads", "tie_word_embeddings", "architectures")
    assert read(tmp_path, short).classes == read(tmp_path, llama).classes
    nulls = {**llama, "num_key_value_heads": None, "head_dim": None, "attention_bias": None, "mlp_bias": None}
    assert read(tmp_path, nulls).classes == read(tmp_path, llama).classes


def test_llama_options(tmp_path: Path) -> None:
    llama = config("llama-2-7b")
    plain = read(tmp_path, llama).num_params
    attention = 32 * 4 * 4096
    mlp = 32 * (2 * 11008 + 4096)
    assert read(tmp_path, {**llama, "attention_bias": True}).num_params == plain + attention
    assert read(tmp_path, {**llama, "mlp_bias": True}).num_params == plain + mlp
    assert read(tmp_path, {**llama, "tie_word_embeddings": True}).num_params == plain - 32000 * 4096
    assert read(tmp_path, {**llama, "head_dim": 64}).num_params == plain - 32 * 4 * 4096 * 2048


def window(graph: ModelGraph) -> object:
    return next(op for op in graph.layer(1).ops if op.kind == "attention").attr("window")


def test_windows(tmp_path: Path) -> None:
    mistral, qwen = config("mistral-7b-instruct-v0.2"), config("qwen2-7b")
    assert window(read(tmp_path, mistral)) == 0
    assert window(read(tmp_path, without(mistral, "sliding_window"))) == 4096
    for kind, expected in (("sliding_attention", 1024), ("full_attention", 0)):
        assert window(read(tmp_path, {**mistral, "sliding_window": 1024, "layer_types": [kind] * 32})) == expected
    assert window(read(tmp_path, qwen)) == 0
    assert window(read(tmp_path, {**qwen, "use_sliding_window": True})) == 0  # max_window_layers: all of them are full
    assert window(read(tmp_path, {**qwen, "use_sliding_window": True, "max_window_layers": 0})) == 131_072


def test_key_value_heads_by_class(tmp_path: Path) -> None:
    mistral = without(config("mistral-7b-instruct-v0.2"), "num_key_value_heads")
    assert read(tmp_path, mistral).facts["kv_heads"] == 8
    assert read(tmp_path, {**mistral, "num_key_value_heads": None}).facts["kv_heads"] == 32
    with pytest.raises(InputError, match="num_key_value_heads: missing, and its default 32"):
        read(tmp_path, without(config("qwen2-7b"), "num_key_value_heads"))


def test_gpt2_names_are_aliases(tmp_path: Path) -> None:
    gpt2 = config("distilgpt2")
    renamed = {**without(gpt2, "n_embd", "n_layer"), "hidden_size": 768, "num_hidden_layers": 6, "model_type": "gpt2"}
    assert read(tmp_path, renamed).classes == read(tmp_path, gpt2).classes
    assert read(tmp_path, {**gpt2, "n_inner": None}).classes == read(tmp_path, gpt2).classes


def test_multi_query_attention(tmp_path: Path) -> None:
    starcoder = config("wizardcoder-15b-gptbigcode-starcoder")
    assert read(tmp_path, starcoder).facts["kv_heads"] == 1
    assert read(tmp_path, {**starcoder, "multi_query": False}).facts["kv_heads"] == 48


def test_sequential_neox(tmp_path: Path) -> None:
    graph = read(tmp_path, {**config("pythia-6.9b-deduped"), "use_parallel_residual": False})
    assert graph.num_params == 6_857_302_016  # the parallel residual has the same parameters


def test_gemma_has_wide_heads_and_a_tied_head(tmp_path: Path) -> None:
    gemma_7b = {"model_type": "gemma", "hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16,
                "head_dim": 256, "intermediate_size": 24576, "num_hidden_layers": 28, "vocab_size": 256000}
    assert read(tmp_path, gemma_7b).num_params == 8_537_680_896
    assert read(tmp_path, without(gemma_7b, "head_dim")).num_params == 8_537_680_896


@pytest.mark.parametrize(("text", "says"), [
    ('{"model_type": "llama",\n  "hidden_size": }', "line 2, column 18"),
    ("", "line 1, column 1"),
    ("[1, 2]", "no JSON object"),
    ("null", "no JSON object"),
    ("[" * 100_000, "malformed JSON"),
    ('{"vocab_size": ' + "9" * 5_000 + "}", "malformed JSON"),
    ("{}", "model_type: missing"),
])
def test_malformed_json(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        huggingface.read(path, "m")
    assert str(path) in str(caught.value)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff\xfe"}')
    with pytest.raises(InputError, match="not UTF-8"):
        huggingface.read(path, "m")


@pytest.mark.parametrize("key", ["hidden_act", "hidden_activation", "activation_function"])
@pytest.mark.parametrize("value", [5, True, ["silu"], {}, "", "sillu"])
def test_an_activation_that_is_none_is_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{key}: (not a string|unknown activation function) .*silu, swish"):
        read(tmp_path, {**config("llama-2-7b"), key: value})


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 70_000), st.floats(), st.text(max_size=3),
                   st.lists(st.integers(), max_size=2))


@given(name=st.sampled_from([*SIZES]), data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_one_value_gives_a_graph_or_an_input_error(name: str, data: st.DataObject) -> None:
    original = config(name)
    key = data.draw(st.sampled_from(sorted(original)))
    keys = Keys({"model_type": "gpt2", **original, key: data.draw(VALUES)}, "config.json")
    try:
        graph = build(huggingface.from_keys(keys, "m"))
    except InputError as error:
        assert str(error).startswith("config.json: ")
    else:
        assert graph.num_params > 0
