"""The closed forms against an independent replay of each schedule's order of work."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.schedules import in_flight, legal, pipeline_time
from autoplan.workload import Schedule

Work = tuple[str, int, int]  # "F" or "B", micro-batch, chunk


def one_f_one_b(stage: int, p: int, m: int) -> list[Work]:
    warmup = min(p - stage - 1, m)
    order = [("F", k, 0) for k in range(warmup)]
    for k in range(m - warmup):
        order += [("F", warmup + k, 0), ("B", k, 0)]
    return order + [("B", k, 0) for k in range(m - warmup, m)]


def gpipe(stage: int, p: int, m: int) -> list[Work]:
    return [("F", k, 0) for k in range(m)] + [("B", k, 0) for k in range(m)]


def interleaved(stage: int, p: int, m: int, v: int) -> list[Work]:
    """Megatron's order: micro-batches in groups of p, every chunk of a group before the next group."""
    forward = [("F", group + k, c) for group in range(0, m, p) for c in range(v) for k in range(p)]
    backward = [("B", group + k, c) for group in range(0, m, p) for c in reversed(range(v)) for k in range(p)]
    warmup = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    order = forward[:warmup]
    for k in range(m * v - warmup):
        order += [forward[warmup + k], backward[k]]
    return order + backward[m * v - warmup:]


def replay(orders: list[list[Work]], v: int, forward: list[Fraction],
           backward: list[Fraction]) -> tuple[Fraction, list[int]]:
    """Run the orders: each piece starts when its stage is free and its input is there. Return (end, peak chunks)."""
    p = len(orders)
    done: dict[tuple[str, int, int, int], Fraction] = {}
    free, at = [Fraction(0)] * p, [0] * p

    def needs(stage: int, kind: str, k: int, c: int) -> tuple[str, int, int, int] | None:
        if kind == "F":
            if stage > 0:
                return ("F", k, c, stage - 1)
            return ("F", k, c - 1, p - 1) if c > 0 else None
        if stage < p - 1:
            return ("B", k, c, stage + 1)
        return ("B", k, c + 1, 0) if c < v - 1 else ("F", k, c, stage)

    while any(at[i] < len(orders[i]) for i in range(p)):
        moved = False
        for i in range(p):
            while at[i] < len(orders[i]):
                kind, k, c = orders[i][at[i]]
                need = needs(i, kind, k, c)
                if need is not None and need not in done:
                    break
                start = max(free[i], done[need] if need else Fraction(0))
                free[i] = done[(kind, k, c, i)] = start + (forward if kind == "F" else backward)[i] / v
                at[i] += 1
                moved = True
        assert moved, "the order deadlocks"
    peaks = []
    for order in orders:
        held = peak = 0
        for kind, _, _ in order:
            held += 1 if kind == "F" else -1
            peak = max(peak, held)
        assert held == 0
        peaks.append(peak)
    return max(free), peaks


def orders_of(schedule: Schedule, p: int, m: int, v: int) -> list[list[Work]]:
    if schedule is Schedule.INTERLEAVED:
        return [interleaved(i, p, m, v) for i in range(p)]
    return [(gpipe if schedule is Schedule.GPIPE else one_f_one_b)(i, p, m) for i in range(p)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]), st.integers(1, 7), st.integers(1, 12),
       st.integers(1, 5), st.integers(1, 9))
def test_flat_schedules_replayed(schedule: Schedule, p: int, m: int, forward: int, backward: int) -> None:
    end, peaks = replay(orders_of(schedule, p, m, 1), 1, [Fraction(forward)] * p, [Fraction(backward)] * p)
    assert pipeline_time(schedule, [forward + backward] * p, m) == end
    assert [in_flight(schedule, i, p, m) for i in range(p)] == peaks


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.sampled_from([2, 4, 8]), st.integers(1, 5), st.integers(1, 9))
def test_interleaved_replayed(p: int, groups: int, v: int, forward: int, backward: int) -> None:
    m = p * groups
    orders = orders_of(Schedule.INTERLEAVED, p, m, v)
    end, peaks = replay(orders, v, [Fraction(forward)] * p, [Fraction(backward)] * p)
    assert pipeline_time(Schedule.INTERLEAVED, [forward + backward] * p, m, v) == end
    assert [in_flight(Schedule.INTERLEAVED, i, p, m, v) * v for i in range(p)] == peaks


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 10))
def test_gpipe_of_unequal_stages_is_exact(times: list[int], m: int) -> None:
    """With forward and backward in one proportion, GPipe's closed form is exact even for unequal stages."""
    part = [Fraction(t, 3) for t in times]
    orders = orders_of(Schedule.GPIPE, len(times), m, 1)
    end, _ = replay(orders, 1, part, [2 * f for f in part])
    assert pipeline_time(Schedule.GPIPE, times, m) == end


def test_interleaving_divides_the_bubble() -> None:
    assert pipeline_time(Schedule.ONE_F_ONE_B, [2.0] * 4, 8) == 22.0
    assert pipeline_time(Schedule.INTERLEAVED, [2.0] * 4, 8, 2) == 19.0
    assert pipeline_time(Schedule.INTERLEAVED, [1.0, 3.0, 2.0], 6, 3) == 19.0


def test_interleaved_holds_more_than_1f1b() -> None:
    """SC'21 §2.2: the first stage holds 1 + (p − 1)/(p·v) times the p micro-batches of plain 1F1B."""
    assert in_flight(Schedule.ONE_F_ONE_B, 0, 8, 64) == 8
    assert in_flight(Schedule.INTERLEAVED, 0, 8, 64, 4) == 8 * (1 + 7 / 32)


@pytest.mark.parametrize(("schedule", "p", "m", "v", "layers", "reason"), [
    (Schedule.GPIPE, 1, 1, 1, 5, None),
    (Schedule.ONE_F_ONE_B, 6, 3, 1, 7, None),
    (Schedule.INTERLEAVED, 4, 8, 2, 6, None),
    (Schedule.ONE_F_ONE_B, 4, 8, 2, 6, "only interleaved 1F1B has virtual stages; 1f1b with 2 was asked for"),
    (Schedule.INTERLEAVED, 1, 8, 2, 6, "interleaved 1F1B needs at least 2 stages; there is 1"),
    (Schedule.INTERLEAVED, 4, 8, 1, 6, "interleaved 1F1B needs at least 2 virtual stages a stage; it is 1"),
    (Schedule.INTERLEAVED, 6, 3, 2, 6,
     "interleaved 1F1B needs a micro-batch count that is a multiple of the 6 stages; it is 3"),
    (Schedule.INTERLEAVED, 4, 8, 4, 6,
     "interleaved 1F1B needs layers of a stage that divide into 4 virtual stages; there are 6"),
])
def test_legal(schedule: Schedule, p: int, m: int, v: int, layers: int, reason: str | None) -> None:
    assert legal(schedule, p, m, v, layers) == reason
