"""From a row's GPUs to a cluster."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import autoplan
from autoplan.cluster import Cluster

from .assumptions import Assumed, cluster_of
from .models import Unpriced
from .rows import Row

FOLDER = Path(__file__).parent / "clusters"
RACK = 72  # GPUs of an NVL72 domain; where they aren't whole racks, racks of 64 are used
RACK_USED = 64


def on(row: Row, assumed: Assumed) -> Cluster:
    """Return the cluster that a row ran on. Raises Unpriced where it's unknown, InputError where it's impossible."""
    name = assumed.cluster or cluster_of(row)
    if name is None:
        raise Unpriced(f"device {row.gpu or 'not recorded'}")
    if row.num_gpus is None:
        raise Unpriced("number of GPUs not recorded")
    if name.endswith("nvl72") and row.num_gpus > RACK and row.num_gpus % RACK and row.num_gpus % RACK_USED == 0:
        name += f"-{RACK_USED}"
    return _loaded(name, row.num_gpus)


@cache
def _loaded(name: str, num_gpus: int) -> Cluster:
    own = FOLDER / f"{name}.yaml"
    return autoplan.load_cluster(f"{own if own.exists() else name}:{num_gpus}")
