"""Bytes of state under ZeRO, and the peak of a stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.memory import communication_bytes, peak_bytes, state_bytes, update_bytes, usable_bytes
from autoplan.runtimes import load
from autoplan.workload import OPTIMIZER_STATE_BYTES, Precision, Workload

RUNTIME = load("plain")
BYTES = st.floats(0, 1e12)
N = np.array([7_000_000.0])


@pytest.mark.parametrize(("zero", "expected"), [
    (0, 16.0), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8),
])
def test_mixed_precision_adam_holds_what_the_zero_paper_says(zero: int, expected: float) -> None:
    """arXiv:1910.02054, figure 1: (2 + 2 + 12) bytes a parameter, each part split over 8 from its stage on."""
    held = state_bytes(N, Workload(8, 128), np.array([zero]), np.array([8.0]), RUNTIME)
    assert held.weights + held.gradients + held.states == pytest.approx(N * expected)


@pytest.mark.parametrize(("precision", "optimizer", "expected"), [
    (Precision.BF16, "adam", 2 + 2 + 12), (Precision.FP16, "sgd", 2 + 2 + 4), (Precision.FP32, "adam", 4 + 4 + 8),
    (Precision.FP32, "sgd", 4 + 4), (Precision.BF16, "lion", 2 + 2 + 8),
])
def test_bytes_a_parameter(precision: Precision, optimizer: str, expected: int) -> None:
    held = state_bytes(N, Workload(8, 128, precision, optimizer), np.array([0]), np.array([1.0]), RUNTIME)
    assert held.weights + held.gradients + held.states == pytest.approx(N * expected)


def test_gradients_may_be_kept_in_fp32() -> None:
    held = state_bytes(N, Workload(8, 128, grad_dtype=Precision.FP32), np.array([0]), np.array([1.0]), RUNTIME)
    assert held.weights + held.gradients + held.states == pytest.approx(N * 18)


@pytest.mark.parametrize(("grad_dtype", "zero", "expected"), [
    (None, 0, 2 + 2 + 12 + 4), (None, 1, 2 + 2 + 16 / 8), (Precision.FP32, 1, 2 + 4 + 12 / 8),
])
def test_some_runtimes_copy_16_bit_gradients(grad_dtype: Precision | None, zero: int, expected: float) -> None:
    """Megatron Core's table of its optimizer: 20 bytes a parameter, 4 + 16/dp; with fp32 gradients 6 + 12/dp."""
    held = state_bytes(N, Workload(8, 128, grad_dtype=grad_dtype), zero, 8.0, replace(RUNTIME, copies_gradients=True))
    assert held.weights + held.gradients + held.states == pytest.approx(N * expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10**9), st.sampled_from(sorted(OPTIMIZER_STATE_BYTES)), st.integers(1, 512))
def test_what_is_split_adds_up_over_the_ranks(numel: int, optimizer: str, shards: int) -> None:
    """Each part is held once a rank before its stage, once in all from it on; and later stages never hold more."""
    workload = Workload(8, 128, optimizer=optimizer)
    zero = np.arange(4)
    held = state_bytes(np.array([float(numel)]), workload, zero, np.array([float(shards)]), RUNTIME)
    per_rank = {"weights": workload.weight_bytes, "gradients": workload.grad_bytes, "states": workload.optimizer_bytes}
    for stage, (name, each) in zip((3, 2, 1), per_rank.items(), strict=True):
        copies = np.where(zero >= stage, 1, shards)
        assert shards * getattr(held, name) == pytest.approx(copies * numel * each)
    total = held.weights + held.gradients + held.states
    assert (np.diff(total) <= 0).all()
    one = state_bytes(np.array([float(numel)]), workload, zero, np.array([1.0]), RUNTIME)
    assert np.ptp(one.weights + one.gradients + one.states) == 0


def test_an_update_reads_and_writes_its_share() -> None:
    """Adam in bf16: gradient 2 read, state 12 read and written, weight 2 written; a share of it from ZeRO-1 on."""
    moved = update_bytes(N, Workload(8, 128), np.arange(4), np.array([8.0]))
    assert moved == pytest.approx(N[0] * (2 + 24 + 2) / np.array([1, 8, 8, 8]))


@settings(max_examples=50, deadline=None)
@given(st.lists(BYTES, min_size=3, max_size=3), st.lists(BYTES, min_size=3, max_size=3), st.integers(1, 64),
       st.integers(0, 64))
def test_the_peak_grows_with_everything_and_holds_everything(
        base: list[float], more: list[float], in_flight: int, further: int) -> None:
    state, saved, transient = (np.array([value]) for value in base)
    peak = peak_bytes(state, saved, transient, in_flight, RUNTIME)
    assert peak >= state + in_flight * saved + transient + RUNTIME.high.context_bytes + communication_bytes(RUNTIME)
    grown = peak_bytes(state + more[0], saved + more[1], transient + more[2], in_flight + further, RUNTIME)
    assert grown >= peak > 0


@settings(max_examples=50, deadline=None)
@given(st.integers(2 * 2**30, 300 * 2**30), st.floats(0, 1), st.integers(1, 32))
def test_usable_bytes_are_the_inverse_of_the_peak(memory: int, share: float, in_flight: int) -> None:
    usable = usable_bytes(memory, RUNTIME)
    assert 0 < usable < memory
    state, saved = np.array([usable * share]), np.array([usable * (1 - share) / 2 / in_flight])
    transient = usable - state - in_flight * saved
    assert peak_bytes(state, saved, transient, in_flight, RUNTIME) == pytest.approx(memory, rel=1e-9)
