"""`autoplan plan`: search for the fastest plan that fits."""

from __future__ import annotations

from typing import Any

import click

from autoplan.cli.options import (
    RECOMPUTES,
    Real,
    WholeNumber,
    cluster_argument,
    model_argument,
    output_options,
    parse_fixes,
    reject_conflicts,
    workload_options,
)
from autoplan.cli.output import console, output_file, progress

EPILOG = """MODEL is a name from `autoplan models list`, a model YAML, or a Hugging Face config.json (or its folder).
CLUSTER is a name from `autoplan clusters list` or a cluster YAML, each optionally with :GPUS, e.g. dgx-h100:64."""


@click.command("plan", epilog=EPILOG, short_help="Search for the fastest plan that fits.")
@model_argument
@cluster_argument
@click.option("--global-batch-size", type=WholeNumber(), help="Sequences of one optimizer step.")
@click.option("--micro-batch-size", type=WholeNumber(auto=True), default="auto", show_default=True,
              help="Sequences a replica runs at a time.")
@click.option("--recompute", type=click.Choice(("auto", *RECOMPUTES)), default="auto", show_default=True,
              help="What the backward pass runs again.")
@click.option("--zero", type=WholeNumber(0, 3, auto=True), default="auto", show_default=True,
              help="The ZeRO stage: what is split over replicas.")
@click.option("--fix", "fixes", multiple=True, metavar="KEY=VALUE",
              help="Fix a choice of the search, e.g. --fix tp=8 --fix pp=4; also dp, cp, ep, zero, mbs, "
                   "num_micro_batches, recompute, sp, schedule, vpp, layers (N,N,…).")
@click.option("--top", type=WholeNumber(most=1000), default=5, show_default=True, metavar="K",
              help="How many of the best plans to report.")
@click.option("--solver", default="auto", show_default=True, metavar="auto|highs|pulp:NAME",
              help="What solves the integer programs.")
@click.option("--time-limit", type=Real("SECONDS"), help="Stop searching then, and report the gap that is left.")
@click.option("--gap", type=Real("FRACTION", 0.0, 1.0, closed=True), default=0.05, show_default=True,
              help="Stop at a plan proven to be within this of the best.")
@workload_options
@output_options
def command(model: str, cluster: str, global_batch_size: int | None, micro_batch_size: int | None, recompute: str,
            zero: int | None, fixes: tuple[str, ...], top: int, solver: str, time_limit: float | None, gap: float,
            as_json: bool, output: str | None, **asked: Any) -> int:
    """Search for the fastest plan that trains MODEL on CLUSTER and fits its memory."""
    fixed = parse_fixes(fixes)
    recomputed = None if recompute == "auto" else recompute
    reject_conflicts(fixed, micro_batch_size=micro_batch_size, recompute=recomputed, zero=zero)
    with output_file(output) as write:
        from autoplan import search
        from autoplan.cluster import load as load_cluster
        from autoplan.model import load as load_model

        graph, machines = load_model(model), load_cluster(cluster)
        with progress() as report:
            plan = search.plan(
                graph, machines, global_batch_size=global_batch_size, micro_batch_size=micro_batch_size,
                recompute=recomputed, zero=zero, fix=fixed, top=top, solver=solver, time_limit=time_limit, gap=gap,
                progress=report, **asked)
        text = plan.to_json()
        write(text)
    if as_json:
        click.echo(text, nl=False)
    else:
        from autoplan.cli.tables import show_plan

        show_plan(plan, console())
    return 0
