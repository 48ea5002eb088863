"""`autoplan check`: is a plan file sound?"""

from __future__ import annotations

import json

import click


@click.command("check", short_help="Check that a plan file is sound.")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: str, as_json: bool) -> int:
    """Check the plan in FILE: schema, devices used once, layers covered once, memory fits, degrees consistent.

    Exit codes: 0 a sound plan; 1 a plan with problems; 2 no plan.
    """
    from autoplan.plan.check import problems
    from autoplan.plan.schema import parse, read_text

    plan, unreadable = parse(read_text(file), file)
    found = list(unreadable) if plan is None else problems(plan)
    if as_json:
        click.echo(json.dumps({"valid": not found, "problems": found}, indent=2, ensure_ascii=False))
    elif plan is None or found:
        for problem in found:
            click.echo(f"{file}: {problem}")
    else:
        stages, devices = len(plan.stages), sum(len(stage.devices) for stage in plan.stages)
        click.echo(f"{file}: a sound plan of {plan.model.name} on {plan.cluster.name}: {plan.model.num_layers} layers "
                   f"in {stages} stage{'s' * (stages > 1)} on {devices} device{'s' * (devices > 1)}")
    if plan is None:
        click.echo(f"error: {file}: not a plan: {len(found)} violation{'s' * (len(found) > 1)} of the schema", err=True)
        return 2
    return 1 if found else 0
