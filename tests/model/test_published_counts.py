"""Shipped models have the parameters that are published of them: in all, and those that a token passes."""

from __future__ import annotations

import pytest
from test_model_load import MEGATRON, SHIPPED

from autoplan import specs
from autoplan.model import load
from autoplan.model.architectures import build
from autoplan.model.facts import forward_flops_per_token, kv_elements_per_token, parameters
from autoplan.model.spec import parse

# Billions of parameters in all and active; to the digits that are published.
PUBLISHED = {
    "bert-large": (0.3352, 0.3352), "bloom-176b": (176.247, 176.247), "deepseek-v3": (671.0, 37.6),
    "gpt-oss-20b": (20.91, None), "gpt-oss-120b": (116.83, None), "llama-3-8b": (8.03, 8.03),
    "llama-3-70b": (70.55, 70.55), "llama-4-maverick-17b-128e": (400.7, 17.2), "mixtral-8x7b": (46.70, 12.88),
    "mixtral-8x22b": (140.62, 39.15), "mt-nlg-530b": (529.6, 529.6), "nemotron-4-15b": (15.63, 15.63),
    "nemotron-4-340b": (341.0, 341.0), "qwen3-8b": (8.191, 8.191), "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-32b": (32.76, 32.76), "qwen3-235b-a22b": (235.09, 22.19), "t5-large": (0.7377, 0.7377),
    "t5-11b": (11.31, 11.31), "vit-h-14": (0.632, 0.632), "vit-l-16": (0.3043, 0.3043),
    "wide-resnet-250m": (0.254123, 0.254123), "wide-resnet-500m": (0.495046, 0.495046),
    "wide-resnet-1b": (1.005653, 1.005653), "wide-resnet-2b": (1.965011, 1.965011),
}
# The names of these say their sizes roughly (Scout's with its vision tower).
NAMED = {"grok-1-314b": 314.0, "llama-4-scout-17b-16e": 109.0,
         "gshard-moe-380m": 0.38, "gshard-moe-690m": 0.69, "gshard-moe-1.3b": 1.3, "gshard-moe-2.4b": 2.4,
         "gshard-moe-10b": 10.0, "gshard-moe-27b": 27.0, "gshard-moe-70b": 70.0, "wide-resnet-4b": 4.0,
         "wide-resnet-6.8b": 6.8, "wide-resnet-13b": 13.0}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_sizes(name: str) -> None:
    counted, (total, active) = parameters(load(name)), PUBLISHED[name]
    assert counted["total"] / 1e9 == pytest.approx(total, rel=1e-3)
    assert active is None or counted["active"] / 1e9 == pytest.approx(active, rel=2e-3)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_sizes_in_names(name: str) -> None:
    assert parameters(load(name))["total"] / 1e9 == pytest.approx(NAMED[name], rel=0.04)


@pytest.mark.parametrize(("fields", "millions"), [  # torchvision's counts
    ({"stages": [3, 4, 6, 3]}, 25.557), ({"stages": [3, 4, 6, 3], "width_factor": 2}, 68.883),
    ({"stages": [2, 2, 2, 2], "block": "basic"}, 11.690), ({"stages": [3, 4, 6, 3], "block": "basic"}, 21.798),
])
def test_residual_networks(fields: dict[str, object], millions: float) -> None:
    graph = build(parse({"architecture": "resnet", "classes": 1000, **fields}, "f.yaml", "resnet"))
    assert graph.num_params / 1e6 == pytest.approx(millions, abs=1e-3)


def test_flops_of_resnet_50_and_vit() -> None:
    """4.09 billion multiply-adds an image (He et al., 2015: 3.8, the stride elsewhere), and 61.6 of ViT-L/16."""
    resnet = build(parse({"architecture": "resnet", "classes": 1000, "stages": [3, 4, 6, 3]}, "f.yaml", "resnet"))
    assert forward_flops_per_token(resnet, 1) / 2e9 == pytest.approx(4.09, rel=1e-3)
    assert 197 * forward_flops_per_token(load("vit-l-16"), 197) / 2e9 == pytest.approx(61.6, rel=0.01)


SSM = {"layers": 64, "hidden": 2560, "mlp": "none", "tied_embeddings": True}
RECURRENT = [  # published: state-spaces/mamba-2.8b, mamba2-2.7b
    ({**SSM, "vocab_size": 50280, "mixer": "mamba", "mamba": {"inner": 5120, "state": 16, "dt_rank": 160}}, 2.7683),
    ({**SSM, "vocab_size": 50288, "mixer": "mamba2", "mamba": {"inner": 5120, "state": 128, "heads": 80}}, 2.7026),
]


@pytest.mark.parametrize(("fields", "billions"), RECURRENT)
def test_state_space_models(fields: dict[str, object], billions: float) -> None:
    graph = build(parse(fields, "f.yaml", "mamba"))
    assert graph.num_params / 1e9 == pytest.approx(billions, rel=1e-4)
    assert kv_elements_per_token(graph) == 0


def test_a_latent_cache_holds_the_latent_and_the_shared_rotary_key() -> None:
    assert kv_elements_per_token(load("deepseek-v3")) == 61 * (512 + 64) + 576  # of 61 layers and of the module


def test_modules_that_predict_further_tokens_count_apart() -> None:
    counted = parameters(load("deepseek-v3"))
    assert counted["mtp"] > 0
    assert counted["embedding"] + counted["layers"] + counted["head"] == counted["total"]


def test_experts_flops_are_those_of_the_chosen() -> None:
    mixtral = load("mixtral-8x7b")
    counted = parameters(mixtral)
    norms = mixtral.num_layers and 65 * 4096
    products = counted["active"] - counted["embedding"] - norms
    assert forward_flops_per_token(mixtral, 4096) == 2 * products + 32 * 4 * 32 * 128 * 4096


def test_every_shipped_model_is_checked() -> None:
    counted = {*PUBLISHED, *NAMED, *SHIPPED, *(f"megatron-gpt-{size}" for size in MEGATRON)}
    assert set(specs.names("models")) == counted
