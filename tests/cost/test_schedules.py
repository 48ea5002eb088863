"""The closed forms against an independent replay of each schedule's order of work."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.schedules import in_flight, legal, pipeline_time
from autoplan.workload import Schedule

Work = tuple[str, int, int]  # "F", "B" or (where the backward pass is split) "W", micro-batch, chunk
ZERO_BUBBLE = [Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V]


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


def zero_bubble(ahead: int, delay: int, m: int) -> list[Work]:
    """1F1B with `ahead` forward passes first, and each weight gradient `delay` backward passes after its own."""
    order: list[Work] = [("F", k, 0) for k in range(min(ahead, m))]
    for k in range(m):
        order += [("F", ahead + k, 0)] if ahead + k < m else []
        order += [("B", k, 0)] + ([("W", k - delay, 0)] if k >= delay else [])
    return order + [("W", k, 0) for k in range(max(0, m - delay), m)]


def zero_bubble_v(stage: int, p: int, m: int) -> list[Work]:
    counts: dict[str, int] = {}
    order: list[Work] = []

    def add(*pieces: str) -> None:
        for piece in pieces:
            k = counts.get(piece, 0)
            if k < m:
                counts[piece] = k + 1
                order.append((piece[0], k, int(piece[1])))

    add(*["F0"] * (2 * (p - stage) - 1), *["F1", "F0"] * stage, *["F1", "B1", "W1"] * (p - stage))
    while counts["F1"] < m:
        add("F0", "B0", "W0", "F1", "B1", "W1")
    add(*["B0", "B1"] * stage, *["B0", "W0"] * (p - stage), *["W1"] * stage, *["W0"] * stage)
    return order


def round_robin(stage: int, chunk: int, p: int) -> int:
    return chunk * p + stage


def there_and_back(stage: int, chunk: int, p: int) -> int:
    return stage if chunk == 0 else 2 * p - 1 - stage


def replay(schedule: Schedule, m: int, v: int, forward: list[Fraction], backward: list[Fraction],
           weight: list[Fraction] | None = None) -> tuple[Fraction, list[int]]:
    """Run a schedule's orders: each piece starts when its stage is free and its input is there. Return the longest that
    a stage takes from its first to its last piece of work, and the peak of the chunks it holds.

    backward: of whole stages, without the weights' gradient where the schedule splits it off.
    """
    p = len(forward)
    orders = orders_of(schedule, p, m, v)
    place = there_and_back if schedule is Schedule.ZB_V else round_robin
    seconds = {"F": forward, "B": backward, "W": weight or []}
    done: dict[tuple[str, int, int], Fraction] = {}  # kind, micro-batch, place in the model's row of chunks
    free, at, first = [Fraction(0)] * p, [0] * p, [Fraction(0)] * p

    def needs(kind: str, k: int, here: int) -> tuple[str, int, int] | None:
        if kind == "W":
            return ("B", k, here)
        if kind == "F":
            return ("F", k, here - 1) if here else None
        return ("B", k, here + 1) if here < p * v - 1 else ("F", k, here)

    while any(at[i] < len(orders[i]) for i in range(p)):
        moved = False
        for i in range(p):
            while at[i] < len(orders[i]):
                kind, k, c = orders[i][at[i]]
                need = needs(kind, k, place(i, c, p))
                if need is not None and need not in done:
                    break
                start = max(free[i], done[need] if need else Fraction(0))
                first[i] = first[i] if at[i] else start
                free[i] = done[kind, k, place(i, c, p)] = start + seconds[kind][i] / v
                at[i] += 1
                moved = True
        assert moved, "the order deadlocks"
    assert len(done) == (2 if weight is None else 3) * p * v * m
    peaks = []
    for order in orders:
        held = peak = 0
        for kind, _, _ in order:
            held += (kind == "F") - (kind == ("B" if weight is None else "W"))
            peak = max(peak, held)
        assert held == 0
        peaks.append(peak)
    return max(end - start for end, start in zip(free, first, strict=True)), peaks


def orders_of(schedule: Schedule, p: int, m: int, v: int) -> list[list[Work]]:
    return [{Schedule.GPIPE: lambda i: gpipe(i, p, m), Schedule.ONE_F_ONE_B: lambda i: one_f_one_b(i, p, m),
             Schedule.INTERLEAVED: lambda i: interleaved(i, p, m, v),
             Schedule.ZB_H1: lambda i: zero_bubble(p - i - 1, i, m),
             Schedule.ZB_H2: lambda i: zero_bubble(2 * (p - i - 1), 2 * i, m),
             Schedule.ZB_V: lambda i: zero_bubble_v(i, p, m)}[schedule](i) for i in range(p)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]), st.integers(1, 7), st.integers(1, 12),
       st.integers(1, 5), st.integers(1, 9))
def test_flat_schedules_replayed(schedule: Schedule, p: int, m: int, forward: int, backward: int) -> None:
    end, peaks = replay(schedule, m, 1, [Fraction(forward)] * p, [Fraction(backward)] * p)
    assert pipeline_time(schedule, [forward + backward] * p, m) == end
    assert [in_flight(schedule, i, p, m) for i in range(p)] == peaks


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.sampled_from([2, 4, 8]), st.integers(1, 5), st.integers(1, 9))
def test_interleaved_replayed(p: int, groups: int, v: int, forward: int, backward: int) -> None:
    m, schedule = p * groups, Schedule.INTERLEAVED
    end, peaks = replay(schedule, m, v, [Fraction(forward)] * p, [Fraction(backward)] * p)
    assert pipeline_time(schedule, [forward + backward] * p, m, v) == end
    assert [in_flight(schedule, i, p, m, v) * v for i in range(p)] == peaks


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 10))
def test_gpipe_of_unequal_stages_is_exact(times: list[int], m: int) -> None:
    """With forward and backward in one proportion, GPipe's closed form is exact even for unequal stages."""
    part = [Fraction(t, 3) for t in times]
    end, _ = replay(Schedule.GPIPE, m, 1, part, [2 * f for f in part])
    assert pipeline_time(Schedule.GPIPE, times, m) == end


def chunks_of(schedule: Schedule) -> int:
    return 2 if schedule is Schedule.ZB_V else 1


def closed(schedule: Schedule, m: int, parts: list[tuple[int, int, int]]) -> float:
    """The closed form of stages of (forward, input's gradient, weights' gradient)."""
    return pipeline_time(schedule, [sum(part) for part in parts], m, chunks_of(schedule),
                         forward=[part[0] for part in parts], weight=[part[2] for part in parts])


def replayed(schedule: Schedule, m: int, parts: list[tuple[int, int, int]]) -> tuple[Fraction, list[int]]:
    return replay(schedule, m, chunks_of(schedule), *([Fraction(part[k]) for part in parts] for k in range(3)))


PARTS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(ZERO_BUBBLE), st.integers(1, 6), st.integers(1, 20), PARTS)
def test_zero_bubble_schedules_replayed(schedule: Schedule, p: int, m: int, part: tuple[int, int, int]) -> None:
    """Exact for equal stages where the pipeline fills, or a weight's gradient is the shortest part; V also needs the
    input's gradient to be the longest, and is otherwise never above its closed form."""
    full, (f, b, w) = m >= 2 * p - 1, part
    if schedule is Schedule.ZB_V and not full:
        return
    took, peaks = replayed(schedule, m, [part] * p)
    assert [in_flight(schedule, i, p, m, chunks_of(schedule)) * chunks_of(schedule) for i in range(p)] == (
        [max(peaks)] * p)
    if w <= f <= b or (schedule is not Schedule.ZB_V and (full or w <= min(f, b))):
        assert closed(schedule, m, [part] * p) == took
    else:
        assert schedule is not Schedule.ZB_V or closed(schedule, m, [part] * p) >= took


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(0, 20), PARTS)
def test_published_zero_bubbles(p: int, more: int, part: tuple[int, int, int]) -> None:
    """Table 2 of Qi et al. for W ≤ F, B: (p − 1)(F + B − W) and (p − 1)(F + B − 2W); none if all three are equal."""
    w, f, b = sorted(part)
    m = 2 * p - 1 + more
    times = [f + b + w] * p
    for schedule, bubble in ((Schedule.ZB_H1, f + b - w), (Schedule.ZB_H2, f + b - 2 * w)):
        found = pipeline_time(schedule, times, m, forward=[f] * p, weight=[w] * p)
        assert found == m * (f + b + w) + (p - 1) * bubble
    for schedule in (Schedule.ZB_H2, Schedule.ZB_V):
        assert closed(schedule, m, [(f, f, f)] * p) == 3 * m * f


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(ZERO_BUBBLE), PARTS, st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 15))
def test_unequal_zero_bubble_stages_are_bounded(schedule: Schedule, part: tuple[int, int, int], scales: list[int],
                                                more: int) -> None:
    """Stages that differ by a factor take no longer than the closed form, and no less than the slowest one's work."""
    m = 2 * len(scales) - 1 + more
    f, b, w = part
    parts = [(f * scale, b * scale, w * scale) for scale in scales]
    took, _ = replayed(schedule, m, parts)
    assert m * max(map(sum, parts)) <= took <= closed(schedule, m, parts) * (1 + 1e-12)


def test_zero_bubbles_shrink_in_the_order_published() -> None:
    """Table 2's memory too: H1 as 1F1B's first stage, H2 twice that, V as H1."""
    parts = [(1, 1, 1)] * 4
    bubbles = [closed(schedule, 12, parts) - 36 for schedule in ZERO_BUBBLE]
    assert [pipeline_time(Schedule.ONE_F_ONE_B, [3] * 4, 12) - 36, *bubbles] == [9, 3, 0, 0]
    assert [in_flight(schedule, 3, 4, 12) for schedule in ZERO_BUBBLE] == [4, 7, 4]


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
    (Schedule.ZB_H1, 4, 2, 1, 5, None),
    (Schedule.ZB_V, 4, 7, 2, 4, None),
    (Schedule.ZB_H2, 4, 8, 2, 6, "only interleaved 1F1B has virtual stages; zb_h2 with 2 was asked for"),
    (Schedule.ZB_V, 1, 8, 2, 4, "zero-bubble V needs at least 2 stages; there is 1"),
    (Schedule.ZB_V, 4, 8, 3, 6, "zero-bubble V has 2 virtual stages a stage; 3 were asked for"),
    (Schedule.ZB_V, 4, 6, 2, 4, "zero-bubble V needs 7 micro-batches to fill 4 stages; there are 6"),
    (Schedule.ZB_V, 4, 8, 2, 5, "zero-bubble V needs layers of a stage that divide into 2 virtual stages; there are 5"),
    (Schedule.INTERLEAVED, 4, 8, 4, 6,
     "interleaved 1F1B needs layers of a stage that divide into 4 virtual stages; there are 6"),
])
def test_legal(schedule: Schedule, p: int, m: int, v: int, layers: int, reason: str | None) -> None:
    assert legal(schedule, p, m, v, layers) == reason
