"""Bytes of a stage: published figures, the sum of the items, and the laws of ZeRO."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import runtimes
from autoplan.cluster import load
from autoplan.cost.memory import peak_bytes, usable_bytes
from autoplan.cost.model import CostModel
from autoplan.errors import InputError
from autoplan.workload import Precision, Workload

PLAIN = runtimes.load("plain")
COSTS = CostModel(load("dgx-a100-80gb"))
MIXED = Workload(global_batch_size=8, seq_len=2048)
SIZES = st.floats(0, 1e12)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_figures_of_the_zero_paper(zero: int, gigabytes: float) -> None:
    """7.5 B parameters over 64 devices (Rajbhandari et al., figure 1): 120, 31.4, 16.6 and 1.9 GB."""
    held = COSTS.stage_bytes(7.5e9, workload=MIXED, zero=zero, shards=64)
    assert (held.weights + held.gradients + held.optimizer) / 1e9 == pytest.approx(gigabytes, rel=0.02)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(0, 3), st.integers(1, 64), SIZES, st.floats(0, 64), SIZES, st.sampled_from(Precision))
def test_the_items_are_the_peak(params: float, zero: int, shards: int, saved: float, in_flight: float,
                                transient: float, precision: Precision) -> None:
    held = COSTS.stage_bytes(params, workload=Workload(8, 2048, precision), zero=zero, shards=shards,
                             saved_bytes=saved, in_flight=in_flight, transient_bytes=transient)
    items = asdict(held)
    low, total, high = (items.pop(key) for key in ("low", "total", "high"))
    assert high == peak_bytes(held.weights + held.gradients + held.optimizer, saved, transient, in_flight, PLAIN)
    assert sum(items.values()) == pytest.approx(total)
    assert low < total < high and total - low >= PLAIN.likely.context_bytes - PLAIN.low.context_bytes
    assert held.activations == in_flight * saved and held.transient == transient
    device = COSTS.cluster.device.memory_bytes
    room = usable_bytes(device, PLAIN) - held.weights - held.gradients - held.optimizer - held.activations - transient
    assert (high <= device) == (room >= 0) or abs(high - device) < 1e-6 * device


def test_full_precision_has_no_master_copy_and_an_empty_stage_holds_the_reserve() -> None:
    whole = COSTS.stage_bytes(1e9, workload=Workload(8, 2048, Precision.FP32))
    assert (whole.weights, whole.gradients, whole.optimizer) == (4e9, 4e9, 8e9)
    empty = COSTS.stage_bytes(0, workload=MIXED)
    for found, reserve in ((empty.low, PLAIN.low), (empty.total, PLAIN.likely), (empty.high, PLAIN.high)):
        assert found == pytest.approx(reserve.context_bytes + 2 * PLAIN.bucket_bytes * (1 + reserve.allocator_slack))
    assert empty.communication == 2 * PLAIN.bucket_bytes and empty.weights == 0


def test_the_runtime_is_the_models_own_unless_told() -> None:
    assert CostModel(COSTS.cluster, PLAIN).stage_bytes(1e9, workload=MIXED) == COSTS.stage_bytes(
        1e9, workload=MIXED, runtime=PLAIN) == COSTS.stage_bytes(1e9, workload=MIXED)


@pytest.mark.parametrize(("key", "value"), [
    ("zero", 4), ("zero", -1), ("shards", 0), ("shards", 1.5), ("saved_bytes", -1.0), ("in_flight", float("nan")),
    ("transient_bytes", float("inf")), ("num_params", -1),
])
def test_what_is_no_stage(key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        COSTS.stage_bytes(**{"num_params": 1e9, "workload": MIXED, key: value})
    assert caught.value.key == key
