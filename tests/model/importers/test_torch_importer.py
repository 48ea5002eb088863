"""PyTorch: Hugging Face models without weights, convolutions, what is unknown, and what is refused."""

import json

import gpt_everywhere as gpt
import pytest

import autoplan
from autoplan.errors import InputError
from autoplan.model.facts import forward_flops_per_token, parameters

torch = pytest.importorskip("torch")
nn = torch.nn

TOKENS = torch.zeros((2, gpt.SEQ), dtype=torch.long)


@pytest.mark.parametrize("layers", [4])
def test_a_hugging_face_llama_is_its_config(layers, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=256, intermediate_size=704, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=1000, use_cache=False, architectures=["LlamaForCausalLM"])
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config)
    imported, read = autoplan.from_torch(module, TOKENS[:1]), autoplan.load_model(tmp_path)
    assert imported.layers == read.layers == (0, *[1] * layers, 2)
    assert [layer.key for layer in imported.classes] == [layer.key for layer in read.classes]


def test_a_module_with_weights_is_left_as_it_is():
    module = gpt.torch_module().to_empty(device="cpu").train()
    module.head.weight = module.tokens.weight
    graph = autoplan.from_torch(module, TOKENS)
    assert module.training and not any(tensor.is_meta for tensor in module.parameters())
    assert parameters(graph) == parameters(gpt.built_in())


def test_causal_masks_of_buffers_are_assumed_and_said():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.qkv = nn.Embedding(100, 32), nn.Linear(32, 96)
            self.register_buffer("mask", torch.tril(torch.ones(gpt.SEQ, gpt.SEQ)).bool())

        def forward(self, tokens):
            q, k, v = self.qkv(self.table(tokens)).split(32, dim=-1)
            scores = (q @ k.transpose(-1, -2)).masked_fill(~self.mask, float("-inf"))
            return scores.softmax(-1) @ v @ self.table.weight.T

    graph = autoplan.from_torch(Masked(), TOKENS)
    (attention,) = [op for layer in graph.classes for op in layer.ops if op.kind == "attention"]
    assert attention.attr("causal") is True and "mask is a causal mask" in str(graph.facts["assumed"])


def test_a_residual_network_is_cut_at_its_blocks():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                                       nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))

        def forward(self, x):
            return torch.relu(x + self.parts(x))

    module = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *(Block() for _ in range(4)), nn.AdaptiveAvgPool2d(1),
                           nn.Flatten(), nn.Linear(16, 10))
    graph = autoplan.from_torch(module, torch.zeros(1, 3, 8, 8))
    assert graph.layers[1:-1] == (1,) * 4 and graph.num_params == sum(p.numel() for p in module.parameters())
    flops = 2 * (64 * 16 * (27 + 8 * 144) + 160)
    assert forward_flops_per_token(graph, 1) == flops
    assert [op.kind for op in graph.classes[1].ops] == [
        "convolution", "norm", "elementwise", "convolution", "norm", "elementwise", "elementwise"]


def test_an_operator_that_nobody_knows_is_named_with_its_share():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)

        def forward(self, tokens):
            x = self.table(tokens)
            return self.head(torch.linalg.svdvals(x).unsqueeze(-1) + x)

    graph = autoplan.from_torch(Odd(), TOKENS)
    assert "svd" in str(graph.facts["unpriced"]) and 0 < float(graph.facts["unpriced_share"]) < 0.01


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x) if x.sum() > 0 else x


@pytest.mark.parametrize(("module", "words"), [
    (Branching(), "can't be exported"), (nn.ReLU(), "multiplies no matrices")])
def test_what_is_no_model_is_refused(module, words):
    with pytest.raises(InputError, match=words):
        autoplan.from_torch(module, torch.zeros(4, 8))
