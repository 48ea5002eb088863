"""The simulator against the closed forms, and the laws of streams, links and memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost.schedules import in_flight, pipeline_time
from autoplan.simulate import Pipeline, Send, Timeline, Work, replay
from autoplan.simulate.orders import Kind, order
from autoplan.workload import Schedule

CHUNKS = {Schedule.INTERLEAVED: 2, Schedule.ZB_V: 2}
PARTS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


def pipeline(schedule: Schedule, m: int, stages: list[Work], seconds: float = 0.0, *, waits: bool = True,
             shared: bool = False) -> Pipeline:
    """A pipeline whose sends take `seconds` each, over a link a pair of stages, or all over one."""
    p = len(stages)
    pairs = [(i, (i + by) % p) for i in range(p) for by in (1, -1)] if seconds else []
    sends = {pair: Send(seconds, "one" if shared else pair) for pair in pairs}
    return Pipeline(schedule, m, CHUNKS.get(schedule, 1), tuple(stages), sends, waits)


def micro_batches(schedule: Schedule, p: int, groups: int) -> int:
    """A number that every schedule can run."""
    return p * (groups + 1) if schedule is Schedule.INTERLEAVED else 2 * p - 2 + groups


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(Schedule), st.integers(2, 6), st.integers(1, 4), PARTS, st.integers(0, 5))
def test_equal_stages_take_what_the_closed_form_says(schedule: Schedule, p: int, groups: int,
                                                     parts: tuple[int, int, int], step: int) -> None:
    w, f, b = sorted(parts)
    m = micro_batches(schedule, p, groups)
    found = replay(pipeline(schedule, m, [Work(2.0 * f, 2.0 * b, 2.0 * w, step)] * p))
    assert found.step_time == step + pipeline_time(
        schedule, [2 * (f + b + w)] * p, m, CHUNKS.get(schedule, 1), forward=2 * f, weight=2 * w)
    assert [found.busy(stage) for stage in range(p)] == [m * 2.0 * (f + b + w)] * p


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(Schedule), st.integers(2, 6), st.integers(1, 4), st.integers(1, 50), st.integers(0, 50))
def test_the_peak_is_what_the_closed_form_holds(schedule: Schedule, p: int, groups: int, saved: int,
                                                fixed: int) -> None:
    m, v = micro_batches(schedule, p, groups), CHUNKS.get(schedule, 1)
    found = replay(pipeline(schedule, m, [Work(2.0, 4.0, 2.0, saved=saved, fixed=fixed)] * p))
    for stage in range(p):
        held = in_flight(schedule, stage, p, m, v)
        assert found.peak(stage) == pytest.approx(fixed + held * saved, rel=1e-12)
        when, nbytes = found.memory(stage)
        assert (np.diff(when) >= 0).all()
        assert nbytes[-1] == fixed  # everything is let go


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(Schedule), st.lists(PARTS, min_size=2, max_size=5), st.integers(1, 3),
       st.sampled_from([0.0, 0.5, 3.0]), st.booleans(), st.booleans())
def test_streams_links_and_inputs(schedule: Schedule, parts: list[tuple[int, int, int]], groups: int, seconds: float,
                                  waits: bool, shared: bool) -> None:
    p, v = len(parts), CHUNKS.get(schedule, 1)
    m = micro_batches(schedule, p, groups)
    found = replay(pipeline(schedule, m, [Work(*map(float, part)) for part in parts], seconds, waits=waits,
                            shared=shared))
    ends = {}
    for stage, lane in enumerate(found.lanes):
        assert (lane.start[1:] >= lane.end[:-1]).all()  # one thing at a time
        assert (lane.start <= lane.compute).all()
        for number, piece in enumerate(zip(*(one.tolist() for one in (
                lane.order.kind, lane.order.micro_batch, lane.order.chunk)), strict=True)):
            ends[(stage, *piece)] = lane.end[number]
    assert len(ends) == (3 if schedule.splits_backward else 2) * p * v * m
    for (stage, kind, k, c), end in ends.items():
        if kind == Kind.BACKWARD:
            assert ends[stage, Kind.FORWARD, k, c] < end
        if kind == Kind.WEIGHT:
            assert ends[stage, Kind.BACKWARD, k, c] < end
    _check_sends(found, seconds, waits)
    assert found.step_time >= max(m * sum(part) for part in parts) * (1 - 1e-12)


def _check_sends(found: Timeline, seconds: float, waits: bool) -> None:
    """Tensors travel for their time, one at a time over a link, and are there before they are read."""
    for lane in found.lanes:
        sent = ~np.isnan(lane.leaves)
        assert (sent.any() if seconds else not sent.any()) or len(found.lanes) == 1
        assert np.allclose(lane.arrives[sent] - lane.leaves[sent], seconds)
        assert (lane.compute[sent] >= lane.arrives[sent]).all()
        assert (lane.start[sent] <= lane.leaves[sent]).all() if waits else (lane.start == lane.compute).all()
    links = {one.link for one in found.pipeline.sends.values()}
    if len(links) == 1:
        leaves = np.sort(np.concatenate([lane.leaves[~np.isnan(lane.leaves)] for lane in found.lanes]))
        assert (np.diff(leaves) >= seconds - 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(Schedule), st.lists(PARTS, min_size=2, max_size=5), st.integers(1, 3), st.booleans())
def test_sends_never_make_a_step_shorter_than_none(schedule: Schedule, parts: list[tuple[int, int, int]], groups: int,
                                                   waits: bool) -> None:
    m = micro_batches(schedule, len(parts), groups)
    works = [Work(*map(float, part)) for part in parts]
    assert replay(pipeline(schedule, m, works)).makespan <= (
        replay(pipeline(schedule, m, works, 0.5, waits=waits)).makespan) * (1 + 1e-12)


def test_sends_that_are_waited_for_count_as_work() -> None:
    """Two stages, 1F1B: stage 1 receives each forward, stage 0 each gradient, one after the other."""
    found = replay(pipeline(Schedule.ONE_F_ONE_B, 3, [Work(1.0, 1.0, 1.0)] * 2, 0.5))
    assert found.step_time == 3 * 3.5 + 3.5
    hidden = replay(pipeline(Schedule.ONE_F_ONE_B, 3, [Work(1.0, 1.0, 1.0)] * 2, 0.5, waits=False))
    assert hidden.step_time == 14.0  # gradients come back at 5, 8 and 12 s


def test_a_shared_link_carries_one_tensor_at_a_time() -> None:
    """GPipe of 2 forward passes over 3 stages: both boundaries' tensors of 2 s meet on one link."""
    works = [Work(1.0, 1.0, 0.0)] * 3
    apart, together = (replay(pipeline(Schedule.GPIPE, 2, works, 2.0, waits=False, shared=shared))
                       for shared in (False, True))
    forward = [lane.leaves[lane.order.kind == Kind.FORWARD].tolist() for lane in apart.lanes[1:]]
    assert forward == [[1.0, 3.0], [4.0, 6.0]]
    forward = [lane.leaves[lane.order.kind == Kind.FORWARD].tolist() for lane in together.lanes[1:]]
    assert forward == [[1.0, 3.0], [5.0, 7.0]]  # the second boundary's first tensor is ready at 4, the link at 5
    assert apart.makespan < together.makespan


def test_once_a_step_work_follows_each_stage() -> None:
    """Of 1F1B's last stage it hides in the drain; what ends the step is the first stage's."""
    found = replay(pipeline(Schedule.ONE_F_ONE_B, 4, [Work(1.0, 1.0, 1.0, step) for step in (1.0, 5.0)]))
    assert found.step_time == 4 * 3 + 5.0  # the second stage begins a second after the first and idles nowhere
    assert found.makespan == 1 + 4 * 3 + 5.0


@pytest.mark.parametrize(("schedule", "stage", "p", "m", "v"), [
    (Schedule.ONE_F_ONE_B, 2, 2, 4, 1), (Schedule.ONE_F_ONE_B, 0, 2, 0, 1), (Schedule.GPIPE, 0, 2, 4, 2),
    (Schedule.INTERLEAVED, 0, 2, 3, 2), (Schedule.INTERLEAVED, 0, 2, 4, 1), (Schedule.ZB_V, 0, 3, 4, 2)])
def test_orders_that_no_schedule_has(schedule: Schedule, stage: int, p: int, m: int, v: int) -> None:
    with pytest.raises(ValueError):
        order(schedule, stage, p, m, v)
