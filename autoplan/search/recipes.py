"""Named recipes of a mesh: the role that each axis plays, and the parallel degrees that follow.

An axis is called by what it does for dense layers: "data" and "expert" hold other sequences, "context" other parts of
them, "model" parts of each layer. Experts are spread over the axis "expert", and over "model" too where its role keeps
experts whole; an axis of a chosen sharding may spread them as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from autoplan.cluster import Mesh

REPLICAS = ("data", "expert")  # the axes over which sequences are split
WHOLE_EXPERTS = "_expert"  # ends the roles of the model axis that give its devices whole experts


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees of a stage. etp: devices that share one expert; None for a model without experts. recipe: its
    name, e.g. "dp", "tp+sp"."""

    dp: int
    cp: int
    tp: int
    ep: int
    etp: int | None
    sequence_parallel: bool
    recipe: str


def replicas(mesh: Mesh) -> int:
    """Return the data-parallel replicas: over how many devices sequences are split."""
    return prod(size for size, name in zip(mesh.shape, mesh.names, strict=True) if name in REPLICAS)


def recipes(mesh: Mesh, *, experts: bool) -> Iterator[tuple[str, ...]]:
    """Yield every recipe of a mesh: a role of the runtime for each axis. experts: whether the model has any."""
    before = mesh.names[:-1]
    if mesh.shape[-1] == 1:
        yield (*before, "tensor")
        return
    for role in ("tensor", "tensor_sequence"):
        yield (*before, role)
        if experts:
            yield (*before, role + WHOLE_EXPERTS)


def degrees_of(mesh: Mesh, roles: Sequence[str], *, experts: bool) -> Degrees:
    """Return the degrees that the axes' roles come to."""
    sizes = dict(zip(mesh.names, mesh.shape, strict=True))
    dp, cp, tp = replicas(mesh), sizes.get("context", 1), mesh.shape[-1]
    whole = roles[-1].endswith(WHOLE_EXPERTS)
    ep = prod(size for size, role in zip(mesh.shape, roles, strict=True) if role == "expert") * (tp if whole else 1)
    sequence = tp > 1 and "sequence" in roles[-1]
    named = {"dp": dp > 1, "cp": cp > 1, "tp": tp > 1, "sp": sequence, "ep": experts and ep > 1}
    recipe = "+".join(name for name, present in named.items() if present) or "single"
    etp = (1 if whole else tp) if experts else None
    return Degrees(dp, cp, tp, ep if experts else 1, etp, sequence, recipe)
