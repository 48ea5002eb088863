"""`autoplan solve`: the cheapest choice of strategies in a problem file of the public IOPDDL format."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import click

from autoplan.cli.options import Real, WholeNumber
from autoplan.cli.output import console, output_file

if TYPE_CHECKING:
    from autoplan.intraop.arrays import ProblemArrays
    from autoplan.intraop.problem import Conflict, Solution

_MOST_SECONDS = 1e9  # what a system call can wait
_NAMED = 10  # nodes in a conflict


@click.command("solve", short_help="Solve an intra-operator problem file (IOPDDL).")
@click.argument("problem", metavar="PROBLEM.json[.gz]")
@click.option("--time-limit", type=Real("S", 0.1, _MOST_SECONDS, closed=True), default=60.0, show_default=True,
              help="Wall seconds for the whole command, at least 0.1.")
@click.option("--seed", type=WholeNumber(0), default=0, show_default=True, help="Of the first search; others follow.")
@click.option("--jobs", type=WholeNumber(), help="Worker processes.  [default: the processors, at most 2]")
@click.option("-o", "--output", metavar="FILE", help="Write the strategies to FILE: one index a node, a JSON list.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(problem: str, time_limit: float, seed: int, jobs: int | None, output: str | None, as_json: bool) -> int:
    """Choose one strategy a node of PROBLEM: the cheapest found that holds no more than the limit at any time.

    Exit code 1 where nothing fits, or nothing was found in time.
    """
    begin = time.monotonic() - time.process_time()
    with output_file(output) as write:
        from autoplan.intraop.iopddl import read_arrays
        from autoplan.intraop.solve import solve

        arrays = read_arrays(problem)
        left = time_limit - (time.monotonic() - begin)
        found = solve(arrays, time_limit=max(0.05, left), seed=seed, jobs=jobs)
        if found.choice is not None:
            write(json.dumps(list(found.choice)) + "\n")
    report = _report(arrays, found, time.monotonic() - begin)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _show(report)
    if found.choice is None:
        click.echo(f"error: {problem}: {_why_not(report)}", err=True)
    return 1 if found.choice is None else 0


def _report(arrays: ProblemArrays, found: Solution, seconds: float) -> dict[str, Any]:
    checked = None if found.choice is None else arrays.evaluate(found.choice)
    return {
        "status": found.status,
        "cost": None if checked is None else _number(checked.cost),
        "feasible": checked is not None and checked.feasible,
        "lower_bound": _number(found.lower_bound),
        "gap": _number(found.gap),
        "peak_usage": None if checked is None else _number(checked.peak),
        "usage_limit": _number(arrays.limit),
        "conflict": None if found.conflict is None else _conflict(arrays, found.conflict),
        "nodes": arrays.num_nodes,
        "edges": arrays.edge_u.size,
        "timing": {"seconds": round(seconds, 3)},
    }


def _conflict(arrays: ProblemArrays, conflict: Conflict) -> dict[str, Any]:
    """Return why nothing fits; without a window no choice avoids the forbidden costs."""
    from autoplan.intraop.solve.conflict import holders

    nodes = holders(arrays, conflict)
    least = None if conflict.start is None else _number(arrays.limit + conflict.excess)
    return {"start": conflict.start, "end": conflict.end, "excess": _number(conflict.excess), "least_usage": least,
            "nodes": nodes[:_NAMED], "num_nodes": len(nodes)}


def _number(value: float) -> int | float | None:
    """Return a whole number as an int, and what isn't finite as None."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for key in ("status", "cost", "lower_bound", "gap", "peak_usage", "usage_limit"):
        value = report[key]
        if value is None:
            continue
        text = f"{value:.3%}" if key == "gap" else f"{value:,}" if not isinstance(value, str) else value
        table.add_row(key.replace("_", " "), text)
    table.add_row("problem", f"{report['nodes']:,} nodes, {report['edges']:,} edges")
    table.add_row("time", f"{report['timing']['seconds']:.1f} s")
    console().print(table)


def _why_not(report: dict[str, Any]) -> str:
    """Say why there is no choice, in one line."""
    if report["status"] != "infeasible":
        return "no choice that fits was found in time"
    conflict = report["conflict"]
    if conflict is None:
        return "no choice avoids all forbidden costs and holds no more than the limit"
    if conflict["start"] is None:
        return "no choice avoids all forbidden costs"
    who = ", ".join(map(str, conflict["nodes"])) + (", …" if conflict["num_nodes"] > _NAMED else "")
    return (f"nothing fits: at {conflict['start']} ≤ t < {conflict['end']} every choice holds at least "
            f"{conflict['least_usage']:,} bytes, {conflict['excess']:,} more than the limit of "
            f"{report['usage_limit']:,} (nodes {who})")
