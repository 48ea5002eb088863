"""`autoplan verify`: what a compiler makes of a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from autoplan.cli.output import console

if TYPE_CHECKING:
    from autoplan.judge.verify import LayerVerdict, Verdict

MB = 1e6


@click.command("verify", short_help="Compile a plan with XLA and compare it with the prediction.")
@click.argument("file")
@click.option("--model", metavar="REF", help="The model, where the plan's name for it isn't that of a shipped one.")
@click.option("--scale", type=click.Choice(("full", "small")), default="full", show_default=True,
              help="Sizes that are compiled: the plan's, or small ones of the same structure.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: str, model: str | None, scale: Any, as_json: bool) -> int:
    """Compile the layers of the plan in FILE under its shardings, and run small copies of its stages (needs JAX).

    Exit code 1 where the sharded stages compute something else than the unsharded ones.
    """
    from autoplan.export.planned import model_of, planned_stages
    from autoplan.judge.verify import verify
    from autoplan.plan.check import load_consistent

    plan = load_consistent(file)
    verdict = verify(planned_stages(plan, model_of(plan, model, file), file), plan.workload.optimizer, scale)
    if as_json:
        click.echo(json.dumps(_tree(verdict), indent=2))
    else:
        _show(verdict)
    if verdict.loss_matches is False:
        click.echo(f"error: {file}: sharded results differ from the unsharded ones by {verdict.largest_difference:.1e}",
                   err=True)
    return 1 if verdict.loss_matches is False else 0


def _rows(layer: LayerVerdict) -> list[tuple[str, int, float, float]]:
    """Return what a layer sends: collective, group size, bytes predicted and compiled."""
    ours, theirs = layer.predicted.sent, layer.compiled.sent
    return [(kind.value, group, ours.get((kind, group), 0.0), theirs.get((kind, group), 0.0))
            for kind, group in sorted({*ours, *theirs})]


def _tree(verdict: Verdict) -> dict[str, object]:
    def each(layer: LayerVerdict) -> dict[str, object]:
        return {"stage": layer.stage, "layer": layer.layer, "layers": layer.count}

    return {
        "max_relative_error": verdict.max_relative_error,
        "loss_matches": verdict.loss_matches,
        "largest_difference": verdict.largest_difference,
        "collectives": [{**each(layer), "collective": kind, "group": group, "predicted_bytes": ours,
                         "compiled_bytes": theirs}
                        for layer in verdict.layers for kind, group, ours, theirs in _rows(layer)],
        "argument_bytes": [{**each(layer), "predicted": layer.predicted.argument_bytes,
                            "compiled": layer.compiled.argument_bytes} for layer in verdict.layers],
        "flops": [{**each(layer), "predicted": layer.predicted.flops, "compiled": layer.compiled.flops}
                  for layer in verdict.layers],
        "notes": list(verdict.notes),
    }


def _show(verdict: Verdict) -> None:
    from rich.table import Table

    out = console()
    table = Table("stage", "layer", "what", "devices", "predicted", "compiled", "error", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for layer in verdict.layers:
        head = (str(layer.stage), f"{layer.layer} ×{layer.count}")
        figures = [(kind.replace("_", "-"), str(group), ours / MB, theirs / MB, "MB")
                   for kind, group, ours, theirs in _rows(layer)]
        figures.append(("arguments", "", layer.predicted.argument_bytes / MB, layer.compiled.argument_bytes / MB, "MB"))
        if layer.predicted.flops:
            figures.append(("FLOPs", "", layer.predicted.flops / 1e9, layer.compiled.flops / 1e9, "G"))
        for index, (what, group, ours, theirs, unit) in enumerate(figures):
            error = abs(ours - theirs) / max(ours, theirs, 1e-30)
            table.add_row(*(head if index == 0 else ("", "")), what, group,
                          f"{ours:,.4f} {unit}", f"{theirs:,.4f} {unit}", f"{error:.2%}")
    out.print(table)
    out.print(f"\nlargest error of one kind of collective: {verdict.max_relative_error:.2%} of the bytes a layer sends")
    if verdict.largest_difference is not None:
        same = "equal" if verdict.loss_matches else "DIFFER FROM"
        out.print(f"outputs, gradients and updates of small stages: {same} the unsharded ones "
                  f"(largest difference {verdict.largest_difference:.0e})")
    for note in verdict.notes:
        out.print(f"note: {note}")
