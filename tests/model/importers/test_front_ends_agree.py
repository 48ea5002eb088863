"""The same GPT from a model file, JAX, PyTorch and ONNX is the same graph: the same FLOPs and the same plan."""

import gpt_everywhere as gpt
import pytest

import autoplan
from autoplan.model.facts import forward_flops_per_token, parameters


def from_jax(tmp_path):
    jax = pytest.importorskip("jax")
    return autoplan.from_jax(gpt.jax_loss, gpt.jax_parameters(), jax.ShapeDtypeStruct((2, gpt.SEQ), "int32"))


def train_step_from_jax(tmp_path):
    jax = pytest.importorskip("jax")

    def step(params, tokens):
        loss, gradients = jax.value_and_grad(gpt.jax_loss)(params, tokens)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return autoplan.from_jax(step, gpt.jax_parameters(), jax.ShapeDtypeStruct((2, gpt.SEQ), "int32"))


def from_torch(tmp_path):
    torch = pytest.importorskip("torch")
    return autoplan.from_torch(gpt.torch_module(), torch.zeros((1, gpt.SEQ), dtype=torch.long))


def from_onnx(tmp_path):
    pytest.importorskip("onnx")
    gpt.onnx_file(tmp_path / "gpt.onnx")
    return autoplan.from_onnx(tmp_path / "gpt.onnx", sizes={"sequence": gpt.SEQ})


def from_onnx_with_a_fixed_batch(tmp_path):
    pytest.importorskip("onnx")
    gpt.onnx_file(tmp_path / "gpt.onnx", batch=1)
    return autoplan.from_onnx(tmp_path / "gpt.onnx", sizes={"sequence": gpt.SEQ})


@pytest.mark.parametrize("front_end", [from_jax, train_step_from_jax, from_torch, from_onnx,
                                       from_onnx_with_a_fixed_batch])
def test_a_front_end_gives_the_model_files_graph(front_end, tmp_path):
    imported, built_in = front_end(tmp_path), gpt.built_in()
    assert [layer.key for layer in imported.classes] == [layer.key for layer in built_in.classes]
    assert imported.layers == built_in.layers
    assert parameters(imported) == parameters(built_in)
    assert forward_flops_per_token(imported, gpt.SEQ) == forward_flops_per_token(built_in, gpt.SEQ)


def test_the_same_graph_has_the_same_plan(tmp_path):
    def plan(model):
        found = autoplan.plan(model, "dgx-a100-80gb:8", global_batch_size=32, seq_len=gpt.SEQ)
        return found.model_dump(include={"stages", "parallelism", "predicted"})

    assert plan(from_jax(tmp_path)) == plan(gpt.built_in())
