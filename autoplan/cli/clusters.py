"""`autoplan clusters`: what is known of the shipped clusters, and of a user's."""

from __future__ import annotations

import click

from autoplan.cli.facts import show_facts, show_names


@click.group("clusters", short_help="List or show clusters.")
def command() -> None:
    """List the clusters that come with autoplan, or show the facts of one."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON.")
def list_(as_json: bool) -> None:
    """List the clusters that come with autoplan."""
    from autoplan.specs import names

    show_names(names("cluster_specs"), as_json)


@command.command("show")
@click.argument("cluster")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def show(cluster: str, as_json: bool) -> None:
    """Show the facts of CLUSTER: a name or a cluster YAML, each optionally with :GPUS."""
    from autoplan.cluster import describe, load

    show_facts(describe(load(cluster)), as_json)
