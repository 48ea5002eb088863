"""`autoplan schema`: the JSON Schema of each kind of file."""

from __future__ import annotations

import json

import click


@click.command("schema", short_help="Print the JSON Schema of a kind of file.")
@click.argument("kind", type=click.Choice(("plan", "model", "cluster", "profile")))
def command(kind: str) -> None:
    """Print the JSON Schema of plan, model, cluster or profile files."""
    if kind == "plan":
        from autoplan.plan import plan_schema as schema
    elif kind == "model":
        from autoplan.model import model_schema as schema
    elif kind == "cluster":
        from autoplan.cluster import cluster_schema as schema
    else:
        from autoplan.cost.profile import profile_schema as schema
    click.echo(json.dumps(schema(), indent=2, ensure_ascii=False))
