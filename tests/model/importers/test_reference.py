"""`module:function`: a model made by a user's own code."""

import json

import pytest

import autoplan
from autoplan.errors import InputError

CODE = """
import autoplan

def loaded():
    return autoplan.load_model("gpt-350m")

def jax_model():
    import jax, jax.numpy as jnp
    of = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    loss = lambda p, t: -jax.nn.log_softmax(jnp.tanh(p["e"][t] @ p["w"]) @ p["h"]).mean()
    return loss, {"e": of(100, 16), "w": of(16, 32), "h": of(32, 100)}, jax.ShapeDtypeStruct((2, 8), "int32")

def torch_model():
    import torch
    return torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100)), torch.zeros(2, 8).long()

def number():
    return 3

def broken():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "their_models"


@pytest.mark.parametrize(("function", "needs", "parameters"), [
    ("loaded", None, None), ("jax_model", "jax", 100 * 16 + 16 * 32 + 32 * 100), ("torch_model", "torch", 3300)])
def test_a_function_gives_a_model(module, function, needs, parameters):
    if needs:
        pytest.importorskip(needs)
    graph = autoplan.load_model(f"{module}:{function}")
    assert graph.num_params == (parameters or autoplan.load_model("gpt-350m").num_params)


@pytest.mark.parametrize(("reference", "words"), [
    ("nowhere_at_all:f", "ModuleNotFoundError"), ("their_models:missing", "AttributeError"),
    ("their_models:number", "makes no model"), ("their_models:broken", "RuntimeError: no weights")])
def test_what_gives_none_is_refused(module, reference, words):
    with pytest.raises(InputError, match=words):
        autoplan.load_model(reference)


def test_the_command_line_takes_it_and_writes_its_graph(module, tmp_path, capsys):
    from autoplan.cli import cli

    cli.main(["models", "show", f"{module}:loaded", "--json", "--graph", "graph.json"], standalone_mode=False)
    facts = json.loads(capsys.readouterr().out)
    nodes = json.loads((tmp_path / "graph.json").read_text())["nodes"]
    assert sum(node["parameters"] for node in nodes) == facts["parameters"]["total"] + 51200 * 1024  # the tied head
