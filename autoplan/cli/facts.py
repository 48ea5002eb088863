"""Facts of a model or a cluster, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from autoplan.cli.units import fact


def show_names(names: Iterable[str], as_json: bool) -> None:
    """Print names, one a line or as a JSON list."""
    listed = sorted(names)
    click.echo(json.dumps(listed, indent=2) if as_json else "\n".join(listed))


def show_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print nested facts, indented with their units, or as JSON."""
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    rows = list(_rows(facts, 0, ()))
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        click.echo(f"{name:<{width}}  {text}".rstrip())


def _rows(facts: Mapping[str, Any], depth: int, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        name = "  " * depth + key.replace("_", " ")
        if isinstance(value, Mapping):
            yield name, ""
            yield from _rows(value, depth + 1, (*path, key))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            yield name, ""
            for number, item in enumerate(value):
                yield from _rows({str(number): item}, depth + 1, (*path, key))
        else:
            yield name, fact(" ".join((*path, key)), value)
