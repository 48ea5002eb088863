"""Families of Hugging Face models: the parameters of transformers' own classes, option by option; published sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autoplan.model.architectures import build
from autoplan.model.facts import parameters
from autoplan.model.graph import ModelGraph
from autoplan.model.importers import huggingface
from autoplan.model.importers.keys import Keys

# Model type → options of its configuration that differ from the class's defaults. Counted on transformers' classes.
SMALL: dict[str, Any] = {"num_hidden_layers": 3}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}), ("mistral", SMALL),
    ("ministral", {"head_dim": 128, "num_hidden_layers": 5}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 4, "num_hidden_layers": 8}),
    ("qwen3", SMALL), ("gemma", SMALL), ("gemma2", SMALL), ("gemma3_text", {"num_hidden_layers": 8}), ("phi3", SMALL),
    ("cohere", {"use_qk_norm": True, "num_key_value_heads": 8, "num_hidden_layers": 4}),
    ("cohere2", {"num_hidden_layers": 5}), ("olmo", SMALL), ("olmo2", SMALL), ("olmo3", {"num_hidden_layers": 5}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True, "num_hidden_layers": 3}),
    ("starcoder2", {"use_bias": False, "num_hidden_layers": 3}), ("starcoder2", SMALL),
    ("nemotron", {"num_key_value_heads": 8, "num_hidden_layers": 3}), ("glm", SMALL), ("glm4", SMALL),
    ("smollm3", {"num_hidden_layers": 5}), ("exaone4", {"num_hidden_layers": 5}), ("ernie4_5", SMALL),
    ("seed_oss", SMALL), ("hunyuan_v1_dense", {"head_dim": 128, "num_hidden_layers": 3}), ("granite", SMALL),
    ("gpt2", {}), ("gpt_bigcode", {}), ("gpt_neo", {"num_layers": 4, "attention_types": [[["global", "local"], 2]]}),
    ("gptj", {"n_layer": 3}), ("codegen", {"n_layer": 3}),
    ("gpt_neox", {"attention_bias": False, "num_hidden_layers": 3, "use_parallel_residual": False}),
    ("opt", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
             "word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    ("bloom", {"hidden_size": 1024}), ("mpt", {"d_model": 1024, "n_layers": 3, "attn_config": {"alibi": True}}),
    ("falcon", {"new_decoder_architecture": True, "hidden_size": 4096, "num_attention_heads": 32, "num_kv_heads": 8,
                "num_hidden_layers": 3}),
    ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "hidden_size": 4096,
                "num_attention_heads": 32, "num_kv_heads": 8, "num_hidden_layers": 3}),
    ("falcon", {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False, "hidden_size": 2048,
                "num_attention_heads": 32, "num_hidden_layers": 3}),
    ("phi", {"num_key_value_heads": 8, "num_hidden_layers": 3}),
    ("mixtral", {"head_dim": 64, "sliding_window": 4096, "num_hidden_layers": 3}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True, "num_hidden_layers": 2}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 7}),
    ("qwen3_moe", SMALL), ("olmoe", SMALL), ("granitemoeshared", {"shared_intermediate_size": 64, **SMALL}),
    ("gpt_oss", SMALL),
    ("dbrx", {"d_model": 2048, "n_heads": 16, "n_layers": 3, "attn_config": {"kv_n_heads": 8, "rope_theta": 1e4},
              "ffn_config": {"ffn_hidden_size": 3000, "moe_num_experts": 4, "moe_top_k": 2}}),
    ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True, "num_hidden_layers": 4, "num_experts_per_tok": 6,
                     "moe_intermediate_size": 1408, "first_k_dense_replace": 1}),
    ("deepseek_v3", {"attention_bias": True, "num_hidden_layers": 4}), ("minicpm3", SMALL),
    ("glm4_moe", {"head_dim": 128, "num_hidden_layers": 4, "use_qk_norm": True, "attention_bias": True}),
    ("minimax_m2", SMALL),
    ("ernie4_5_moe", {"moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 2,
                      "num_hidden_layers": 9}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "num_hidden_layers": 8}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "num_hidden_layers": 6, "attention_k_eq_v": True,
                     "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 16, "top_k_experts": 2,
                     "moe_intermediate_size": 704}),
    ("mamba", {"hidden_size": 1024, "use_conv_bias": False, "tie_word_embeddings": False}),
    ("falcon_mamba", {}), ("mamba2", SMALL), ("nemotron_h", {}), ("jamba", {"num_hidden_layers": 8, "num_experts": 4}),
    ("bamba", {"num_hidden_layers": 3, "attn_layer_indices": [1]}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
                   "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, **SMALL}),
    ("granitemoehybrid", {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 2, "num_hidden_layers": 4,
                          "mamba_d_state": 128, "position_embedding_type": "rope"}),
    ("qwen3_next", {"num_hidden_layers": 4}), ("qwen3_5_text", {"num_hidden_layers": 4}),
    ("qwen3_5_moe_text", {"num_hidden_layers": 4}), ("minimax", {"num_hidden_layers": 4}),
    ("bert", {}), ("roberta", {}), ("distilbert", {}), ("vit", {"qkv_bias": False}), ("t5", {}), ("mt5", {}),
    ("llava", {}), ("llava_onevision", {}), ("paligemma", {}),
]
AUTO = ("ForCausalLM", "ForSeq2SeqLM", "ForMaskedLM", "ForImageTextToText", "ForImageClassification")


def read(data: dict[str, Any]) -> ModelGraph:
    return build(huggingface.from_keys(Keys(data, "config.json"), "m"))


@pytest.mark.parametrize(("model_type", "options"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_are_those_of_the_class(model_type: str, options: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("this version of transformers has no such class")
    config = transformers.CONFIG_MAPPING[model_type](**options)
    encoder = model_type in ("bert", "roberta")  # which can be used as decoders too
    with torch.device("meta"):
        module = next(auto.from_config(config) for name in AUTO if not (encoder and name == AUTO[0])
                      if type(config) in (auto := getattr(transformers, f"AutoModel{name}"))._model_mapping)
    module.tie_weights()
    expected = sum(parameter.numel() for parameter in module.parameters())
    data = {**json.loads(config.to_json_string(use_diff=False)), **options, "model_type": model_type,
            "architectures": [type(module).__name__]}
    assert parameters(read(data))["total"] == pytest.approx(expected, rel=1e-4)


# Configurations as published, with what their reports say in billions: in all, and active.
PUBLISHED: list[tuple[dict[str, Any], float, float | None]] = [
    ({"model_type": "minimax_text_01", "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 8,
      "head_dim": 128, "num_hidden_layers": 80, "intermediate_size": 9216, "num_local_experts": 32,
      "num_experts_per_tok": 2, "vocab_size": 200064, "attn_type_list": ([0] * 7 + [1]) * 10}, 456.0, 45.9),
    ({"model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
      "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 0.2476, None),
    ({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
      "attn_config": {"kv_n_heads": 8}, "max_seq_len": 32768,
      "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 131.6, 36.5),
    ({"model_type": "opt", "hidden_size": 9216, "num_attention_heads": 72, "num_hidden_layers": 64, "ffn_dim": 36864,
      "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 9216}, 65.7, None),
    ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "max_seq_len": 2048,
      "no_bias": True, "attn_config": {"alibi": True}}, 6.65, None),
]


@pytest.mark.parametrize(("data", "total", "active"), PUBLISHED, ids=[data["model_type"] for data, _, _ in PUBLISHED])
def test_published_sizes_of_others(data: dict[str, Any], total: float, active: float | None) -> None:
    counted = parameters(read(data))
    assert counted["total"] / 1e9 == pytest.approx(total, rel=5e-4)
    # MiniMax's report leaves the embedding and the head out of the active parameters.
    ends = counted["embedding"] + counted["head"] if data["model_type"] == "minimax_text_01" else 0
    assert active is None or (counted["active"] - ends) / 1e9 == pytest.approx(active, rel=2e-3)


def test_layers_that_search_has_set() -> None:
    """DeciLM: widths as ffn_mult gives them, groups of heads, and parts that are gone."""
    hidden, heads, vocab, head_dim = 512, 8, 1000, 64

    def block(group: int | None, mult: float | None) -> dict[str, Any]:
        return {"attention": {"n_heads_in_group": group, "no_op": group is None},
                "ffn": {"ffn_mult": mult, "no_op": mult is None}}

    data = {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": hidden,
            "num_attention_heads": heads, "num_hidden_layers": 5, "vocab_size": vocab, "intermediate_size": None,
            "num_key_value_heads": None,
            "block_configs": [block(4, 2.625), block(8, 1.0), block(None, 1.0), block(8, None), block(None, None)]}
    graph = read(data)
    attention = {kv: hidden * (2 * heads + 2 * kv) * head_dim + hidden for kv in (1, 2)}
    mlp = {width: 3 * hidden * width + hidden for width in (1024, 512)}  # 2/3 · 2.625 · 512 = 896, up to 256s
    assert graph.num_params == (2 * vocab * hidden + hidden + attention[2] + mlp[1024] + attention[1] + mlp[512]
                                + mlp[512] + attention[1])
    assert graph.num_layers == 7 and len(graph.classes) == 7


def test_old_decilm() -> None:
    data = {"model_type": "deci", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3,
            "vocab_size": 1000, "intermediate_size": 1024, "num_key_value_heads_per_layer": [4, 4, 1]}
    assert read(data).layers == (0, 1, 1, 2, 3)
