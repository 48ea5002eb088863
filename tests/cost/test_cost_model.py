"""The public cost queries: types of the results, groups, dtypes, and the time a query takes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from autoplan.cluster import Axis, load
from autoplan.cost.model import CostModel
from autoplan.errors import InputError

ATTENTION = {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 4096, "kv_len": 4096, "head_dim": 128}


@pytest.fixture(scope="module")
def costs() -> CostModel:
    return CostModel(load("dgx-a100-80gb:64"))


def test_scalars_give_floats_and_arrays_give_arrays(costs: CostModel) -> None:
    assert type(costs.matmul(4096, 4096, 4096)) is float
    assert type(costs.attention(**ATTENTION)) is float  # type: ignore[arg-type]
    assert type(costs.memory_bound(1e6)) is float
    assert type(costs.all_reduce(1e6, 8)) is float
    many = costs.all_reduce(np.array([0, 1e6]), 8)
    assert isinstance(many, np.ndarray) and many.shape == (2,)
    assert many[0] == 0 and many[1] == costs.all_reduce(1e6, 8)
    assert isinstance(costs.matmul([1024, 2048], 4096, 4096), np.ndarray)


def test_a_group_is_an_axis_a_number_or_device_ids(costs: CostModel) -> None:
    local = costs.all_gather(1e8, Axis(8, 8, 1, 1))
    assert costs.all_gather(1e8, 8) == local == costs.all_gather(1e8, range(8))
    assert costs.p2p(1e8, [0, 8]) > costs.p2p(1e8, [0, 1])
    assert costs.all_to_all(1e8, [3]) == 0


def test_two_ranks_on_two_hosts_cost_network_bandwidth(costs: CostModel) -> None:
    nic = costs.cluster.node.network.bandwidth
    for call in (costs.all_reduce, costs.p2p):
        assert call(1e9, [0, 8]) > 1e9 / nic
    assert costs.all_reduce(1e9, [0, 1]) < 1e9 / nic / 3


def test_an_unsupported_dtype_is_refused() -> None:
    volta = CostModel(load("dgx1-v100-16gb"))
    assert volta.matmul(4096, 4096, 4096, dtype="fp16") < volta.matmul(4096, 4096, 4096, dtype="fp32")
    with pytest.raises(InputError, match="bf16") as caught:
        volta.matmul(4096, 4096, 4096)
    assert caught.value.allowed is not None and "fp16" in caught.value.allowed


def test_flash_follows_the_device_unless_told(costs: CostModel) -> None:
    fused, unfused = (costs.attention(**ATTENTION, flash=flash) for flash in (True, False))  # type: ignore[arg-type]
    assert costs.attention(**ATTENTION) == fused < unfused  # type: ignore[arg-type]
    backward = costs.attention(**ATTENTION, backward=True)  # type: ignore[arg-type]
    assert 2 * fused < backward < 4 * fused
    assert costs.attention(**ATTENTION, flash=False, backward=True) > unfused  # type: ignore[arg-type]


def test_fp8_is_faster_where_it_exists() -> None:
    hopper = CostModel(load("dgx-h100"))
    assert hopper.matmul(8192, 8192, 8192, dtype="fp8") < hopper.matmul(8192, 8192, 8192)


def test_kinds_of_memory_bound_work_and_no_bytes(costs: CostModel) -> None:
    assert costs.memory_bound(0) == 0
    assert costs.memory_bound(1e9, "norm") > costs.memory_bound(1e9, "elementwise") > 1e9 / (
        1.2 * costs.cluster.device.hbm_bandwidth)


def test_queries_are_cheap(costs: CostModel) -> None:
    """The planner makes 10⁵ of them: tens of µs each; 500 µs is far beyond any noise."""
    axis = Axis(8, 1, 8, 8)
    costs.all_reduce(1e8, axis)
    start = time.perf_counter()
    for _ in range(200):
        costs.matmul(4096, 8192, 8192)
        costs.all_reduce(1e8, axis)
    assert (time.perf_counter() - start) / 200 < 1e-3
