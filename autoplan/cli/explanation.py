"""A plan explained, from the plan alone: why it was chosen, and where time and memory go."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from autoplan.cli.tables import (
    alternatives_table,
    memory_table,
    memory_verdict,
    new_table,
    search_line,
    show_heading,
    show_notes,
    show_table,
    stages_table,
)
from autoplan.cli.units import percent, seconds
from autoplan.plan.check import by_class
from autoplan.plan.schema import ParamSpec, Plan, Sharding, Spec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CAUSES = {
    "forward_s": "forward",
    "backward_s": "backward",
    "recompute_s": "recompute",
    "launch_s": "waiting for the host to launch kernels",
    "layout_conversion_s": "layout conversions (tensor and sequence parallel)",
    "parameter_gather_s": "parameter gathers (ZeRO)",
    "p2p_s": "sends between stages",
    "bubble_s": "pipeline bubble",
    "gradient_sync_s": "gradient synchronisation",
    "optimizer_s": "optimizer step",
}


def show_explanation(plan: Plan, out: Console) -> None:
    """Print what was chosen and why, what the runner-ups cost, and where time and memory go."""
    show_heading(plan, out)
    out.print("Why", style="bold")
    for sentence in (*reasons(plan), search_line(plan)):
        out.print(f"- {sentence}", soft_wrap=True)
    out.print()
    if plan.alternatives:
        show_table(alternatives_table(plan), out)
    show_table(time_table(plan), out)
    show_table(stages_table(plan), out)
    show_table(memory_table(plan), out)
    for table in sharding_tables(plan):
        show_table(table, out)
    show_notes(plan, out)


def reasons(plan: Plan) -> list[str]:
    """Return what is proven of the plan and what limits it, a sentence each."""
    search, predicted = plan.search, plan.predicted
    found = []
    if search.lower_bound_s is None or search.gap is None:
        found.append("The configuration was given, so nothing is claimed about faster ones.")
    elif search.gap == 0:
        found.append("No plan in the searched space is faster: its time equals the lower bound.")
    else:
        found.append(f"No plan in the searched space is faster than {seconds(search.lower_bound_s)}; this one is "
                     f"within {percent(search.gap)} of that bound.")
    if plan.alternatives:
        best = min(other.predicted.iteration_time_s for other in plan.alternatives)
        found.append(f"The best runner-up takes {seconds(best)}, "
                     f"{percent(best / predicted.iteration_time_s - 1)} more.")
    found.append(f"The model's FLOPs at the devices' peak take {seconds(predicted.physical_limit_s)}, "
                 f"{percent(predicted.physical_limit_s / predicted.iteration_time_s)} of the iteration.")
    if len(plan.stages) > 1:
        slowest = max(plan.stages, key=lambda stage: stage.time.micro_batch_s)
        mean = sum(stage.time.micro_batch_s for stage in plan.stages) / len(plan.stages)
        over = slowest.time.micro_batch_s / mean - 1 if mean else 0.0
        found.append(f"Stage {slowest.index} sets the pace: {seconds(slowest.time.micro_batch_s)} a micro-batch, "
                     f"{percent(over)} above the mean of the stages.")
    fullest = max(plan.stages, key=lambda stage: stage.memory.total_bytes)
    biggest, nbytes = max(fullest.memory.breakdown, key=lambda item: item[1])
    verdict = memory_verdict(plan)
    found.append(f"It {verdict}." if verdict else
                 f"Stage {fullest.index} is the fullest, {percent(nbytes / max(1, fullest.memory.total_bytes))} of it "
                 f"{biggest}.")
    return found


def time_table(plan: Plan) -> Table:
    """Return the iteration time by cause, and the physical limit beside it."""
    total = plan.predicted.iteration_time_s
    table = new_table("cause", "time", "share", left=("cause",), title="Where the iteration's time goes")
    for name, value in plan.predicted.breakdown:
        if value:
            table.add_row(CAUSES[name], seconds(value), percent(value / total))
    table.add_section()
    table.add_row("iteration", seconds(total), percent(1.0))
    if plan.predicted.simulated_time_s is not None:
        table.add_row("replayed event by event", seconds(plan.predicted.simulated_time_s),
                      percent(plan.predicted.simulated_time_s / total))
    table.add_row("physical limit: model FLOPs at peak", seconds(plan.predicted.physical_limit_s),
                  percent(plan.predicted.physical_limit_s / total))
    return table


def sharding_tables(plan: Plan) -> list[Table]:
    """Return, for each layer class and each way it is sharded, the layouts around its operators."""
    ways: dict[tuple[str, str], list[int]] = defaultdict(list)
    operators: dict[tuple[str, str], dict[str, Sharding]] = {}
    for stage in plan.stages:
        for layer, group in by_class(stage.shardings).items():
            way = (layer, repr(group))
            ways[way].append(stage.index)
            operators[way] = group
    tables = []
    for (layer, text), stages in ways.items():
        where = f"stage {stages[0]}" if len(stages) == 1 else f"{len(stages)} stages, {stages[0]} to {stages[-1]}"
        table = new_table("operator", "output", "parameters", left=("operator", "output", "parameters"),
                          title=f"Shardings of {layer} ({where}): dim:axis, Σ = partial sum over an axis")
        for name, sharding in operators[layer, text].items():
            params = ", ".join(f"{param}{layout(spec)}" for param, spec in sharding.params.items())
            table.add_row(name, layout(sharding.output), params)
        tables.append(table)
    return tables


def layout(spec: Spec) -> str:
    """Return a layout as `[batch:data, seq, hidden:model] Σmodel`; a stored parameter ends in `/shards (ZeRO n)`."""
    dims = ", ".join(":".join((dim, "+".join(axes))) if axes else dim
                     for dim, axes in zip(spec.dims, spec.axes, strict=False))
    text = f"[{dims}]" + "".join(f" Σ{axis}" for axis in spec.partial)
    if isinstance(spec, ParamSpec) and spec.zero:
        text += f"/{spec.shards} (ZeRO {spec.zero})"
    return text
