"""`autoplan explain`: what was chosen, why, and where time and memory go."""

from __future__ import annotations

import click

from autoplan.cli.output import console


@click.command("explain", short_help="Explain a plan: why, and where time and memory go.")
@click.argument("file")
def command(file: str) -> None:
    """Explain the plan in FILE: what was chosen and why, what the runner-ups cost, where time and memory go."""
    from autoplan.cli.explanation import show_explanation
    from autoplan.plan.check import load_consistent

    show_explanation(load_consistent(file), console())
