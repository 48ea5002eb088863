"""A kernel is priced as the kind that its operator says it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan import model, runtimes
from autoplan.cluster import load, mesh
from autoplan.cost.model import CostModel
from autoplan.intraop.pricing import Setting
from autoplan.model import ops
from autoplan.model.graph import Op
from autoplan.model.ops.work import Stream, Work
from autoplan.workload import Workload

CLUSTER = load("dgx-a100-80gb")
SETTING = Setting(mesh(CLUSTER, (1, 1)), CostModel(CLUSTER), runtimes.load("plain"), Workload(8, 2048), 1)
OPS = {f"{layer.name}.{op.name}": op for name in ("gpt-1.3b", "llama-2-7b") for layer in model.load(name).classes
       for op in layer.ops}


def work(op: Op) -> Work:
    sizes = {name: np.array([float(size)]) for name, size in SETTING.sizes(op).items()}
    return ops.work(op, sizes, SETTING.numerics)


@pytest.mark.parametrize(("name", "kind"), [
    ("layer.norm1", "norm"), ("layer.add1", "elementwise"), ("embedding.position", "elementwise"),
    ("layer.act", "activation"), ("layer.rotary_q", "rotary"), ("embedding.embedding", "embedding"),
    ("head.loss", "mixed"),
])
def test_each_family_says_its_kind_and_is_priced_as_such(name: str, kind: str) -> None:
    done = work(OPS[name])
    for kernel in (*done.forward, *done.backward):
        assert isinstance(kernel, Stream) and kernel.kind == kind
        assert SETTING.seconds(kernel) == SETTING.costs.memory_bound(kernel.nbytes, kind)


def test_kinds_have_prices_of_their_own() -> None:
    (kernel,) = work(OPS["layer.norm1"]).forward
    assert isinstance(kernel, Stream)
    assert SETTING.seconds(kernel) > SETTING.seconds(replace(kernel, kind="elementwise"))
