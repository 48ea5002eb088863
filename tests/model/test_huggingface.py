"""Hugging Face configurations: published sizes to the unit, refusals that say why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import model
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.facts import parameters
from autoplan.model.graph import ModelGraph
from autoplan.model.importers import huggingface
from autoplan.model.importers.keys import Keys

CONFIGS = Path(__file__).parent.parent / "data" / "hf_configs"

# Parameters of each configuration (tied ones once), and as published in billions: the model cards' figures.
SIZES = {
    "llama-2-7b": (6_738_415_616, 6.738), "llama-3.1-70b": (70_553_706_496, 70.554),
    "llama-3.2-3b": (3_212_749_824, 3.213), "llama-4-maverick-17b-128e": (400_711_848_960, None),
    "yi-34b": (34_388_917_248, 34.389), "mistral-7b-instruct-v0.2": (7_241_732_096, 7.242),
    "qwen-7b-chat-v1": (7_721_324_544, 7.721), "qwen2-7b": (7_615_616_512, 7.616),
    "qwen2.5-32b": (32_763_876_352, 32.764), "qwen3-0.6b": (596_049_920, 0.596), "qwen3-32b": (32_762_123_264, 32.762),
    "qwen3-30b-a3b": (30_532_122_624, 30.532), "qwen3-235b-a22b": (235_093_634_560, 235.094),
    "qwen3.5-27b-hybrid": (27_356_728_560, None), "deepseek-v2-lite": (15_706_484_224, 15.706),
    "deepseek-v3": (671_026_419_200, 671.026), "kimi-k2-instruct": (1_026_408_232_448, 1026.0),
    "minicpm3-4b-mla": (4_073_875_968, 4.07), "gemma-2-2b": (2_614_341_888, 2.614),
    "gemma-3-text-ome": (999_885_952, 1.0), "gemma-4-26b-a4b": (25_781_999_152, None),
    "phi-3-small-8k": (7_392_272_384, 7.392), "phi-3.5-moe": (41_873_153_344, 41.873), "phi-4": (14_659_507_200, 14.66),
    "gpt-oss-20b": (20_914_757_184, 20.915), "nemotron-h-56b-hybrid-mamba": (56_324_350_464, None),
    "minimax-m2.5": (228_689_764_864, None), "glm-4-9b-chatglm-format": (9_399_951_360, 9.4),
    "baichuan2-7b": (7_505_973_248, 7.506), "wizardcoder-15b-gptbigcode-starcoder": (15_517_462_528, 15.517),
    "falcon-7b-refinedweb": (6_921_720_704, None), "dialogpt-345m-gpt2": (354_823_168, 0.355),
    "dialogpt-762m-gpt2": (774_030_080, 0.774), "distilgpt2": (81_912_576, 0.082),
    "pythia-6.9b-deduped": (6_857_302_016, 6.857), "bloom-560m": (559_214_592, 0.559),
    "distilbert-base-uncased": (66_362_880, 0.066), "bge-large-bert": (335_141_888, 0.335),
    "qwen2-vl-7b": (8_291_375_616, 8.291), "llava-1.5-7b-hf-nested": (7_063_427_072, 7.063),
    "qwen2-audio-nested": (7_754_878_976, None), "abridged/xverse-7b": (7_299_846_144, None),
    "abridged/baichuan2-7b-ome": (7_505_973_248, 7.506), "derived/whisper-tiny": (37_760_640, 0.0378),
    "derived/bert-base-multilingual-cased": (177_974_523, 0.178), "derived/bart-large-cnn": (406_290_432, 0.406),
    "derived/all-minilm-l6-v1": (22_713_216, 0.0227),
}
# What a token passes through in models with experts, in billions; gpt-oss's card counts 3.61, without the embedding.
ACTIVE = {
    "llama-4-maverick-17b-128e": 17.185, "qwen3-30b-a3b": 3.353, "qwen3-235b-a22b": 22.191, "deepseek-v2-lite": 2.661,
    "deepseek-v3": 37.552, "kimi-k2-instruct": 32.862, "gemma-4-26b-a4b": 4.371, "phi-3.5-moe": 6.641,
    "gpt-oss-20b": 3.608 + 0.579, "minimax-m2.5": 11.031,
}
# What is in the file and not in the graph.
LEFT_OUT = {
    "llama-4-maverick-17b-128e": "no vision_config", "gemma-4-26b-a4b": "norms .* tables of positions .23,592,960",
    "qwen2-audio-nested": "audio tower .* 629 million",
}
REFUSED = {
    "derived/clip-vit-base-patch16": "model_type", "other_formats/llm-analysis_gpt2-xl": "n_embd or hidden_size",
    "other_formats/llm-analysis_facebook_opt-66b": "hidden_size", "other_formats/llm-analysis_bert-large": "model_type",
    "other_formats/llm-analysis_bigscience_bloom-7b1": "hidden_size or n_embed",
    "other_formats/llm-analysis_EleutherAI_gpt-j-6b": "n_embd or hidden_size",
    "other_formats/llm-analysis_megatron-lm-175b": "model_type",
    "other_formats/llm-analysis_decapoda-research_llama-65b-hf": "hidden_size",
    "other_formats/llm-analysis_bigcode_santacoder": "n_embd or hidden_size",
    "other_formats/open_clip_ViT-L-14": "model_type", "other_formats/open_clip_ViT-H-14": "model_type",
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
def test_published_sizes(name: str, sizes: tuple[int, float | None]) -> None:
    total = parameters(model.load(CONFIGS / f"{name}.json"))["total"]
    assert total == sizes[0]
    if sizes[1] is not None:
        digits = len(str(sizes[1]).partition(".")[2])  # cards round
        assert total / 1e9 == pytest.approx(sizes[1], rel=1e-3, abs=0.51 * 10**-digits)


@pytest.mark.parametrize("name", SIZES)
def test_active_parameters(name: str) -> None:
    counted = parameters(model.load(CONFIGS / f"{name}.json"))
    assert counted["active"] / 1e9 == pytest.approx(ACTIVE.get(name, counted["total"] / 1e9), rel=1e-3)


@pytest.mark.parametrize("name", SIZES)
def test_what_is_left_out_is_said(name: str) -> None:
    left_out = model.load(CONFIGS / f"{name}.json").facts.get("left_out")
    assert (left_out is None) == (name not in LEFT_OUT)
    assert left_out is None or re.search(LEFT_OUT[name], str(left_out))


@pytest.mark.parametrize(("name", "key"), REFUSED.items())
def test_what_can_not_be_read_is_refused(name: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"{name}\.json: {key}: "):
        model.load(CONFIGS / f"{name}.json")


def test_every_configuration_is_checked() -> None:
    names = {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.json")}
    assert names == {*SIZES, *REFUSED}
    assert len(names) == 58
    assert sum(path.stat().st_size for path in CONFIGS.rglob("*")) < 200_000


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
    ("llama-2-7b", {"model_type": "clip"}, "model_type"),
    ("llama-2-7b", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("llama-2-7b", {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    ("llama-2-7b", {"num_local_experts": 8}, "num_local_experts"),
    ("llama-2-7b", {"vision_config": {"depth": 2}}, "vision_config"),
    ("llama-2-7b", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    ("llama-2-7b", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
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
