"""`autoplan calibrate`: make a profile of one's own measurements."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

import click

from autoplan.cli.output import console, output_file

if TYPE_CHECKING:
    from autoplan.cost.profile import Profile
    from autoplan.cost.refine import Change
    from autoplan.search.steps import Step

EPILOG = """MEASURED.csv has a header and one measurement a row: kind (gemm, attention, memory, all_reduce, all_gather,
reduce_scatter, all_to_all, p2p or step), target (a device or cluster), seconds, and the kind's own columns; see
docs/cost-model.md, "Your own measurements"."""


@click.command("calibrate", epilog=EPILOG, short_help="Make a profile of your own measurements.")
@click.argument("measured", metavar="MEASURED.csv")
@click.option("-o", "--output", metavar="FILE", required=True, help="Write the profile to FILE (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print what changed as JSON.")
def command(measured: str, output: str, as_json: bool) -> int:
    """Fit the prices of kernels and collectives to MEASURED.csv; `plan` and `estimate` take it with --profile."""
    with output_file(output) as write:
        from autoplan.cost import measurements
        from autoplan.cost.refine import refine

        rows = measurements.read(measured)
        profile, changes = refine((row for row in rows if row.kind != "step"), measured)
        steps = [row for row in rows if row.kind == "step"]
        if steps:
            from autoplan.search.steps import step_of

            profile, found = _with_steps([step_of(row) for row in steps], profile)
            changes += found
        write(profile.to_json())
    if as_json:
        click.echo(json.dumps({"changes": [asdict(change) for change in changes]}, indent=1))
    else:
        _show(changes, output)
    return 0


def _with_steps(steps: list[Step], profile: Profile) -> tuple[Profile, tuple[Change, ...]]:
    """Scale the kernels of devices of which only steps were measured; of others, say how well the steps are met."""
    from autoplan.cost.refine import Change, scaled
    from autoplan.search.steps import scale_of

    def error(some: list[Step], by: Profile | None) -> float:
        return median(abs(step.seconds(by) / step.measured.seconds - 1) for step in some)

    devices: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        devices[step.cluster.device.name].append(step)
    changes = []
    for device, some in devices.items():
        before, scale = error(some, None), 1.0
        if device not in profile.devices:
            scale = scale_of(some, device, scaled(profile, device, 1.0))
            profile = scaled(profile, device, scale)
        changes.append(Change(device, "step", len(some), scale, scale, before, error(some, profile)))
    return profile, tuple(changes)


def _show(changes: tuple[Change, ...], output: str) -> None:
    from rich.table import Table

    table = Table("target", "what", box=None, pad_edge=False)
    for heading in ("rows", "launch ×", "rest ×", "off before", "off after"):
        table.add_column(heading, justify="right")
    for one in changes:
        table.add_row(one.target, one.group, str(one.rows), f"{one.fixed:.3g}", f"{one.variable:.3g}",
                      f"{one.before:.1%}", f"{one.after:.1%}")
    console().print(table)
    click.echo(f"wrote {output}; use it with: autoplan plan MODEL CLUSTER --profile {output}")
