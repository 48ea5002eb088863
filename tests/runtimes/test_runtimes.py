"""Runtime files: all load, and speak of loop dims and operators that exist."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.model import ops
from autoplan.model.architectures import build
from autoplan.model.graph import BATCH, SEQ
from autoplan.model.spec import TransformerSpec
from autoplan.runtimes import FOLDER, TensorOverlap, load, names
from autoplan.workload import Precision, Schedule, Workload

MOE = {"experts": 8, "top_k": 2, "ffn": 32}
OPS = [op for moe in (None, MOE) for layer in build(TransformerSpec(
    name="any", layers=1, hidden=64, heads=4, kv_heads=2, ffn=128, gated=True, vocab_size=100, positions="learned",
    max_positions=128, qk_norm=True, moe=moe)).classes for op in layer.ops]


def test_each_file_is_a_runtime_of_its_own_name() -> None:
    assert names() == tuple(sorted(path.stem for path in FOLDER.glob("*.yaml"))) and "plain" in names()
    for name in names():
        assert load(name).name == name
        assert load(name) is load(name)


@pytest.mark.parametrize("name", names())
def test_roles_and_splits_are_legal_somewhere(name: str) -> None:
    runtime = load(name)
    splittable = {dim for op in OPS for dim in ops.splittable(op)}
    for role, dims in runtime.roles.items():
        assert dims and len(set(dims)) == len(dims), role
        assert set(dims) <= splittable, role
    for kind, dims in runtime.free_splits.items():
        assert set(dims) <= {dim for op in OPS if op.kind == kind for dim in ops.splittable(op)}, kind


@pytest.mark.parametrize("name", names())
def test_figures_are_sane(name: str) -> None:
    runtime = load(name)
    assert runtime.source and runtime.version
    assert runtime.bucket_bytes > 0 and 0 <= runtime.operation_seconds < 1e-3 and runtime.gathered_layers >= 1
    assert 0 < runtime.low.context_bytes <= runtime.likely.context_bytes <= runtime.high.context_bytes < 8 * 2**30
    assert 0 <= runtime.low.allocator_slack <= runtime.likely.allocator_slack <= runtime.high.allocator_slack < 1
    assert 0 <= runtime.overlap.slowdown < 1 and runtime.extra_in_flight >= 0
    assert runtime.linear == (runtime.overlap.nothing and runtime.operation_seconds == 0)


@pytest.mark.parametrize("name", names())
def test_offers_hold_the_simplest_choice(name: str) -> None:
    runtime = load(name)
    assert Schedule.ONE_F_ONE_B in runtime.schedules and len(set(runtime.schedules)) == len(runtime.schedules)
    assert set(runtime.pipeline_zero) <= set(runtime.zero) <= {0, 1, 2, 3}
    for offered in (runtime.zero, runtime.pipeline_zero):
        assert offered[0] == 0 and list(offered) == sorted(set(offered))
    assert runtime.zero_stages(None) == runtime.zero_stages(1) == runtime.zero
    assert runtime.zero_stages(2) == runtime.pipeline_zero
    assert runtime.linear or not runtime.free  # free shardings are chosen by programmes that are linear


@pytest.mark.parametrize("name", names())
def test_gradients_are_kept_in_no_fewer_bits_than_they_are_sent_in(name: str) -> None:
    runtime = load(name)
    for dtype in (runtime.grad_dtype, runtime.reduce_dtype):
        assert dtype is None or dtype is dtype.stored
    workload = Workload(8, 128, grad_dtype=runtime.grad_dtype, reduce_dtype=runtime.reduce_dtype)
    assert workload.reduce_bytes <= workload.grad_bytes


def test_what_their_documentation_says() -> None:
    """The facts that set the runtimes apart, as the files' sources have them."""
    plain, megatron, nemo = load("plain"), load("megatron-lm"), load("nemo")
    assert plain.linear and plain.free and plain.overlap.nothing
    assert (megatron.grad_dtype, megatron.reduce_dtype) == (Precision.FP32, Precision.FP32)
    assert (nemo.grad_dtype, nemo.reduce_dtype) == (Precision.FP32, Precision.BF16)
    assert megatron.overlap.tensor is TensorOverlap.BACKWARD and nemo.overlap.tensor is TensorOverlap.CHUNKED
    assert not load("ddp").overlap.parameters and load("ddp").zero == (0,)
    assert load("fsdp").gathered_layers == 2 and 3 in load("fsdp").pipeline_zero
    assert load("deepspeed").pipeline_zero == (0, 1) and load("deepspeed").zero == (0, 1, 2, 3)
    assert load("megatron-deepspeed").overlap.nothing and not load("megatron-deepspeed").linear


def test_the_plain_runtime_knows_the_named_recipes() -> None:
    roles = load("plain").roles
    assert roles["data"] == (BATCH,) and roles["context"] == (SEQ,)
    assert SEQ not in roles["tensor"] and roles["tensor_sequence"] == (*roles["tensor"], SEQ)


def test_an_unknown_runtime_is_one_error_with_the_nearest_name() -> None:
    for given, meant in (("plian", "plain"), ("megatron", "megatron-lm"), ("deep-speed", "deepspeed")):
        with pytest.raises(InputError, match=f"did you mean .*{meant}") as caught:
            load(given)
        assert caught.value.allowed is not None and all(name in caught.value.allowed for name in names())


def test_runtimes_are_keys() -> None:
    assert {load("plain"): 1}[load("plain")] == 1
