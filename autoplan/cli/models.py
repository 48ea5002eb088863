"""`autoplan models`: what is known of the shipped models, and of a user's."""

from __future__ import annotations

import click

from autoplan.cli.facts import show_facts, show_names
from autoplan.cli.output import output_file


@click.group("models", short_help="List or show models.")
def command() -> None:
    """List the models that come with autoplan, or show the facts of one."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON.")
def list_(as_json: bool) -> None:
    """List the models that come with autoplan."""
    from autoplan.specs import names

    show_names(names("models"), as_json)


@command.command("show")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option("--graph", metavar="FILE", help="Write the operator graph to FILE: .graphml, .dot or .json.")
def show(model: str, as_json: bool, graph: str | None) -> None:
    """Show the facts of MODEL: its parameters, FLOPs, layers and key/value cache.

    MODEL is a name, a model YAML, a Hugging Face config.json, an ONNX file, or module:function of Python code that
    makes one.
    """
    from autoplan.model import describe, load

    with output_file(graph, "--graph") as write:
        loaded = load(model)
        if graph is not None:
            from autoplan.model.export_graph import text_of

            write(text_of(loaded, graph.rpartition(".")[2]))
        show_facts(describe(loaded), as_json)
