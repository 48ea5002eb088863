"""A replayed step as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoplan.cli.tables import new_table, show_heading, show_table
from autoplan.cli.units import gib, percent, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from autoplan.plan.schema import Plan
    from autoplan.simulate import Timeline


def summary(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    """Return a replay's figures: seconds of the step and of each stage, bytes at each stage's peak."""
    stages = [{"index": stage, "busy_s": timeline.busy(stage), "span_s": float(lane.end[-1] - lane.start[0]),
               "peak_memory_bytes": round(timeline.peak(stage))} for stage, lane in enumerate(timeline.lanes)]
    return {"iteration_time_s": plan.predicted.iteration_time_s, "simulated_time_s": timeline.step_time,
            "makespan_s": timeline.makespan, "stages": stages}


def show_simulation(plan: Plan, timeline: Timeline, out: Console) -> None:
    """Print a replay: the step beside the closed form, and what each stage did."""
    show_heading(plan, out)
    step, closed = timeline.step_time, plan.predicted.iteration_time_s
    out.print(f"replayed: {seconds(step)} a step ({percent(step / closed - 1)} beside the closed form), "
              f"{seconds(timeline.makespan)} if all stages wait for each other before the update", soft_wrap=True)
    out.print()
    table = new_table("stage", "begins", "computes", "waits", "once a step", "peak GiB", title="Stages, replayed")
    for stage, (lane, work) in enumerate(zip(timeline.lanes, timeline.pipeline.stages, strict=True)):
        span, busy = float(lane.end[-1] - lane.start[0]), timeline.busy(stage)
        table.add_row(str(stage), seconds(float(lane.start[0])), seconds(busy), seconds(max(0.0, span - busy)),
                      seconds(work.step), gib(timeline.peak(stage)))
    show_table(table, out)
