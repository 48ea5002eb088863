"""Model files: every wrong value is one InputError that names file and key."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from autoplan import specs
from autoplan.errors import InputError
from autoplan.model import model_schema
from autoplan.model.spec import MAX_LAYERS, parse

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab_size": 100}


def test_defaults() -> None:
    spec = parse(SMALL, "f.yaml", "small")
    assert (spec.name, spec.num_kv_heads, spec.head_size, spec.vocab) == ("small", 4, 16, 100)


def test_a_file_may_name_its_model() -> None:
    assert parse({**SMALL, "name": "other"}, "f.yaml", "small").name == "other"


@pytest.mark.parametrize(("size", "multiple", "padded"), [(100, 1, 100), (100, 64, 128), (128, 64, 128), (1, 64, 64)])
def test_vocabulary_padding(size: int, multiple: int, padded: int) -> None:
    spec = parse({**SMALL, "vocab_size": size, "vocab_padding_multiple": multiple}, "f.yaml", "small")
    assert spec.vocab == padded


@pytest.mark.parametrize(("change", "key", "says"), [
    ({"layers": None}, "layers", "null"),
    ({"layers": "2"}, "layers", "'2'"),
    ({"layers": True}, "layers", "True"),
    ({"layers": 2.5}, "layers", "2.5"),
    ({"layers": 0}, "layers", "more than 0"),
    ({"hidden": -64}, "hidden", "-64"),
    ({"layers": MAX_LAYERS + 1}, "layers", f"at most {MAX_LAYERS}"),
    ({"vocab_size": 10**30}, "vocab_size", "at most"),
    ({"heads": 3}, "head_dim", "hidden 64 isn't a multiple of heads 3"),
    ({"kv_heads": 3}, "kv_heads", "doesn't divide heads 4"),
    ({"positions": "learned"}, "max_positions", "learned"),
    ({"positions": "learned", "max_positions": 8, "seq_len": 16}, "seq_len", "max_positions 8"),
    ({"positions": "sinusoidal"}, "positions", "rotary"),
    ({"biases": ["q"]}, "biases.0", "qkv"),
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
