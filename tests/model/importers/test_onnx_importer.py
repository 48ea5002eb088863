"""ONNX: published networks without weights, symbolic sizes, what is unknown, and what is refused."""

import math
from pathlib import Path

import gpt_everywhere as gpt
import pytest

import autoplan
from autoplan.errors import InputError
from autoplan.model.facts import forward_flops_per_token

onnx = pytest.importorskip("onnx")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT

GRAPHS = Path(__file__).parents[4] / "shared" / "reference" / "graphs" / "onnx"

# Parameters of the files: ResNet-50 and SqueezeNet have torchvision's; DenseNet has a scale after each batch norm too.
NETWORKS = {"bvlc_alexnet": 60_965_224, "densenet121": 8_062_504, "inception_v1": 6_998_552, "resnet50": 25_557_032,
            "squeezenet": 1_235_496}


def products(path):
    """The FLOPs of a network's convolutions and matrix products, from the shapes that ONNX infers."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in values}
    shapes |= {one.name: list(one.dims) for one in model.graph.initializer}
    return sum(2 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
               for node in model.graph.node if node.op_type in ("Conv", "Gemm"))  # Gemm's weight is [out, in] here


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_published_network_is_read_whole(name):
    path = GRAPHS / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    graph = autoplan.from_onnx(path)
    assert graph.num_params == NETWORKS[name] and forward_flops_per_token(graph, 1) == products(path)
    assert "unpriced" not in graph.facts


def test_a_residual_network_has_its_stages_of_equal_blocks():
    path = GRAPHS / "light_resnet50.onnx"
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    graph = autoplan.from_onnx(path)
    runs = [graph.layers.count(index) for index in range(len(graph.classes))]
    assert [run for run in runs if run > 1] == [2, 3, 5, 2]  # of 3, 4, 6, 3 blocks all but each first


def save(tmp_path, nodes, inputs, outputs, weights=(), version=17):
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [onnx.TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=onnx.TensorProto.EXTERNAL,
                          external_data=[onnx.StringStringEntryProto(key="location", value="w.bin")])
         for name, shape in weights])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8), path)
    return path


def test_symbolic_dims_take_the_sizes_asked_for(tmp_path):
    gpt.onnx_file(tmp_path / "gpt.onnx")
    graph = autoplan.from_onnx(tmp_path / "gpt.onnx", sizes={"sequence": 16})
    assert graph.facts["seq_len"] == 16 and graph.classes[1].key == gpt.built_in().classes[1].key


def test_a_recurrent_layer_has_no_price_but_a_share(tmp_path):
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=16),
             helper.make_node("Squeeze", ["y", "axes"], ["z"]), helper.make_node("MatMul", ["z", "head"], ["out"])]
    path = save(tmp_path, nodes, [("x", FLOAT, [32, 4, 8])], ["out"],
                [("w", (1, 64, 8)), ("r", (1, 64, 16)), ("head", (16, 100))])
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1]))
    onnx.save(model, path)
    graph = autoplan.from_onnx(path)
    recurrent, head = 2 * 32 * 4 * 64 * (8 + 16), 2 * 32 * 4 * 16 * 100
    assert str(graph.facts["unpriced"]).startswith("LSTM")
    assert graph.facts["unpriced_share"] == pytest.approx(recurrent / (recurrent + head))


def test_attention_of_the_standard_keeps_its_heads(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", name], [name * 2]) for name in ("q", "k", "v")]
    nodes += [helper.make_node("Attention", ["qq", "kk", "vv"], ["y"], q_num_heads=8, kv_num_heads=2, is_causal=1),
              helper.make_node("MatMul", ["y", "o"], ["out"])]
    weights = [("q", (64, 64)), ("k", (64, 16)), ("v", (64, 16)), ("o", (64, 64))]
    path = save(tmp_path, nodes, [("x", FLOAT, ["batch", 32, 64])], ["out"], weights, version=23)
    graph = autoplan.from_onnx(path)
    (attention,) = [op for layer in graph.classes for op in layer.ops if op.kind == "attention"]
    assert (attention.static_sizes["heads"], attention.attr("kv_heads"), attention.attr("causal")) == (8, 2, True)


def test_what_is_no_model_is_refused(tmp_path):
    text = tmp_path / "text.onnx"
    text.write_text("no protobuf")
    with pytest.raises(InputError, match="no ONNX model"):
        autoplan.from_onnx(text)
    with pytest.raises(InputError, match="no such file"):
        autoplan.load_model("missing.onnx")
    nodes = [helper.make_node("Mystery", ["x"], ["y"], domain="nowhere")]
    with pytest.raises(InputError, match=r"nowhere\.Mystery: its shapes aren't known"):
        autoplan.from_onnx(save(tmp_path, nodes, [("x", FLOAT, [2, 8])], ["y"]))
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("MatMul", ["n", "w"], ["y"])]
    with pytest.raises(InputError, match="NonZero: the shape of n depends on data"):
        autoplan.from_onnx(save(tmp_path, nodes, [("x", FLOAT, [2, 8])], ["y"], [("w", (8, 8))]))


def test_a_network_of_concatenations_is_planned():
    path = GRAPHS / "light_squeezenet.onnx"
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    plan = autoplan.plan(str(path), "p3.16xlarge:8")
    assert plan.workload.global_batch_size == 256 and 0.02 < plan.predicted.mfu < 0.5
