"""Model files: every wrong value is one InputError that names file and key."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from autoplan import specs
from autoplan.errors import InputError
from autoplan.model import model_schema
from autoplan.model.spec import MAX_LAYERS, TransformerSpec, parse

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab_size": 100}


def test_defaults() -> None:
    spec = parse(SMALL, "f.yaml", "small")
    assert isinstance(spec, TransformerSpec)
    assert (spec.name, spec.vocab, spec.order) == ("small", 100, ("", ""))
    assert (spec.kinds[""].kv_heads, spec.kinds[""].head_dim) == (4, 16)


def test_a_file_may_name_its_model() -> None:
    assert parse({**SMALL, "name": "other"}, "f.yaml", "small").name == "other"


@pytest.mark.parametrize(("size", "multiple", "padded"), [(100, 1, 100), (100, 64, 128), (128, 64, 128), (1, 64, 64)])
def test_vocabulary_padding(size: int, multiple: int, padded: int) -> None:
    spec = parse({**SMALL, "vocab_size": size, "vocab_padding_multiple": multiple}, "f.yaml", "small")
    assert isinstance(spec, TransformerSpec)
    assert spec.vocab == padded


@pytest.mark.parametrize(("change", "key", "says"), [
    ({"layers": None}, "layers", "null"),
    ({"layers": "2"}, "layers", "'2'"),
    ({"layers": True}, "layers", "True"),
    ({"layers": 2.5}, "layers", "2.5"),
    ({"layers": 0}, "layers", "more than 0"),
    ({"ffn": None}, "ffn", "missing"),
    ({"moe": {"experts": 2, "top_k": 3, "ffn": 8}}, "moe.top_k", "more than experts 2"),
    ({"blocks": {"a": {"ffn": 8}}}, "pattern", "missing"),
    ({"blocks": {"a": {"ffn": 8}}, "pattern": ["b"]}, "pattern", "'b'"),
    ({"blocks": {"a": {"ffn": 8}, "b": {}}, "pattern": ["2 a"]}, "blocks.b", "isn't in the pattern"),
    ({"blocks": {"a": {"mixer": "mla"}}, "pattern": ["2 a"]}, "blocks.a.mla", "missing"),
    ({"blocks": {"a": {"fn": 8}}, "pattern": ["2 a"]}, "blocks.a.fn", "did you mean ffn"),
    ({"pattern": ["2 a b"]}, "pattern", "3 dense"),
    ({"mixer": "mamba2", "mamba": {"inner": 128, "state": 16}}, "mamba.heads", "missing"),
    ({"mixer": "mamba2", "mamba": {"inner": 128, "state": 16, "heads": 3}}, "mamba.heads", "divide inner 128"),
    ({"architecture": "encoder_decoder"}, "encoder", "needed"),
    ({"architecture": "encoder_decoder", "encoder": {"layers": 1, "heads": 3}}, "encoder.head_dim", "heads 3"),
    ({"cross_attention": True}, "cross_attention", "encoder"),
    ({"head": "classes"}, "classes", "needed"),
    ({"patches": {"image": 224, "patch": 15}}, "patches.patch", "divide image 224"),
    ({"patches": {"image": 224, "patch": 16}}, "vocab_size", "together with patches"),
    ({"hidden": -64}, "hidden", "-64"),
    ({"layers": MAX_LAYERS + 1}, "layers", f"at most {MAX_LAYERS}"),
    ({"vocab_size": 10**30}, "vocab_size", "at most"),
    ({"heads": 3}, "head_dim", "hidden 64 isn't a multiple of heads 3"),
    ({"kv_heads": 3}, "kv_heads", "doesn't divide heads 4"),
    ({"positions": "learned"}, "max_positions", "learned"),
    ({"positions": "learned", "max_positions": 8, "seq_len": 16}, "seq_len", "max_positions 8"),
    ({"positions": "sinusoidal"}, "positions", "rotary"),
    ({"biases": ["w"]}, "biases.0", "qkv"),
    ({"biases": "qkv"}, "biases", "a list"),
    ({"gated": 1}, "gated", "true or false"),
    ({"architecture": "moe"}, "architecture", "decoder"),
    ({"name": ""}, "name", "empty"),
    ({"hiden": 64}, "hiden", "did you mean hidden"),
])
def test_wrong_values(change: dict[str, object], key: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse({**SMALL, **change}, "f.yaml", "small")
    message = str(caught.value)
    assert message.startswith(f"f.yaml: {key}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize("key", sorted(SMALL))
def test_missing_keys(key: str) -> None:
    with pytest.raises(InputError, match=rf"f\.yaml: {key}: .*missing"):
        parse({name: value for name, value in SMALL.items() if name != key}, "f.yaml", "small")


def test_blocks_say_only_in_what_they_differ() -> None:
    spec = parse({**SMALL, "layers": 5, "window": 8, "pattern": ["2 local", "full"],
                  "blocks": {"local": {}, "full": {"window": None, "heads": 8}}}, "f.yaml", "small")
    assert isinstance(spec, TransformerSpec)
    assert spec.order == ("local", "local", "full", "local", "local")
    assert [(block.heads, block.head_dim, block.window) for block in spec.kinds.values()] == [(4, 16, 8), (8, 8, None)]


def test_an_encoder_is_like_its_decoder_where_nothing_else_is_said() -> None:
    spec = parse({**SMALL, "architecture": "encoder_decoder", "cross_attention": True,
                  "encoder": {"layers": 3, "ffn": 256}}, "f.yaml", "small")
    assert isinstance(spec, TransformerSpec) and spec.encoder is not None
    assert (spec.encoder.hidden, spec.encoder.heads, spec.encoder.ffn) == (64, 4, 256)
    assert spec.cross_attention and not spec.encoder.cross_attention


def test_the_mlp_and_the_mixer_are_those_whose_dimensions_are_given() -> None:
    moe = {"experts": 8, "top_k": 2, "ffn": 32}
    mla = {"kv_rank": 16, "nope_dim": 8, "rope_dim": 8, "v_dim": 8}
    spec = parse({**SMALL, "moe": moe, "mla": mla, "pattern": ["dense", "sparse"],
                  "blocks": {"dense": {"mlp": "dense", "mixer": "attention"}, "sparse": {}}}, "f.yaml", "small")
    assert isinstance(spec, TransformerSpec)
    assert [(block.mixer_kind, block.mlp_kind) for block in spec.kinds.values()] == [
        ("attention", "dense"), ("mla", "moe")]


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_a_file_holds_a_mapping(data: object) -> None:
    with pytest.raises(InputError, match=r"f\.yaml: .*mapping"):
        parse(data, "f.yaml", "small")


@pytest.mark.parametrize("name", specs.names("models"))
def test_shipped_files_follow_the_schema(name: str) -> None:
    data = yaml.safe_load((specs.shipped("models") / f"{name}.yaml").read_text())
    jsonschema.validate(data, model_schema())


def test_the_schema_refuses() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**SMALL, "hiden": 64}, model_schema())
