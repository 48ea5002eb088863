"""A timeline as a Chrome trace (chrome://tracing, ui.perfetto.dev): a JSON object of events, microseconds.

Format: "Trace Event Format" (Google), complete events `X`, counters `C`, metadata `M`. A stage is a process with a
thread for its devices and one for what it receives from each neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from autoplan.simulate.orders import Kind
from autoplan.simulate.replay import Lane, Timeline
from autoplan.workload import Schedule

NAMES = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WEIGHT: "weight gradient"}
COMPUTE, FROM_PREVIOUS, FROM_NEXT = 0, 1, 2  # threads of a stage
MICRO = 1e6


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace: work, once-a-step work, tensors that are received, and bytes held, by stage."""
    events: list[dict[str, Any]] = []
    for stage, lane in enumerate(timeline.lanes):
        events += _metadata(stage)
        events += _work(stage, lane, timeline)
        when, nbytes = timeline.memory(stage)
        if timeline.pipeline.stages[stage].saved:
            events += [{"ph": "C", "name": "memory", "pid": stage, "ts": time * MICRO, "args": {"bytes": round(held)}}
                       for time, held in zip(when.tolist(), nbytes.tolist(), strict=True)]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _metadata(stage: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": stage, "args": {"name": f"stage {stage}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": stage, "args": {"sort_index": stage}}
    for thread, name in ((COMPUTE, "compute"), (FROM_PREVIOUS, "from the stage before"),
                         (FROM_NEXT, "from the next stage")):
        yield {"ph": "M", "name": "thread_name", "pid": stage, "tid": thread, "args": {"name": name}}


def _work(stage: int, lane: Lane, timeline: Timeline) -> Iterator[dict[str, Any]]:
    rows = zip(*(one.tolist() for one in (lane.order.kind, lane.order.micro_batch, lane.order.chunk, lane.compute,
                                          lane.end, lane.leaves, lane.arrives)), strict=True)
    for kind, micro_batch, chunk, begin, end, leaves, arrives in rows:
        name, args = NAMES[Kind(kind)], {"micro_batch": micro_batch, "chunk": chunk}
        yield _slice(name, stage, COMPUTE, begin, end, args)
        if not math.isnan(leaves):
            back = timeline.pipeline.schedule is Schedule.ZB_V and chunk == 1
            thread = FROM_PREVIOUS if (kind == Kind.FORWARD) != back else FROM_NEXT
            yield _slice(f"receive {name}", stage, thread, leaves, arrives, args)
    step = timeline.pipeline.stages[stage].step
    if step > 0.0:
        over = float(lane.end[-1])
        yield _slice("once a step", stage, COMPUTE, over, over + step, {})


def _slice(name: str, stage: int, thread: int, begin: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": stage, "tid": thread, "ts": begin * MICRO, "dur": (end - begin) * MICRO,
            "args": args}
