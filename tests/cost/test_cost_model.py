"""The public cost queries: types of the results, groups, dtypes, and the time a query takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoplan.cluster import Axis, load
from autoplan.cost.model import CostModel
from autoplan.errors import InputError

ATTENTION: dict[str, Any] = {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 4096, "kv_len": 4096, "head_dim": 128}


@pytest.fixture(scope="module")
def costs() -> CostModel:
    return CostModel(load("dgx-a100-80gb:64"))


def test_scalars_give_floats_and_arrays_give_arrays(costs: CostModel) -> None:
    assert type(costs.matmul(4096, 4096, 4096)) is float
    assert type(costs.attention(**ATTENTION)) is float
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


def test_a_group_may_have_a_name(costs: CostModel) -> None:
    assert costs.all_reduce(1e8, "node") == costs.all_reduce(1e8, 8)
    assert costs.all_reduce(1e8, "cluster") == costs.all_reduce(1e8, Axis(64, 8, 8, 1)) > costs.all_reduce(1e8, "node")
    part = CostModel(load("dgx-a100-80gb:4"))
    assert part.all_gather(1e8, "node") == part.all_gather(1e8, [0, 1, 2, 3]) == part.all_gather(1e8, "cluster")


@pytest.mark.parametrize(("group", "says"), [
    ("rack", "unknown group"), ([], "at least one"), (0, "at least one"), (-1, "at least one"), ([1, 1], "each once"),
    ([0, 64], "devices 0 to 63"), (65, "devices 0 to 63"), ([-1, 0], "devices 0 to 63"), ([0, 1, 8], "unevenly"),
    (12, "unevenly"), (2.5, "group"), (None, "group"), (["a"], "group"), (Axis(16, 16, 1, 1), "larger"),
    (Axis(9, 1, 9, 8), "larger"),
])
def test_what_is_no_group(costs: CostModel, group: Any, says: str) -> None:
    for call in (costs.all_reduce, costs.all_gather, costs.reduce_scatter, costs.all_to_all, costs.p2p):
        with pytest.raises(InputError, match=says) as caught:
            call(1e6, group)
        assert "group" in str(caught.value) and caught.value.where == costs.cluster.name


@pytest.mark.parametrize(
    "size", [-1, -1e-9, float("nan"), float("inf"), None, "much", [1.0, -1.0], [1.0, float("nan")]])
def test_what_is_no_size(costs: CostModel, size: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "m": lambda: costs.matmul(size, 8, 8), "n": lambda: costs.matmul(8, size, 8),
        "k": lambda: costs.matmul(8, 8, size), "batch": lambda: costs.matmul(8, 8, 8, batch=size),
        "q_len": lambda: costs.attention(**{**ATTENTION, "q_len": size}),
        "nbytes": lambda: costs.memory_bound(size),
    }
    calls |= {f"nbytes {op}": lambda op=op: getattr(costs, op)(size, "node")  # type: ignore[misc]
              for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")}
    for name, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.key == name.split()[0]


def test_no_work_takes_no_time(costs: CostModel) -> None:
    for zero in ("m", "n", "k", "batch"):
        assert costs.matmul(**{"m": 8, "n": 8, "k": 8, "batch": 1, zero: 0}) == 0
    for name in ATTENTION:
        for flash in (True, False):
            assert costs.attention(**{**ATTENTION, name: 0}, flash=flash) == 0
    some = costs.matmul([0, 512], 512, [[64], [0]])
    assert np.array_equal(some, [[0, costs.matmul(512, 512, 64)], [0, 0]])
    assert costs.matmul([], 512, 512) == pytest.approx(np.zeros(0))
    assert costs.p2p(0, [0, 8]) == costs.memory_bound(0) == costs.all_reduce(0, "cluster") == 0


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
    fused, unfused = (costs.attention(**ATTENTION, flash=flash) for flash in (True, False))
    assert costs.attention(**ATTENTION) == fused < unfused
    backward = costs.attention(**ATTENTION, backward=True)
    assert 2 * fused < backward < 4 * fused
    assert costs.attention(**ATTENTION, flash=False, backward=True) > unfused


def test_fp8_is_faster_where_it_exists() -> None:
    hopper = CostModel(load("dgx-h100"))
    assert hopper.matmul(8192, 8192, 8192, dtype="fp8") < hopper.matmul(8192, 8192, 8192)


def test_kinds_of_memory_bound_work_and_no_bytes(costs: CostModel) -> None:
    assert costs.memory_bound(0) == 0
    assert costs.memory_bound(1e9, "norm") > costs.memory_bound(1e9, "elementwise") > 1e9 / (
        1.2 * costs.cluster.device.hbm_bandwidth)
    with pytest.raises(InputError, match="softmax") as caught:
        costs.memory_bound(1e9, "softmax")
    assert "elementwise" in str(caught.value)


def test_queries_are_cheap(costs: CostModel) -> None:
    """The planner makes 10⁵ of them: tens of µs each; 500 µs is far beyond any noise."""
    axis = Axis(8, 1, 8, 8)
    costs.all_reduce(1e8, axis)
    start = time.perf_counter()
    for _ in range(200):
        costs.matmul(4096, 8192, 8192)
        costs.all_reduce(1e8, axis)
    assert (time.perf_counter() - start) / 200 < 1e-3
