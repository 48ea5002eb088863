"""Laws of overlapping: where it is linear, what never falls, and what it can and can't gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoplan.intraop.overlap import Passes, evaluate, passes
from autoplan.intraop.terms import NUM_TERMS, Criterion, Policy, Term, criteria
from autoplan.runtimes import Overlap, Runtime, TensorOverlap, load, names
from autoplan.workload import Recompute

Array = NDArray[np.float64]

RUNTIMES = [load(name) for name in names()]
WAITING = Overlap(gradients=False, parameters=False, tensor=TensorOverlap.NONE, sends=False, slowdown=0.0)
POLICIES = [Policy(recompute) for recompute in Recompute]
TERMS = st.lists(st.floats(0, 10), min_size=NUM_TERMS, max_size=NUM_TERMS).map(np.array)
RANKS = st.sampled_from((1, 2, 8))


@st.composite
def overlapping(draw: st.DrawFn) -> Runtime:
    """A runtime that launches kernels and overlaps anything, whether or not one exists that does just that."""
    lap = Overlap(gradients=draw(st.booleans()), parameters=draw(st.booleans()),
                  tensor=draw(st.sampled_from(TensorOverlap)), sends=draw(st.booleans()),
                  slowdown=draw(st.floats(0, 1)))
    return replace(load("plain"), overlap=lap, operation_seconds=1e-5)


def waiting(runtime: Runtime) -> Runtime:
    """The same runtime, with everything waited for."""
    return replace(runtime, overlap=WAITING)


@settings(max_examples=50, deadline=None)
@given(TERMS, st.sampled_from(POLICIES), RANKS)
def test_a_linear_runtime_is_the_matrix(terms: Array, policy: Policy, ranks: int) -> None:
    terms[[Term.HOST_FORWARD, Term.HOST_BACKWARD]] = 0.0
    plain = load("plain")
    assert plain.linear
    assert evaluate(terms, policy, plain, ranks) == pytest.approx(terms @ criteria(policy))
    launching = replace(plain, operation_seconds=1e-5)  # not linear, but here the device never waits for the host
    assert evaluate(terms, policy, launching, ranks) == pytest.approx(terms @ criteria(policy), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(TERMS, st.sampled_from(POLICIES), overlapping(), RANKS)
def test_passes_add_up_to_the_criteria(terms: Array, policy: Policy, runtime: Runtime, ranks: int) -> None:
    found, values = passes(terms, policy.recompute, runtime, ranks), evaluate(terms, policy, runtime, ranks)
    micro_batch = found.forward + found.backward + found.gather + found.reduce
    assert micro_batch == pytest.approx(values[Criterion.T_MICRO_BATCH])
    assert found.sync + found.gather_step + terms[Term.OPTIMIZER] == pytest.approx(values[Criterion.T_STEP])
    assert values[Criterion.STATE:] == pytest.approx((terms @ criteria(policy))[Criterion.STATE:])


def test_passes_of_layers_add_and_scale() -> None:
    one = Passes(*(np.array([float(value)]) for value in range(6)))
    both = one + 2.0 * one
    assert [float(value[0]) for value in (both.forward, both.gather_step)] == [0.0, 15.0]


@settings(max_examples=50, deadline=None)
@given(TERMS, st.sampled_from(POLICIES), overlapping(), RANKS, st.sampled_from(Term), st.floats(0, 10),
       st.integers(1, 64))
def test_nothing_gets_cheaper_when_a_term_grows(terms: Array, policy: Policy, runtime: Runtime, ranks: int, term: Term,
                                                more: float, m: int) -> None:
    """A longer pass hides more of what is paid once a step, but a step of m ≥ 1 micro-batches never gets shorter."""
    grown = terms.copy()
    grown[term] += more
    before, after = (evaluate(one, policy, runtime, ranks) for one in (terms, grown))
    step = Criterion.T_STEP
    kept = np.arange(len(before)) != step
    assert (after[kept] >= before[kept] * (1 - 1e-12)).all()
    if term in (Term.SYNC, Term.OPTIMIZER, Term.GATHER_STEP, Term.GATHER, Term.REDUCE):
        assert after[step] >= before[step] * (1 - 1e-12)
    first, second = (m * one[Criterion.T_MICRO_BATCH] + one[step] for one in (before, after))
    assert second >= first * (1 - 1e-12)


@settings(max_examples=50, deadline=None)
@given(TERMS, st.sampled_from(POLICIES), overlapping(), RANKS)
def test_overlapping_is_no_slower_than_waiting_and_no_faster_than_the_longest_part(
        terms: Array, policy: Policy, runtime: Runtime, ranks: int) -> None:
    found, alone = (passes(terms, policy.recompute, one, ranks) for one in (runtime, waiting(runtime)))
    for part in ("forward", "backward", "gather", "reduce", "sync", "gather_step"):
        assert -1e-12 <= getattr(found, part) <= getattr(alone, part) + 1e-12
    ahead = max(terms[Term.FORWARD], terms[Term.HOST_FORWARD], terms[Term.CONVERT_FORWARD], terms[Term.GATHER] / 2)
    assert found.forward + found.gather >= ahead - 1e-9
    whole = found.forward + found.backward + found.gather + found.reduce
    back = max(terms[Term.BACKWARD], terms[Term.HOST_BACKWARD], terms[Term.CONVERT_BACKWARD],
               terms[Term.REDUCE] + terms[Term.GATHER] / 2)
    assert whole >= max(ahead, back) - 1e-9
    assert found.backward + found.sync >= terms[Term.SYNC] - 1e-9
    assert found.forward + found.gather_step >= terms[Term.GATHER_STEP] - 1e-9


@settings(max_examples=50, deadline=None)
@given(TERMS, st.sampled_from(Recompute), RANKS)
def test_a_slowdown_of_one_is_waiting(terms: Array, recompute: Recompute, ranks: int) -> None:
    """Where computing loses a second for each second of a collective beside it, nothing is gained."""
    for runtime in RUNTIMES:
        slowed = replace(runtime, overlap=replace(runtime.overlap, slowdown=1.0))
        found, alone = (passes(terms, recompute, one, ranks) for one in (slowed, waiting(runtime)))
        for part in ("forward", "backward", "gather", "reduce", "sync", "gather_step"):
            assert getattr(found, part) == pytest.approx(getattr(alone, part))


def terms_of(**seconds: float) -> Array:
    terms = np.zeros(NUM_TERMS)
    for name, value in seconds.items():
        terms[Term[name.upper()]] = value
    return terms


FULLY = replace(load("plain"), overlap=Overlap(True, True, TensorOverlap.NONE, False, 0.25))


@pytest.mark.parametrize(("seconds", "recompute", "micro_batch", "step"), [
    ({"forward": 2, "backward": 4, "sync": 3}, Recompute.NONE, 6, 0.25 * 3),  # hidden, but for what it costs computing
    ({"forward": 2, "backward": 4, "sync": 9}, Recompute.NONE, 6, 9 - 0.75 * 4),  # longer than the backward pass
    ({"forward": 2, "backward": 4, "sync": 9}, Recompute.FULL, 8, 9 - 0.75 * 6),  # which is longer with recompute
    ({"forward": 2, "backward": 4, "gather_step": 3}, Recompute.NONE, 6, 3 - 0.75 * 2),
    ({"forward": 2, "backward": 4, "gather": 2, "reduce": 1}, Recompute.NONE, 6 + 0.25 * 3, 0),
    ({"forward": 2, "backward": 4, "reduce": 3, "sync": 2}, Recompute.NONE, 6 + 0.25 * 3, 2 - 0.75 * 1),  # 1 s is left
    ({"forward": 2, "backward": 4, "host_forward": 3, "host_backward": 1}, Recompute.NONE, 7, 0),
    ({"forward": 2, "backward": 4, "host_forward": 3, "host_backward": 1}, Recompute.FULL, 10, 0),
    ({"forward": 2, "backward": 4, "convert_forward": 1, "convert_backward": 1}, Recompute.NONE, 8, 0),
])
def test_figures_by_hand(seconds: dict[str, float], recompute: Recompute, micro_batch: float, step: float) -> None:
    values = evaluate(terms_of(**seconds), Policy(recompute), FULLY, 1)
    assert values[[Criterion.T_MICRO_BATCH, Criterion.T_STEP]] == pytest.approx([micro_batch, step])


@pytest.mark.parametrize(("tensor", "ranks", "forward", "backward"), [
    (TensorOverlap.NONE, 4, 3.0, 6.0), (TensorOverlap.BACKWARD, 4, 3.0, 6.0 - 0.75 * 1),
    (TensorOverlap.CHUNKED, 4, 3.0 - 0.75 * 0.75, 6.0 - 0.75 * 0.75 * 2), (TensorOverlap.CHUNKED, 1, 3.0, 6.0),
])
def test_collectives_of_tensor_parallelism(tensor: TensorOverlap, ranks: int, forward: float, backward: float) -> None:
    """Of the backward pass's two seconds one is a gather run again, which only chunks can hide."""
    runtime = replace(FULLY, overlap=replace(FULLY.overlap, tensor=tensor))
    terms = terms_of(forward=2, backward=4, convert_forward=1, convert_backward=1, regather=1)
    found = passes(terms, Recompute.NONE, runtime, ranks)
    assert (found.forward, found.backward) == pytest.approx((forward, backward))
