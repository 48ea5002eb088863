"""`autoplan export`: a plan as a framework reads it."""

from __future__ import annotations

import click

from autoplan.cli.output import output_file

FRAMEWORKS = ("jax",)


@click.command("export", short_help="Write a plan as a framework reads it.")
@click.argument("file")
@click.option("--to", "framework", type=click.Choice(FRAMEWORKS), required=True, help="The framework.")
@click.option("--model", metavar="REF", help="The model, where the plan's name for it isn't that of a shipped one.")
@click.option("-o", "--output", metavar="FILE", help="A .json or .py file; without it JSON goes to stdout.")
def command(file: str, framework: str, model: str | None, output: str | None) -> None:
    """Write the shardings of the plan in FILE: the mesh and every tensor's PartitionSpec, stage by stage."""
    with output_file(output) as write:
        from autoplan.errors import InputError
        from autoplan.export import jax
        from autoplan.export.planned import model_of, planned_stages
        from autoplan.plan.check import load_consistent
        from autoplan.version import __version__

        suffix = "json" if output is None else output.rpartition(".")[2]
        if suffix not in ("json", "py"):
            raise InputError("can't tell the format by the name", where="--output", found=output, allowed=".json, .py")
        plan = load_consistent(file)
        stages = jax.shardings(planned_stages(plan, model_of(plan, model, file), file))
        text = (jax.as_json if suffix == "json" else jax.as_python)(stages, plan.model.name, __version__)
        write(text)
    if output is None:
        click.echo(text, nl=False)
