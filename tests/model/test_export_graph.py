"""The operator graph for other programs: all layers, sums that agree with the model's facts, and three formats."""

import io
import json

import networkx as nx
import pytest

from autoplan.errors import InputError
from autoplan.model import load
from autoplan.model.export_graph import operator_graph, text_of
from autoplan.model.facts import forward_flops_per_token


@pytest.fixture(scope="module")
def model():
    return load("llama-3.1-8b")


def test_every_operator_of_every_layer_is_a_node(model):
    made = operator_graph(model)
    assert len(made) == sum(len(model.layer(index).ops) for index in range(model.num_layers))
    assert nx.is_directed_acyclic_graph(made) and nx.is_weakly_connected(made)
    assert sum(data["parameters"] for _, data in made.nodes(data=True)) == model.num_params
    flops = sum(data["flops"] for _, data in made.nodes(data=True))
    assert flops // made.graph["seq_len"] == forward_flops_per_token(model, made.graph["seq_len"])
    assert made.edges["1.add2", "2.norm1", 0]["tensor"] == "x"


def test_graphml_and_json_are_read_back_equal(model):
    made = operator_graph(model)
    for text, read in ((text_of(model, "graphml"), lambda text: nx.read_graphml(io.BytesIO(text.encode()))),
                       (text_of(model, "json"), lambda text: nx.node_link_graph(json.loads(text), edges="edges"))):
        back = read(text)
        assert dict(back.nodes(data=True)) == dict(made.nodes(data=True))
        assert sorted(back.edges()) == sorted(made.edges())


def test_dot_has_a_cluster_a_layer_and_a_line_an_edge(model):
    text = text_of(model, "dot")
    assert text.count("subgraph cluster_") == model.num_layers and text.count(" -> ") == operator_graph(
        model).number_of_edges()
    assert text.count("{") == text.count("}") and text.startswith('digraph "llama-3.1-8b" {')


def test_another_format_is_refused(model):
    with pytest.raises(InputError, match=r"allowed: \.graphml, \.dot, \.json"):
        text_of(model, "png")
