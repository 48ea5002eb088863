"""Figures of merit: errors, ranks, the baseline, regret."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import statistics

times = st.lists(st.floats(0.01, 1e4), min_size=3, max_size=20)


def test_mape_and_signed():
    predicted, measured = np.array([1.1, 1.8, 4.0]), np.array([1.0, 2.0, 4.0])
    assert statistics.mape(predicted, measured) == pytest.approx(0.2 / 3)
    assert statistics.signed(predicted, measured) == pytest.approx(0.0)
    assert statistics.mape(np.array([]), np.array([])) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=20, unique=True))
def test_spearman_is_one_for_every_growing_function(values):
    measured = np.array(values, dtype=float)
    assert statistics.spearman(np.log(measured), measured) == pytest.approx(1.0)
    assert statistics.spearman(-measured, measured) == pytest.approx(-1.0)


def test_spearman_of_two_points_is_unknown():
    assert statistics.spearman(np.arange(2.0), np.arange(2.0)) is None


def test_spearman_of_a_constant_is_unknown():
    assert statistics.spearman(np.ones(4), np.arange(4.0)) is None


def test_the_baseline_sees_only_other_rows_of_its_group():
    ideal, measured = np.array([1.0, 1.0, 2.0, 5.0]), np.array([2.0, 4.0, 4.0, 7.0])
    found = statistics.constant_utilisation(ideal, measured, ["a", "a", "a", "b"])
    assert found[0] == pytest.approx(1.0 / np.median([0.25, 0.5]))
    assert found[1] == pytest.approx(2.0)
    assert np.isnan(found[3])


@settings(max_examples=50, deadline=None)
@given(times, st.floats(0.05, 1.0))
def test_the_baseline_is_exact_at_one_utilisation(values, utilisation):
    ideal = np.array(values)
    measured = ideal / utilisation
    assert statistics.constant_utilisation(ideal, measured, ["x"] * len(values)) == pytest.approx(measured)


def test_equal_rows_are_averaged_in_order():
    predicted, measured = statistics.averaged(["p", "q", "p"], np.array([1.0, 5.0, 3.0]), np.array([2.0, 6.0, 4.0]))
    assert predicted.tolist() == [2.0, 5.0] and measured.tolist() == [3.0, 6.0]


def test_regret_is_of_the_plan_predicted_best():
    assert statistics.regret(np.array([2.0, 1.0, 3.0]), np.array([10.0, 12.0, 15.0])) == pytest.approx(0.2)
    assert statistics.regret(np.array([1.0, 2.0]), np.array([10.0, 12.0])) == 0.0


def test_means_leave_out_what_is_unknown():
    assert statistics.mean([1.0, None, 3.0]) == 2.0
    assert statistics.mean([None]) is None
