"""A plan as text: its summary and the tables that `plan`, `estimate` and `explain` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from autoplan.cli.units import GIB, count, gib, percent, seconds
from autoplan.plan.check import over_capacity
from autoplan.plan.schema import Parallelism, Plan, Stage, StageParallelism, WorkloadInfo
from autoplan.workload import Attention

if TYPE_CHECKING:
    from rich.console import Console

PARTS = {"weights": "weights", "gradients": "grads", "optimizer": "optim.", "activations": "activ.",
         "transient": "temp.", "communication": "comm.", "reserve": "reserve"}


def show_plan(plan: Plan, out: Console) -> None:
    """Print the summary of a plan: what it is, what it costs, its stages, the search, the runner-ups."""
    show_heading(plan, out)
    show_table(stages_table(plan), out)
    out.print(search_line(plan) + "\n")
    if plan.alternatives:
        show_table(alternatives_table(plan), out)
    show_notes(plan, out)


def show_heading(plan: Plan, out: Console) -> None:
    """Print what was asked and what the answer is."""
    ask, predicted, cluster = plan.workload, plan.predicted, plan.cluster
    out.print(Text(f"{plan.model.name} on {cluster.name}: {count(plan.model.parameters.total)} parameters, "
                   f"{cluster.num_devices:,} × {cluster.device}", style="bold"))
    out.print(f"batch {ask.global_batch_size:,} × {ask.seq_len:,} tokens, {_numbers(ask)}, runtime {plan.runtime}",
              soft_wrap=True)
    out.print()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("plan", parallelism_text(plan.parallelism))
    grid.add_row("", _schedule(plan.parallelism))
    grid.add_row("iteration", f"{seconds(predicted.iteration_time_s)}, {predicted.tokens_per_s:,.0f} tokens/s "
                              f"({predicted.tokens_per_s_per_device:,.0f} per GPU)")
    grid.add_row("efficiency", f"{predicted.model_tflops_per_device:,.1f} model TFLOP/s per GPU, "
                               f"MFU {percent(predicted.mfu)}, bubble {percent(predicted.bubble_fraction)}")
    grid.add_row("memory", f"{gib(predicted.peak_memory_bytes)} of {gib(_capacity(plan))} GiB on the fullest stage, "
                           f"at most {gib(max(stage.memory.high_bytes for stage in plan.stages))}")
    out.print(grid)
    out.print()


def _numbers(ask: WorkloadInfo) -> str:
    """Return the dtypes of a workload, gradients' where they are others, and what else changes its kernels."""
    parts = [ask.precision.value]
    if ask.grad_dtype is not ask.precision.stored:
        parts.append(f"{ask.grad_dtype.value} gradients")
    if ask.reduce_dtype is not ask.grad_dtype:
        parts.append(f"sent as {ask.reduce_dtype.value}")
    parts.append(ask.optimizer)
    if ask.attention is not Attention.FLASH:
        parts.append(f"{ask.attention.value.replace('_', ' ')} attention")
    return ", ".join(parts + ["dropout"] * ask.dropout + ["frozen weights"] * ask.frozen)


def parallelism_text(parallelism: Parallelism | StageParallelism) -> str:
    """Return the degrees above one and what else is switched on, e.g. `dp 4 × tp 8, sequence parallel, ZeRO 1`."""
    degrees = [(name, getattr(parallelism, name, 1)) for name in ("dp", "tp", "cp", "pp", "ep")]
    shown = " × ".join(f"{name} {'mixed' if value is None else value}" for name, value in degrees if value != 1)
    parts = [shown or "one device"]
    if parallelism.sequence_parallel:
        parts.append("sequence parallel")
    if parallelism.zero is None or parallelism.zero > 0:
        parts.append(f"ZeRO {'mixed' if parallelism.zero is None else parallelism.zero}")
    recompute = "mixed" if parallelism.recompute is None else parallelism.recompute.value
    if recompute != "none":
        parts.append(f"{recompute} recompute")
    return ", ".join(parts)


def _schedule(parallelism: Parallelism) -> str:
    size = "mixed" if parallelism.micro_batch_size is None else parallelism.micro_batch_size
    text = f"micro-batch {size} × {parallelism.num_micro_batches} a step, schedule {parallelism.schedule.value}"
    return text + (f" with {parallelism.virtual_stages} chunks a stage" if parallelism.virtual_stages > 1 else "")


def _order(parallelism: Parallelism) -> str:
    chunks = f" × {parallelism.virtual_stages}" if parallelism.virtual_stages > 1 else ""
    return parallelism.schedule.value + chunks


def stages_table(plan: Plan) -> Table:
    """Return the stages; runs of stages alike in everything but memory and time are one row."""
    axes = {stage.mesh.axes for stage in plan.stages}
    named = f"; mesh: {' × '.join(axes.pop())}" if len(axes) == 1 else ""
    title = f"Stages (layer 0 is the embedding, layer {plan.model.num_layers - 1} the head{named})"
    table = new_table("stage", "layers", "GPUs", "mesh", "parallel", "micro-batch", "once a step", "memory GiB",
                   left=("layers", "mesh", "parallel"), title=title)
    for run in runs(plan.stages):
        table.add_row(_index(run), _layers(run), _range((len(stage.devices) for stage in run), "{:,}".format),
                      _mesh(run[0]), parallelism_text(run[0].parallelism),
                      _range((stage.time.micro_batch_s for stage in run), seconds),
                      _range((stage.time.step_s for stage in run), seconds),
                      _range((stage.memory.total_bytes for stage in run), gib))
    return table


def memory_table(plan: Plan) -> Table:
    """Return what likely fills one device of each stage, and what it may come to, in GiB."""
    title = f"Memory of one GPU, of {gib(_capacity(plan))} GiB (kept: micro-batches in flight; at most: what must fit)"
    table = new_table("stage", "kept", *PARTS.values(), "total", "at least", "at most", title=title)
    for run in runs(plan.stages):
        cells = [_range((getattr(stage.memory.breakdown, part) for stage in run), gib) for part in PARTS]
        table.add_row(_index(run), _range((stage.memory.in_flight for stage in run), "{:.3g}".format),
                      *cells, *(_range((getattr(stage.memory, total) for stage in run), gib)
                                for total in ("total_bytes", "low_bytes", "high_bytes")))
    return table


def alternatives_table(plan: Plan) -> Table:
    """Return the runner-ups and how much slower each is."""
    table = new_table("parallel", "micro-batch", "schedule", "iteration", "slower", "MFU", "memory GiB",
                   left=("parallel", "schedule"), title="Runner-ups")
    for other in plan.alternatives:
        way, predicted = other.parallelism, other.predicted
        size = "mixed" if way.micro_batch_size is None else way.micro_batch_size
        slower = predicted.iteration_time_s / plan.predicted.iteration_time_s - 1
        table.add_row(parallelism_text(way), f"{size} × {way.num_micro_batches}", _order(way),
                      seconds(predicted.iteration_time_s), percent(slower), percent(predicted.mfu),
                      gib(predicted.peak_memory_bytes))
    return table


def search_line(plan: Plan) -> str:
    """Return what was searched, in a line."""
    search = plan.search
    if search.lower_bound_s is None or search.gap is None:
        return f"Estimated, not searched, in {seconds(plan.timing.wall_s)}."
    stopped = "; the time limit stopped the search" if search.status == "time_limit" else ""
    return (f"Searched {search.candidates:,} candidates ({search.pruned:,} pruned) with {search.solves:,} solves "
            f"({search.solver}; {search.cache_hits:,} tables used again) in {seconds(plan.timing.wall_s)}; "
            f"lower bound {seconds(search.lower_bound_s)}, gap {percent(search.gap)}{stopped}.")


def show_table(table: Table, out: Console) -> None:
    """Print a table and an empty line."""
    out.print(table)
    out.print()


def show_notes(plan: Plan, out: Console) -> None:
    """Print the plan's notes."""
    for note in plan.notes:
        out.print(f"note: {note}", soft_wrap=True)


def memory_verdict(plan: Plan) -> str:
    """Return which stage is over its memory, by how much and on what, or an empty string."""
    over = over_capacity(plan)
    if not over:
        return ""
    worst = max(over, key=lambda stage: stage.memory.high_bytes - stage.memory.capacity_bytes)
    memory = worst.memory
    parts = sorted(memory.breakdown, key=lambda item: -item[1])[:2]
    biggest = ", ".join(f"{name} {gib(nbytes)} GiB" for name, nbytes in parts)
    others = f"; {len(over)} of {len(plan.stages)} stages are over" if len(over) > 1 else ""
    missing = memory.high_bytes - memory.capacity_bytes
    return (f"doesn't fit: stage {worst.index} may need {gib(memory.high_bytes)} of {gib(memory.capacity_bytes)} GiB: "
            f"{gib(missing, 1 if missing >= GIB / 10 else 3)} GiB over, mostly {biggest}{others}")


def runs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Return runs of stages alike in mesh, parallelism and number of layers."""
    def alike(stage: Stage) -> tuple[object, ...]:
        return (stage.mesh, stage.parallelism, [last - first for first, last in stage.chunks])
    return [list(run) for _, run in groupby(stages, key=alike)]


def new_table(*columns: str, left: Sequence[str] = (), title: str) -> Table:
    """Return an empty table; its columns are right-aligned unless named in `left`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=title,
                  title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return table


def _range(values: Iterable[float], text: Callable[[float], str]) -> str:
    """Return one text for equal values, and the least and greatest otherwise."""
    found = sorted(values)
    least, most = text(found[0]), text(found[-1])
    return least if least == most else f"{least}–{most}"


def _capacity(plan: Plan) -> int:
    return min(stage.memory.capacity_bytes for stage in plan.stages)


def _index(run: Sequence[Stage]) -> str:
    return str(run[0].index) if len(run) == 1 else f"{run[0].index}–{run[-1].index}"


def _layers(run: Sequence[Stage]) -> str:
    if len(run[0].chunks) > 1:
        each = sum(last - first + 1 for first, last in run[0].chunks)
        return f"{each} in {len(run[0].chunks)} chunks"
    (first, last), end = run[0].layers, run[-1].layers[1]
    return f"{first}–{last}" if len(run) == 1 else f"{first}–{end}, {last - first + 1} each"


def _mesh(stage: Stage) -> str:
    return "×".join(map(str, stage.mesh.shape))
