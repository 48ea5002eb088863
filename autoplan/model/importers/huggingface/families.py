"""Which reader reads which `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoplan.model.importers.huggingface import encoders, experts, gpt, hybrid, llama
from autoplan.model.importers.huggingface.common import Fields
from autoplan.model.importers.keys import Keys


@dataclass(frozen=True)
class Family:
    """A reader, and what it may find in a file that others may not.

    experts: it reads mixtures of experts. decoder: it's a decoder, whose architecture must be a language model's.
    """

    read: Callable[[Keys], Fields]
    experts: bool = False
    decoder: bool = True


def _named(read: Callable[[Keys], Fields], *types: str, experts: bool = False,
           decoder: bool = True) -> dict[str, Family]:
    return dict.fromkeys(types, Family(read, experts, decoder))


FAMILIES: Mapping[str, Family] = {
    **_named(llama.llama, "llama", "granite", "helium", "Yi"),
    **_named(llama.mllama, "mllama_text_model"),
    **_named(llama.mistral, "mistral"),
    **_named(llama.ministral, "ministral"),
    **_named(llama.qwen1, "qwen"),
    **_named(llama.qwen2, "qwen2"),
    **_named(llama.qwen3, "qwen3"),
    **_named(llama.gemma, "gemma"),
    **_named(llama.gemma2, "gemma2"),
    **_named(llama.gemma3, "gemma3_text"),
    **_named(llama.phi3, "phi3"),
    **_named(llama.phi3small, "phi3small"),
    **_named(llama.cohere, "cohere"),
    **_named(llama.cohere2, "cohere2"),
    **_named(llama.olmo, "olmo"),
    **_named(llama.olmo2, "olmo2", "olmo3"),
    **_named(llama.stablelm, "stablelm", "stablelm_epoch"),
    **_named(llama.starcoder2, "starcoder2"),
    **_named(llama.nemotron, "nemotron"),
    **_named(llama.glm, "glm", "glm4"),
    **_named(llama.chatglm, "chatglm"),
    **_named(llama.smollm3, "smollm3"),
    **_named(llama.exaone4, "exaone4"),
    **_named(llama.ernie, "ernie4_5"),
    **_named(llama.seed_oss, "seed_oss"),
    **_named(llama.hunyuan, "hunyuan_v1_dense"),
    **_named(llama.internlm, "internlm", "internlm2", "internlm3"),
    **_named(llama.baichuan, "baichuan"),
    **_named(llama.minicpm, "minicpm"),
    **_named(gpt.gpt2, "gpt2"),
    **_named(gpt.gpt_bigcode, "gpt_bigcode"),
    **_named(gpt.gpt_neo, "gpt_neo"),
    **_named(gpt.gptj, "gptj", "codegen"),
    **_named(gpt.gpt_neox, "gpt_neox"),
    **_named(gpt.opt, "opt"),
    **_named(gpt.bloom, "bloom"),
    **_named(gpt.mpt, "mpt"),
    **_named(gpt.falcon, "falcon", "RefinedWeb", "RefinedWebModel"),
    **_named(gpt.phi, "phi"),
    **_named(experts.mixtral, "mixtral", experts=True),
    **_named(experts.phimoe, "phimoe", experts=True),
    **_named(experts.qwen2_moe, "qwen2_moe", experts=True),
    **_named(experts.qwen3_moe, "qwen3_moe", experts=True),
    **_named(experts.olmoe, "olmoe", experts=True),
    **_named(experts.granitemoe, "granitemoe", "granitemoeshared", experts=True),
    **_named(experts.gpt_oss, "gpt_oss", experts=True),
    **_named(experts.dbrx, "dbrx", experts=True),
    **_named(experts.grok, "grok-1", experts=True),
    **_named(experts.deepseek, "deepseek_v2", "deepseek_v3", "kimi_k2", experts=True),
    **_named(experts.minicpm3, "minicpm3"),
    **_named(experts.glm4_moe, "glm4_moe", experts=True),
    **_named(experts.dots1, "dots1", experts=True),
    **_named(experts.minimax_m2, "minimax_m2", experts=True),
    **_named(experts.ernie_moe, "ernie4_5_moe", experts=True),
    **_named(experts.llama4, "llama4_text", experts=True),
    **_named(experts.gemma4, "gemma4_text", experts=True),
    **_named(hybrid.mamba, "mamba", "falcon_mamba"),
    **_named(hybrid.mamba2, "mamba2"),
    **_named(hybrid.nemotron_h, "nemotron_h", experts=True),
    **_named(hybrid.jamba, "jamba", experts=True),
    **_named(hybrid.bamba, "bamba"),
    **_named(hybrid.falcon_h1, "falcon_h1"),
    **_named(hybrid.granite_hybrid, "granitemoehybrid", experts=True),
    **_named(hybrid.qwen3_next, "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", experts=True),
    **_named(hybrid.minimax, "minimax", "minimax_text_01", "minimax_m1", experts=True),
    **_named(hybrid.decilm, "deci", "deci_lm", "nemotron-nas"),
    **_named(encoders.bert, "bert", "roberta", "xlm-roberta", "camembert", decoder=False),
    **_named(encoders.distilbert, "distilbert", decoder=False),
    **_named(encoders.vit, "vit", "deit", decoder=False),
    **_named(encoders.t5, "t5", "mt5", decoder=False),
    **_named(encoders.bart, "bart", "mbart", decoder=False),
    **_named(encoders.whisper, "whisper", decoder=False),
}

# Types whose usual keys hide what the graph can't express.
REFUSED: Mapping[str, str] = {
    "albert": "its layers share their parameters",
    "clip": "two towers with a contrastive loss", "siglip": "two towers with a contrastive loss",
    "deberta": "disentangled attention", "deberta-v2": "disentangled attention",
    "deepseek_v32": "sparse attention that an indexer chooses",
    "glm_moe_dsa": "sparse attention that an indexer chooses",
    "electra": "a discriminator's head and embeddings of another width",
    "gemma3n": "several streams and embeddings of each layer's own",
    "gemma3n_text": "several streams and embeddings of each layer's own",
    "kimi_linear": "Kimi's delta attention", "lfm2": "short convolutions in the place of attention",
    "lfm2_moe": "short convolutions in the place of attention", "modernbert": "encoders with windows and gated MLPs",
    "persimmon": "a LayerNorm of queries and keys", "recurrent_gemma": "gated linear recurrences",
    "rwkv": "RWKV's recurrence", "switch_transformers": "experts in an encoder-decoder", "xlnet": "two streams",
    "zamba": "layers that share their parameters", "zamba2": "layers that share their parameters",
}
