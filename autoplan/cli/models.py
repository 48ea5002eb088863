"""`autoplan models`: what is known of the shipped models, and of a user's."""

from __future__ import annotations

import click

from autoplan.cli.facts import show_facts, show_names


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
def show(model: str, as_json: bool) -> None:
    """Show the facts of MODEL: a name, a model YAML, or a Hugging Face config.json."""
    from autoplan.model import describe, load

    show_facts(describe(load(model)), as_json)
