"""`autoplan simulate`: replay a plan's step, event by event."""

from __future__ import annotations

import json

import click

from autoplan.cli.output import console, output_file


@click.command("simulate", short_help="Replay a plan's step, event by event.")
@click.argument("file")
@click.option("--trace", metavar="TRACE", help="Write the timeline to TRACE, for chrome://tracing or ui.perfetto.dev.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: str, trace: str | None, as_json: bool) -> int:
    """Replay one step of the plan in FILE: streams of each stage, sends over shared links, memory over time.

    A plan's own time is the schedule's closed form; this is its replay. Where all stages wait for each other before
    the update (as for the norm of all gradients), a step takes the makespan.
    """
    from autoplan.cli.simulation import show_simulation, summary
    from autoplan.plan.check import load_consistent
    from autoplan.simulate import replay
    from autoplan.simulate.plans import pipeline_of
    from autoplan.simulate.trace import trace as trace_of

    plan = load_consistent(file)
    with output_file(trace, "--trace") as write:
        timeline = replay(pipeline_of(plan, file))
        if trace is not None:
            write(json.dumps(trace_of(timeline), separators=(",", ":")) + "\n")
    if as_json:
        click.echo(json.dumps(summary(plan, timeline), indent=2))
    else:
        show_simulation(plan, timeline, console())
    return 0
