"""Runtimes: what a training framework overlaps, allows and reserves. Data, a file each; no code a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autoplan.errors import InputError, nearest
from autoplan.specs import read_yaml
from autoplan.workload import Schedule

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Runtime:
    """A runtime's rules.

    bucket_bytes: gradients and parameters travel in buckets of this size. context_bytes, allocator_slack: memory a
    device loses to the framework: a constant, and a fraction of all that is allocated. roles: what a mesh axis may do,
    role → loop dims in order of preference. free_splits: operator kind → loop dims that may be
    split where no role is fixed (all legal ones for a kind that isn't named).
    """

    name: str
    version: str
    source: str
    schedules: tuple[Schedule, ...]
    bucket_bytes: int
    context_bytes: int
    allocator_slack: float
    roles: Mapping[str, tuple[str, ...]]
    free_splits: Mapping[str, tuple[str, ...]]

    def __hash__(self) -> int:
        return hash((self.name, self.version))


def names() -> tuple[str, ...]:
    """Return the names of the known runtimes."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load(name: str) -> Runtime:
    """Return the runtime `name`. Raises InputError when there is none."""
    if name not in names():
        hint = nearest(str(name), names())
        allowed = ", ".join(names()) + (f"; {hint}" if hint else "")
        raise InputError(f"unknown runtime {name!r}", key="runtime", allowed=allowed)
    data = read_yaml(FOLDER / f"{name}.yaml")
    assert isinstance(data, dict)
    return Runtime(
        name=data["name"],
        version=data["version"],
        source=data["source"],
        schedules=tuple(Schedule(value) for value in data["schedules"]),
        bucket_bytes=int(data["bucket_bytes"]),
        context_bytes=int(data["memory"]["context_gib"] * 2**30),
        allocator_slack=float(data["memory"]["allocator_slack"]),
        roles={role: tuple(dims) for role, dims in data["roles"].items()},
        free_splits={kind: tuple(dims) for kind, dims in data["free_splits"].items()},
    )
