"""Hugging Face models of several parts, of unknown types, and what is said of what was assumed or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoplan
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.facts import forward_flops_per_token, parameters
from autoplan.model.graph import ModelGraph
from autoplan.model.importers import huggingface
from autoplan.model.importers.keys import Keys

CONFIGS = Path(__file__).parent.parent / "data" / "hf_configs"
USUAL: dict[str, Any] = {
    "model_type": "newcomer", "architectures": ["NewcomerForCausalLM"], "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 3, "intermediate_size": 704, "vocab_size": 1000,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_shared_experts": 1,
           "first_k_dense_replace": 1}


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return data


def read(data: dict[str, Any]) -> ModelGraph:
    return build(huggingface.from_keys(Keys(data, "config.json"), "m"))


def without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in names}


def test_an_unknown_type_is_read_by_its_usual_keys_and_says_so() -> None:
    graph = read(USUAL)
    assert graph.classes == read({**USUAL, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}).classes
    assert graph.facts["assumed"] == (
        "model_type newcomer isn't known here: read as a decoder with RMSNorms before attention and MLP, rotary "
        "positions, gated MLPs, no biases")


@pytest.mark.parametrize(("change", "as_type", "says"), [
    (EXPERTS, {"model_type": "dots1"}, "experts in all layers from layer 1 on, with shared ones"),
    ({"attention_bias": True, "mlp_bias": True}, {"model_type": "llama"}, "biases as attention_bias and mlp_bias"),
    ({"tie_word_embeddings": None}, {"model_type": "llama"}, "a head of its own"),
    ({"sliding_window": 64}, {"model_type": "mistral"}, "the window in all layers"),
    ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 64},
     {"model_type": "mistral"}, "rotary"),
    ({"use_qk_norm": True}, {"model_type": "qwen3", "head_dim": 32}, "a norm of each query and key head"),
    ({"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": None},
     {"model_type": "minicpm3"}, "latent attention"),
    ({"hidden_act": "gelu", "rms_norm_eps": None, "layer_norm_eps": 1e-5}, {"model_type": "nemotron"},
     "LayerNorms before attention and MLP, rotary positions, plain MLPs"),
])
def test_features_of_an_unknown_type(change: dict[str, Any], as_type: dict[str, Any], says: str) -> None:
    known = {**USUAL, **change, **as_type}
    graph, expected = read({**USUAL, **change}), read(without(known, "architectures"))
    difference = {"dots1": 2 * 32 * 3 + 2 * 8}.get(as_type["model_type"], 0)  # its norms of heads, biases of scores
    assert parameters(graph)["total"] == parameters(expected)["total"] - difference
    assert says in str(graph.facts["assumed"])


def test_experts_and_windows_of_an_unknown_type() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    graph = read({**USUAL, **EXPERTS, "layer_types": kinds, "sliding_window": 64, "num_nextn_predict_layers": 1})
    assert [graph.layer(index).name for index in (1, 2, 3)] == ["sliding_dense", "full_moe", "sliding_moe"]
    assert "num_nextn_predict_layers" in str(graph.facts["left_out"])


@pytest.mark.parametrize(("change", "key"), [
    ({"mamba_d_state": 16}, "mamba_d_state"), ({"block_configs": [{}]}, "block_configs"),
    ({"decoder_sparse_step": 2}, "decoder_sparse_step"), ({"mlp_only_layers": [1]}, "mlp_only_layers"),
    ({"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
    ({"linear_num_key_heads": 4}, "linear_num_key_heads"), ({"conv_kernel": 4}, "conv_kernel"),
    ({"hidden_size": None}, "model_type"), ({"vocab_size": None}, "model_type"),
    ({"architectures": ["NewcomerForTokenClassification"]}, "architectures"),
    ({"layer_types": ["linear_attention"] * 3}, "layer_types"), ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ({"n_routed_experts": 8, "moe_intermediate_size": 96}, "num_experts_per_tok"),
    ({"vision_config": {"depth": 2}}, "vision_config"), ({"hidden_act": "sillu"}, "hidden_act"),
])
def test_an_unknown_type_that_can_not_be_guessed_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=rf"^config\.json: {key}: "):
        read({**USUAL, **change})


def test_what_a_plan_says_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        **config("qwen2-audio-nested"), "text_config": {**USUAL, "model_type": "qwen2"},
        "quantization_config": {"quant_method": "awq", "bits": 4}}))
    plan = autoplan.plan(autoplan.load_model(tmp_path), autoplan.load_cluster("dgx-a100-80gb:1"), seq_len=256,
                         global_batch_size=8)
    assert any("assumed of the model: " in note and "(awq)" in note for note in plan.notes)
    assert any("not in the model as read: the audio tower" in note and "629 million" in note for note in plan.notes)


def test_no_bits_are_saved_by_quantisation() -> None:
    llama = config("llama-2-7b")
    graph = read({**llama, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert graph.classes == read(llama).classes
    assert "(gptq)" in str(graph.facts["assumed"])


@pytest.mark.parametrize(("name", "family"), [
    ("llama-2-7b", "llama"), ("qwen3-30b-a3b", "qwen3_moe"), ("pythia-6.9b-deduped", "gpt_neox"),
    ("gemma-2-2b", "gemma2"), ("bge-large-bert", "bert"),
])
def test_the_architecture_tells_a_missing_type(name: str, family: str) -> None:
    graph = read(without(config(name), "model_type"))
    assert graph.classes == read(config(name)).classes
    assert f"model_type {family} (missing)" in str(graph.facts["assumed"])


@pytest.mark.parametrize(("name", "architecture", "head"), [
    ("mistral-7b-instruct-v0.2", "MistralModel", -32000 * 4096),
    ("bge-large-bert", "BertForMaskedLM", 30522 + 2 * 1024),
    ("bge-large-bert", "BertForSequenceClassification", 1024 + 1), ("derived/bart-large-cnn", "BartModel", 0),
    ("derived/all-minilm-l6-v1", "BertForPreTraining", 30522 + 2 * 384),
])
def test_heads(name: str, architecture: str, head: int) -> None:
    data = config(name)
    assert read({**data, "architectures": [architecture]}).num_params == read(data).num_params + head


@pytest.mark.parametrize(("name", "architecture"), [
    ("llama-2-7b", "LlamaForSequenceClassification"), ("bge-large-bert", "BertForQuestionAnswering"),
    ("derived/bart-large-cnn", "BartForCausalLM"), ("derived/whisper-tiny", "WhisperForAudioClassification"),
])
def test_other_heads_are_refused(name: str, architecture: str) -> None:
    with pytest.raises(InputError, match="architectures: "):
        read({**config(name), "architectures": [architecture]})


def test_a_decoder_inside_is_the_decoder_alone() -> None:
    """LLaVA's text model is Vicuna, Llama 2 with 64 more tokens; both ways to write it are read alike."""
    llava = config("llava-1.5-7b-hf-nested")
    vicuna = {**config("llama-2-7b"), "vocab_size": 32064}
    graph, alone = read(llava), read(vicuna)
    assert graph.layers[-34:-1] == (2, *[3] * 32)
    assert graph.classes[3].ops == alone.classes[1].ops
    tower, projector = 303_507_456, 1024 * 4096 + 4096 * 4096 + 2 * 4096
    assert graph.num_params == alone.num_params + tower + projector
    assert read({**llava, "text_config": vicuna}).classes == graph.classes
    assert read({**llava, "architectures": ["LlavaForCausalLM"]}).num_params == alone.num_params


def test_a_tower_of_an_unknown_kind_is_left_out_and_counted() -> None:
    data = {**config("llava-1.5-7b-hf-nested"), "model_type": "stranger"}
    graph = read(data)
    assert parameters(graph)["total"] == read({**config("llama-2-7b"), "vocab_size": 32064}).num_params
    assert "vision tower and its projector, about 302 million parameters" in str(graph.facts["left_out"])
    with pytest.raises(InputError, match=r"vision_config\.model_type: "):
        read({**config("llava-1.5-7b-hf-nested"), "vision_config": {"model_type": "pixtral"}})


def test_a_part_of_a_type_that_the_graph_can_not_express_is_refused() -> None:
    rwkv = {**USUAL, "model_type": "rwkv"}
    for data in (rwkv, {"model_type": "llava", "text_config": rwkv}):
        with pytest.raises(InputError, match=r"model_type: this type of model isn't supported: RWKV"):
            read(data)


def test_gemma_3_averages_its_patches() -> None:
    tower = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "image_size": 896,
             "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14}
    graph = read({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": tower,
                  "mm_tokens_per_image": 256, "text_config": {
                      "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                      "num_hidden_layers": 34, "sliding_window": 1024}})
    assert graph.num_params == pytest.approx(4_300_079_472, rel=1e-6)  # google/gemma-3-4b-it
    pooled = next(op for layer in graph.classes for op in layer.ops if op.name == "pooled")
    assert pooled.static_sizes == {"seq": 256, "kv_seq": 4096, "hidden": 1152}


def test_llama_3_2_vision_reads_its_image_in_eight_layers() -> None:
    text = {"model_type": "mllama_text_model", "hidden_size": 4096, "num_hidden_layers": 40, "vocab_size": 128256,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "cross_attention_layers": list(range(3, 40, 5))}
    vision = {"image_size": 560, "max_num_tiles": 4, "supported_aspect_ratios": [[1, 1]] * 8}
    graph = read({"model_type": "mllama", "text_config": text, "vision_config": vision})
    crossing = [layer.name for layer in graph.classes].index("cross")
    assert graph.layers.count(crossing) == 8
    left_out = 26_214_400 + 67_722_240  # as the note says: 10.67 billion in all (meta-llama/Llama-3.2-11B-Vision)
    assert all(f"{count:,}" in str(graph.facts["left_out"]) for count in (26_214_400, 67_722_240))
    assert parameters(graph)["total"] + left_out == pytest.approx(10_670_220_835, rel=1e-5)
    with pytest.raises(InputError, match="needs an encoder or a vision tower"):
        read({"model_type": "mllama", "text_config": text})


def test_kinds_of_layer_and_modules_for_further_tokens() -> None:
    deepseek = read(config("deepseek-v3"))
    assert deepseek.layers[:6] == (0, 1, 1, 1, 2, 2) and deepseek.layers.count(2) == 58
    assert parameters(deepseek)["mtp"] == pytest.approx(11.5e9, rel=0.02)  # 685 billion with it and shared tables
    qwen = read(config("qwen3.5-27b-hybrid"))
    names = [qwen.layer(index).name for index in range(qwen.num_layers)]
    assert (names.count("linear_dense"), names.count("full_dense"), names.count("vision")) == (48, 16, 27)
    nemotron = read(config("nemotron-h-56b-hybrid-mamba"))
    names = [nemotron.layer(index).name for index in range(nemotron.num_layers)]
    assert (names.count("mamba"), names.count("attention"), names.count("mlp")) == (54, 10, 54)
    maverick = read(config("llama-4-maverick-17b-128e"))
    names = [maverick.layer(index).name for index in range(maverick.num_layers)]
    assert names[1:5] == ["chunked_dense", "chunked_moe", "chunked_dense", "full_nope_moe"]


def test_windows_cost_less() -> None:
    gemma = config("gemma-2-2b")
    full = {**gemma, "layer_types": ["full_attention"] * 26}
    assert forward_flops_per_token(read(gemma), 8192) < forward_flops_per_token(read(full), 8192)


SOME = ["gpt-oss-20b", "qwen3.5-27b-hybrid", "qwen2-vl-7b", "llama-4-maverick-17b-128e", "gemma-4-26b-a4b",
        "llava-1.5-7b-hf-nested", "deepseek-v2-lite", "nemotron-h-56b-hybrid-mamba"]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 70_000), st.floats(), st.text(max_size=3),
                   st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1))


@given(name=st.sampled_from(SOME), data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_one_value_of_a_part_gives_a_graph_or_an_input_error(name: str, data: st.DataObject) -> None:
    whole = config(name)
    part = data.draw(st.sampled_from([whole, *(value for value in whole.values() if isinstance(value, dict))]))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
    try:
        graph = read(whole)
    except InputError as error:
        assert str(error).startswith("config.json: ")
    else:
        assert graph.num_params > 0
