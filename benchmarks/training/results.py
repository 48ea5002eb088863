"""What the prices of all rows say of each source, and of all."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import statistics
from .models import Unpriced
from .pricing import GIB, Plans, Price, price
from .rows import Row, once
from .statistics import Array

Figures = dict[str, float | int | None]


@dataclass(frozen=True)
class Outcome:
    """Rows that were priced, and those that weren't with the reason. repeats: rows that count elsewhere."""

    prices: tuple[Price, ...]
    unpriced: tuple[tuple[Row, str], ...]
    repeats: tuple[Row, ...]

    @property
    def clean(self) -> list[Price]:
        """Prices of rows that the data set's own checks have nothing against."""
        return [one for one in self.prices if not one.row.flags - {"repeat_of_earlier_release"}]

    @property
    def flagged(self) -> list[Price]:
        """Prices of the other rows."""
        return [one for one in self.prices if one.row.flags - {"repeat_of_earlier_release"}]


@dataclass(frozen=True)
class Group:
    """Rows of one model, batch and cluster under different plans."""

    name: str
    source_id: str
    plans: int
    spearman: float | None
    regret: float


def price_all(rows: Iterable[Row]) -> Outcome:
    """Price every row that counts."""
    kept, repeats = once(rows)
    prices, unpriced, plans = [], [], Plans()
    for row in kept:
        try:
            prices.append(price(row, plans))
        except Unpriced as reason:
            unpriced.append((row, str(reason)))
        except Exception as error:  # one row that autoplan fails on must not hide the others; it is listed
            unpriced.append((row, f"autoplan failed: {type(error).__name__}: {error}"))
    return Outcome(tuple(prices), tuple(unpriced), tuple(repeats))


def figures(prices: Sequence[Price]) -> Figures:
    """Return a source's figures: errors of step time and memory, the baseline's error, and OOM calls."""
    timed = [one for one in prices if one.row.step_time_norm_s is not None]
    predicted, measured = seconds(timed)
    baseline = statistics.constant_utilisation(
        np.array([one.ideal for one in timed]), measured, [(one.row.source_id, one.precision) for one in timed])
    compared = ~np.isnan(baseline)
    held = [(one.memory, one.measured_memory) for one in prices
            if one.measured_memory is not None and not one.row.ran_out]
    memory, measured_memory = np.array([a for a, _ in held]), np.array([b for _, b in held])
    failed = [one for one in prices if one.row.ran_out]
    ran = [one for one in prices if one.row.ran]
    called = [one for one in (*failed, *ran) if not one.fits]
    return {
        "n": len(timed), "mape": statistics.mape(predicted, measured), "signed": statistics.signed(predicted, measured),
        "spearman": statistics.spearman(predicted, measured),
        "baseline_mape": statistics.mape(baseline[compared], measured[compared]), "baseline_n": int(compared.sum()),
        "memory_n": len(held), "memory_mape": statistics.mape(memory, measured_memory),
        "memory_signed": statistics.signed(memory, measured_memory),
        "oom_n": len(failed), "oom_recall": _fraction(not one.fits for one in failed),
        "oom_precision": _fraction(one.row.ran_out for one in called) if failed else None,
        "ran_n": len(ran), "oom_false": _fraction(not one.fits for one in ran),
    }


def seconds(prices: Sequence[Price]) -> tuple[Array, Array]:
    """Return predicted and measured seconds of rows with a measured step time."""
    return (np.array([one.seconds for one in prices], dtype=float),
            np.array([one.row.step_time_norm_s for one in prices], dtype=float))


def _fraction(flags: Iterable[bool]) -> float | None:
    found = list(flags)
    return sum(found) / len(found) if found else None


def groups(prices: Iterable[Price], members: Mapping[str, Sequence[str]]) -> list[Group]:
    """Return each ranking group's figures; rows that are the same in every recorded field are averaged.

    members: row ids of each group. Groups of fewer than three different plans with price and time are left out.
    """
    priced = {one.row.row_id: one for one in prices if one.row.step_time_norm_s is not None}
    found = []
    for name, ids in members.items():
        mine = [priced[one] for one in ids if one in priced]
        if not mine:
            continue
        predicted, measured = statistics.averaged([one.row.setting for one in mine], *seconds(mine))
        if len(measured) >= 3:
            found.append(Group(name, mine[0].row.source_id, len(measured), statistics.spearman(predicted, measured),
                               statistics.regret(predicted, measured)))
    return found


def read_groups(path: Path) -> dict[str, list[str]]:
    """Return the row ids of each group of a file of ranking groups."""
    members: dict[str, list[str]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            members.setdefault(record["group"], []).append(record["row_id"])
    return members


def report(rows: Sequence[Row], outcome: Outcome, ranked: Sequence[Group]) -> dict[str, object]:
    """Return everything that is printed, ready for JSON: `summary`, `sources`, `flagged`, `groups`, `unpriced`.

    The summary's figures are means over the sources of the source's figure; `regret_max` is the worst group's.
    """
    sources = {}
    for source in dict.fromkeys(row.source_id for row in rows):
        mine = [one for one in outcome.clean if one.row.source_id == source]
        own = [group for group in ranked if group.source_id == source]
        unpriced = [reason for row, reason in outcome.unpriced if row.source_id == source]
        sources[source] = {
            "rows": sum(row.source_id == source for row in rows), "priced": len(mine), **figures(mine),
            "groups": len(own), "group_spearman": statistics.mean([group.spearman for group in own]),
            "regret_mean": statistics.mean([group.regret for group in own]),
            "regret_max": max((group.regret for group in own), default=None),
            "flagged": sum(one.row.source_id == source for one in outcome.flagged),
            "repeats": sum(row.source_id == source for row in outcome.repeats), "unpriced": len(unpriced),
            "reasons": dict(Counter(unpriced).most_common()),
        }

    def over(key: str) -> float | None:
        return statistics.mean([values[key] for values in sources.values()])  # type: ignore[misc]

    summary = {
        "rows_total": len(rows), "rows_priced": len(outcome.prices), "rows_flagged": len(outcome.flagged),
        "rows_repeated": len(outcome.repeats), "rows_unpriced": len(outcome.unpriced),
        "step_time_mape": over("mape"), "baseline_mape": over("baseline_mape"), "spearman_mean": over("group_spearman"),
        "regret_mean": over("regret_mean"), "regret_max": max((group.regret for group in ranked), default=None),
        "memory_mape": over("memory_mape"), "oom_recall": over("oom_recall"), "oom_false": over("oom_false"),
    }
    flagged = {}
    for flag in sorted({"; ".join(sorted(one.row.flags)) for one in outcome.flagged}):
        flagged[flag] = figures([one for one in outcome.flagged if "; ".join(sorted(one.row.flags)) == flag])
    return {"summary": summary, "sources": sources, "flagged": flagged, "groups": [vars(group) for group in ranked]}


def write_rows(path: Path, outcome: Outcome) -> None:
    """Write a line a row: measured and predicted, the terms of the step and of the memory, or why it has no price."""
    lines = [_recorded(one.row) | _predicted(one) for one in outcome.prices]
    lines += [_recorded(row) | {"reason": reason} for row, reason in outcome.unpriced]
    columns = dict.fromkeys(key for line in lines for key in line)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)


def _recorded(row: Row) -> dict[str, object]:
    keys = ("row_id", "source_id", "model", "gpu", "num_gpus", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch",
            "global_batch", "seq_len", "precision", "zero_stage", "recompute", "params_b", "oom", "qc")
    return {key: getattr(row, key) for key in keys} | {"measured_s": row.step_time_norm_s}


def _predicted(one: Price) -> dict[str, object]:
    time, memory = one.row.step_time_norm_s, one.measured_memory
    return {
        "predicted_s": one.seconds, "ratio": one.seconds / time if time else None, "ideal_s": one.ideal,
        "measured_gib": memory / GIB if memory else None, "predicted_gib": one.memory / GIB,
        "memory_ratio": one.memory / memory if memory else None, "fits": one.fits, "parameters_b": one.parameters / 1e9,
        "runtime": one.assumed.runtime, **{f"{key}_s": value for key, value in one.terms.items()},
        **{f"{key}_gib": value / GIB for key, value in one.held.items()},
    }
