"""Runtime files: all load, and speak of loop dims and operators that exist."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.model import ops
from autoplan.model.architectures import build
from autoplan.model.graph import BATCH, SEQ
from autoplan.model.spec import TransformerSpec
from autoplan.runtimes import FOLDER, load, names
from autoplan.workload import Schedule

GRAPH = build(TransformerSpec(name="any", layers=1, hidden=64, heads=4, kv_heads=2, ffn=128, gated=True, vocab_size=100,
                            positions="learned", max_positions=128, qk_norm=True))
OPS = [op for layer in GRAPH.classes for op in layer.ops]


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
    assert runtime.bucket_bytes > 0 and runtime.context_bytes > 0 and 0 <= runtime.allocator_slack < 1
    assert runtime.schedules and all(isinstance(schedule, Schedule) for schedule in runtime.schedules)


def test_the_plain_runtime_knows_the_named_recipes() -> None:
    roles = load("plain").roles
    assert roles["data"] == (BATCH,) and roles["context"] == (SEQ,)
    assert SEQ not in roles["tensor"] and roles["tensor_sequence"] == (*roles["tensor"], SEQ)


def test_an_unknown_runtime_is_one_error_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean plain") as caught:
        load("plian")
    assert caught.value.allowed is not None and "plain" in caught.value.allowed


def test_runtimes_are_keys() -> None:
    assert {load("plain"): 1}[load("plain")] == 1
