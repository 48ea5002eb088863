"""`autoplan estimate`: price a given configuration."""

from __future__ import annotations

from typing import Any

import click

from autoplan.cli.options import (
    RECOMPUTES,
    SCHEDULES,
    WholeNumber,
    cluster_argument,
    model_argument,
    output_options,
    parse_layers,
    workload_options,
)
from autoplan.cli.output import console, output_file

DEGREE = WholeNumber()


@click.command("estimate", short_help="Price a given configuration.")
@model_argument
@cluster_argument
@click.option("--tp", type=DEGREE, default=1, show_default=True, help="Tensor-parallel degree.")
@click.option("--pp", type=DEGREE, default=1, show_default=True, help="Pipeline stages.")
@click.option("--dp", type=DEGREE, default=1, show_default=True, help="Data-parallel replicas.")
@click.option("--cp", type=DEGREE, default=1, show_default=True, help="Context-parallel degree.")
@click.option("--ep", type=DEGREE, default=1, show_default=True, help="Devices that a layer's experts are spread over.")
@click.option("--etp", type=DEGREE, help="Devices that share one expert: 1, or as many as --tp.  [default: --tp]")
@click.option("--micro-batch-size", type=DEGREE, required=True, help="Sequences a replica runs at a time.")
@click.option("--global-batch-size", type=DEGREE, required=True, help="Sequences of one optimizer step.")
@click.option("--zero", type=WholeNumber(0, 3), default=0, show_default=True,
              help="The ZeRO stage: what is split over replicas.")
@click.option("--recompute", type=click.Choice(RECOMPUTES), default="none", show_default=True,
              help="What the backward pass runs again.")
@click.option("--sequence-parallel", is_flag=True, help="Split norms and residuals along the sequence too.")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="1f1b", show_default=True,
              help="The order of micro-batches in the pipeline.")
@click.option("--virtual-stages", type=DEGREE, default=1, show_default=True,
              help="Chunks of layers a stage holds, under the schedule interleaved (zb_v always has 2).")
@click.option("--shard", type=DEGREE, help="Ranks over which ZeRO splits (hybrid sharding).  [default: dp]")
@click.option("--layers", metavar="N,N,…", help="Equal layers of each stage.  [default: the best cut]")
@workload_options
@output_options
def command(model: str, cluster: str, tp: int, pp: int, dp: int, cp: int, ep: int, etp: int | None,
            micro_batch_size: int, global_batch_size: int, zero: int, recompute: str, sequence_parallel: bool,
            schedule: str, virtual_stages: int, layers: str | None, shard: int | None, as_json: bool,
            output: str | None, **asked: Any) -> int:
    """Price one configuration of training MODEL on CLUSTER. Exit code 1 where it doesn't fit the memory."""
    with output_file(output) as write:
        from autoplan import search
        from autoplan.cluster import load as load_cluster
        from autoplan.model import load as load_model

        plan = search.estimate(
            load_model(model), load_cluster(cluster), tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp,
            micro_batch_size=micro_batch_size, global_batch_size=global_batch_size, zero=zero, recompute=recompute,
            sequence_parallel=sequence_parallel, schedule=schedule, virtual_stages=virtual_stages,
            layers=parse_layers(layers), shard=shard, **asked)
        text = plan.to_json()
        write(text)
    from autoplan.cli.tables import memory_verdict, show_plan

    if as_json:
        click.echo(text, nl=False)
    else:
        show_plan(plan, console())
    verdict = memory_verdict(plan)
    if verdict:
        click.echo(f"error: {verdict}", err=True)
    return 1 if verdict else 0
