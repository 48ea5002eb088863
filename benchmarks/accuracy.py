"""What the accuracy programs share: errors of a set of predictions, tables of them, and their summary line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Errors:
    """|predicted/measured − 1|: median and 90th percentile; and the signed median."""

    n: int
    median: float
    p90: float
    signed: float


def errors(predicted: np.ndarray, measured: np.ndarray) -> Errors:
    """Errors of predicted seconds against measured ones, [N] each, N ≥ 1."""
    e = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1
    return Errors(len(e), float(np.median(np.abs(e))), float(np.quantile(np.abs(e), 0.9)), float(np.median(e)))


@dataclass(frozen=True)
class Line:
    """One line of a table: what was measured (`table`), where (`device`), what kind of thing, and the errors.

    unseen: whether the rows took no part in the fit that prices them (another source, or each left out in turn).
    """

    table: str
    device: str
    kind: str
    errors: Errors
    unseen: bool = False


def show(lines: Iterable[Line], summary: Mapping[str, float | int], as_json: bool) -> None:
    """Print the lines and the summary as a table and a line of name=value pairs, or as one JSON object."""
    lines = list(lines)
    if as_json:
        tables = [{"table": line.table, "device": line.device, "kind": line.kind, "unseen": line.unseen,
                   "n": line.errors.n, "median": round(line.errors.median, 4), "p90": round(line.errors.p90, 4),
                   "signed": round(line.errors.signed, 4)} for line in lines]
        print(json.dumps({"summary": {k: round(v, 4) for k, v in summary.items()}, "tables": tables}, indent=1))
        return
    print(f"{'table':<14}{'device':<16}{'kind':<30}{'n':>6}{'median':>8}{'p90':>8}{'signed':>8}  unseen")
    for line in lines:
        e = line.errors
        print(f"{line.table:<14}{line.device:<16}{line.kind:<30}{e.n:>6}{e.median:>8.1%}{e.p90:>8.1%}{e.signed:>+8.1%}"
              f"  {'yes' if line.unseen else ''}")
    print(" ".join(f"{name}={value:.4g}" for name, value in summary.items()))


def mean_of(lines: Iterable[Line], field: str) -> float:
    """Mean over lines of a field of their errors, NaN of none."""
    values = [getattr(line.errors, field) for line in lines]
    return float(np.mean(values)) if values else float("nan")
