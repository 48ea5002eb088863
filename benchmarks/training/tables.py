"""What `training_accuracy.py` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_COLUMNS = (("source", 24), ("rows", 5), ("n", 5), ("MAPE", 7), ("signed", 7), ("rank", 6), ("const", 7), ("mem n", 6),
            ("MAPE", 7), ("signed", 7), ("OOM", 5), ("recall", 7), ("prec", 7), ("ran", 5), ("false", 7), ("groups", 7),
            ("rank", 6), ("regret", 7), ("max", 7))


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a report: sources, groups, flagged rows, rows without a price and why, the summary."""
    yield "".join(f"{name:<{width}}" if not index else f"{name:>{width}}" for index, (name, width) in
                  enumerate(_COLUMNS))
    for source, values in found["sources"].items():
        if values["priced"]:
            yield _line(source, values)
    if found["groups"]:
        yield ""
        yield f"{'ranking group':<24}{'plans':>6}{'rank':>6}{'regret':>8}"
        for group in found["groups"]:
            yield (f"{group['name'] + ' ' + group['source_id']:<24}{group['plans']:>6}{ratio(group['spearman']):>6}"
                   f"{percent(group['regret']):>8}")
    if found["flagged"]:
        yield ""
        yield "rows that the data set's checks flag, apart:"
        for flag, values in found["flagged"].items():
            yield _line(flag, {"rows": "", "groups": 0} | dict(values))
    yield ""
    yield "rows without a price:"
    for source, values in found["sources"].items():
        for reason, count in values["reasons"].items():
            yield f"  {source:24}{count:>5}  {reason[:150]}"
    yield ""
    yield " ".join(f"{key}={_plain(value)}" for key, value in found["summary"].items())


def markdown(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of sources in Markdown, as `docs/accuracy.md` has it."""
    yield ("| source | n | MAPE | signed | rank | one utilisation | memory (n) | OOM called (n) | ran, called OOM | "
           "groups: rank, regret (groups) |")
    yield "| --- " * 10 + "|"
    for source, values in found["sources"].items():
        if not values["priced"]:
            continue
        memory = f"{percent(values['memory_mape'])} ({values['memory_n']})" if values["memory_n"] else ""
        called = f"{percent(values['oom_recall'])} ({values['oom_n']})" if values["oom_n"] else ""
        groups = (f"{ratio(values['group_spearman'])}, {percent(values['regret_mean'])} ({values['groups']})"
                  if values["groups"] else "")
        cells = [source, values["n"], percent(values["mape"]), percent(values["signed"], sign=True),
                 ratio(values["spearman"]), percent(values["baseline_mape"]), memory, called,
                 percent(values["oom_false"]), groups]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _line(name: str, values: Mapping[str, Any]) -> str:
    cells = [values["rows"], values["n"], percent(values["mape"]), percent(values["signed"], sign=True),
             ratio(values["spearman"]), percent(values["baseline_mape"]), values["memory_n"] or "",
             percent(values["memory_mape"]), percent(values["memory_signed"], sign=True), values["oom_n"] or "",
             percent(values["oom_recall"]), percent(values["oom_precision"]), values["ran_n"] or "",
             percent(values["oom_false"]), values["groups"] or "", ratio(values.get("group_spearman")),
             percent(values.get("regret_mean")), percent(values.get("regret_max"))]
    widths = [width for _, width in _COLUMNS[1:]]
    return f"{name[:23]:<24}" + "".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True))


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a fraction as per cent; nothing for None."""
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f}%"


def ratio(value: float | None) -> str:
    """Return a correlation; nothing for None."""
    return "" if value is None else f"{value:.2f}"


def _plain(value: float | int | None) -> str:
    return "none" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
