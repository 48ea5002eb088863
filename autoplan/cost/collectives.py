"""Seconds of a collective over a group of devices, inside a node and across nodes.

Bytes are those of the full tensor: all-reduce: what each rank holds; all-gather: the gathered result; reduce-scatter:
the input each rank holds; all-to-all: what one rank holds before; p2p: the message. A `Curve` is all that is needed to
price one operation over one group at any size; `curve` builds it, `CostModel` keeps it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan.cost.kernels import find, load

if TYPE_CHECKING:
    from autoplan.cluster.types import Axis, Cluster, Node

Array = NDArray[np.float64]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


@dataclass(frozen=True, eq=False)
class Table:
    """Measured (bytes, seconds) of one operation over one group size, as logarithms; both ascend."""

    log_bytes: Array
    log_seconds: Array
    last: float  # the largest size, bytes
    slope: float  # seconds per byte beyond it

    def __call__(self, nbytes: Array) -> Array:
        """Log-log interpolation; below the table its first time, above it the bandwidth between its last two sizes."""
        inside: Array = np.exp(np.interp(np.log(np.maximum(nbytes, 1.0)), self.log_bytes, self.log_seconds))
        return inside + np.maximum(nbytes - self.last, 0.0) * self.slope


def table(nbytes: ArrayLike, seconds: ArrayLike) -> Table:
    """Make a table of measured sizes (ascending) and times; a time below an earlier one is raised to it.

    The bandwidth beyond the last size is that of the last step, at most 10 % above that of the last size.
    """
    sizes = np.asarray(nbytes, dtype=np.float64)
    times = np.maximum.accumulate(np.asarray(seconds, dtype=np.float64))
    mean = times[-1] / sizes[-1]
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return Table(np.log(sizes), np.log(times), float(sizes[-1]), float(min(max(slope, mean / 1.1), mean)))


@dataclass(frozen=True)
class Ramp:
    """latency + x + √(ramp·x), x = bytes/bandwidth: the three-parameter form α + cS/B + k√S with k = √(ramp·c/B)."""

    latency: float  # seconds
    bandwidth: float  # bytes/s of `nbytes`, so already divided by the operation's traffic factor
    ramp: float  # seconds

    def __call__(self, nbytes: Array) -> Array:
        """Seconds of `nbytes`."""
        x = nbytes / self.bandwidth
        return self.latency + x + np.sqrt(self.ramp * x)


@dataclass(frozen=True)
class Curve:
    """One operation over one group: local part, network part, and how they add up.

    time = latency + max(local(bytes·local_scale), network(bytes)); either may be absent. The two parts overlap: NCCL
    sends chunks on while it reduces others.
    """

    latency: float = 0.0
    local: Table | Ramp | None = None
    local_scale: float = 1.0
    network: Ramp | None = None

    def __call__(self, nbytes: ArrayLike) -> Array:
        """Seconds of `nbytes`; zero bytes take no time."""
        size = np.asarray(nbytes, dtype=np.float64)
        if self.local is None and self.network is None:
            return np.zeros_like(size)
        time = np.zeros_like(size)
        if self.local is not None:
            time = self.local(size * self.local_scale)
        if self.network is not None:
            time = np.maximum(time, self.network(size))
        return np.where(size > 0, time + self.latency, 0.0)


FREE = Curve()


def traffic(op: Operation, n: int) -> float:
    """Bytes a rank sends per byte of `op`, by the ring or pairwise algorithm (nccl-tests' bus bandwidth factors)."""
    if op == "p2p":
        return 1.0
    return (n - 1) / n * (2 if op == "all_reduce" else 1)


def steps(op: Operation, n: int) -> int:
    """Sends, one after the other, of the ring or pairwise algorithm."""
    if op == "p2p":
        return 1
    return (n - 1) * (2 if op == "all_reduce" else 1)


def curve(cluster: Cluster, op: Operation, group: Axis) -> Curve:
    """Return the curve of `op` over `group`, a named axis or any group of devices of `cluster`."""
    if group.size == 1:
        return FREE
    node = cluster.node
    if group.is_local:
        return _local(node, op, group.size)
    if op == "p2p":
        return _network_p2p(cluster, group)
    if op == "all_to_all":
        return _network_all_to_all(cluster, group)
    return _network_ring(cluster, op, group)


# ---------------------------------------------------------------- inside a node


def _local(node: Node, op: Operation, n: int) -> Curve:
    measured = _tables(node, op)
    if not measured:
        return Curve(local=_ring(node, op, n))
    data, reference = measured
    at = min((k for k in data if k >= n), default=max(data))
    gain = nvls_gain(node, op, n) / nvls_gain(node, op, at)
    scale = traffic(op, n) / traffic(op, at) * reference / node.intra.bandwidth / gain
    hops = max(0, steps(op, n) - steps(op, at))
    return Curve(local=data[at], local_scale=scale, latency=hops * _hop(node))


def _ring(node: Node, op: Operation, n: int) -> Ramp:
    """Ring inside a node of which no table exists, at the fitted fraction of the links' bandwidth."""
    fit = load("collectives")["generic"][node.intra.kind]
    bandwidth = node.intra.bandwidth
    if node.intra.peer_bandwidth is not None:
        bandwidth = min(bandwidth, (1 if op == "p2p" else n - 1) * node.intra.peer_bandwidth)
    efficiency = fit["p2p_efficiency"] if op == "p2p" else fit["efficiency"]
    if node.intra.kind == "nvlink-pairs" and n > 2:
        efficiency = fit["beyond_pair"]
    return Ramp(latency=fit["latency"] + steps(op, n) * _hop(node),
                bandwidth=efficiency * nvls_gain(node, op, n) * bandwidth / traffic(op, n), ramp=fit["ramp"])


def _hop(node: Node) -> float:
    """Seconds that one more rank adds to a ring's latency: the fitted part of the link's latency."""
    return float(load("collectives")["generic"][node.intra.kind]["hop"]) * node.intra.latency


def nvls_gain(node: Node, op: Operation, n: int) -> float:
    """How much faster than a ring NVLink SHARP reduces: all-reduce only, Hopper and later, from 5 GPUs on.

    1.29 on 8 Hopper, 1.23 on 8 Blackwell GPUs and 1.0 up to 4 (NVLS and ring ramps measured on H200 and B200,
    stas00/ml-engineering, network/README.md).
    """
    if op != "all_reduce" or n < 5 or node.intra.kind != "nvswitch":
        return 1.0
    return float(load("collectives")["nvls_gain"].get(_family(node.device.name), 1.0))


def _family(device_name: str) -> str:
    return find(device_name, load("collectives")["families"]) or ""


def _tables(node: Node, op: Operation) -> tuple[dict[int, Table], float] | None:
    """Return the measured tables of `op` by group size and the bandwidth of the links they were measured on."""
    systems = load("collectives")["systems"]
    patterns = {key: s["names"] for key, s in systems.items() if node.intra.kind in s["links"]}
    key = find(node.device.name, patterns)
    if key is None:
        return None
    tables = parsed_tables(key).get(op)
    return (tables, float(systems[key]["bandwidth"])) if tables else None


@cache
def parsed_tables(system: str) -> dict[str, dict[int, Table]]:
    raw: dict[str, dict[str, list[list[float]]]] = load("collectives")["systems"][system]["tables"]
    return {op: {int(n): table(rows[0], np.array(rows[1]) * 1e-6) for n, rows in sizes.items()}
            for op, sizes in raw.items()}


# ---------------------------------------------------------------- across nodes


def _fit(node: Node) -> dict[str, Any]:
    values: dict[str, Any] = load("collectives")["generic"][node.network.kind]
    return values


def _lanes(cluster: Cluster, group: Axis) -> float:
    """Bytes/s that one group may send from one of its nodes: its share of the NICs, and no more than its own ranks'.

    A GPU uses the NICs next to it, node_bandwidth/gpus or at least one NIC; NCCL drives at most `max_lanes` of these at
    once for one group.
    """
    ranks = min(group.intra, int(load("collectives")["max_lanes"]))
    return min(cluster.node_bandwidth / group.sharing, ranks * _own_nics(cluster))


def _own_nics(cluster: Cluster) -> float:
    node = cluster.node
    return max(node.network.bandwidth / cluster.oversubscription, cluster.node_bandwidth / node.gpus)


def _network_p2p(cluster: Cluster, group: Axis) -> Curve:
    node, fit = cluster.node, _fit(cluster.node)
    bandwidth = min(_own_nics(cluster), cluster.node_bandwidth / group.sharing)
    return Curve(network=Ramp(fit["latency"] + node.network.latency, fit["p2p_efficiency"] * bandwidth, fit["ramp"]))


def _network_ring(cluster: Cluster, op: Operation, group: Axis) -> Curve:
    """All-reduce, all-gather and reduce-scatter: NCCL's ring through all nodes, or a tree for an all-reduce.

    A ring leaves each node once for every NIC it uses, so a node sends (n−1)/n·S (all-reduce: twice that). The double
    binary tree of two nodes sends only S instead of 2(n−1)/n·S; NCCL uses it where NVLS reduces inside the node and on
    EFA. The links inside the node carry the same traffic at the speed of the node's own collective.
    """
    node, fit = cluster.node, _fit(cluster.node)
    lanes, n, k = _lanes(cluster, group), group.size, group.nodes
    volume, efficiency = traffic(op, n), fit["efficiency"]
    inside = _local(node, op, group.intra) if group.intra > 1 else FREE
    hops = steps(op, n) - steps(op, k) - steps(op, group.intra)
    latency = fit["latency"] + steps(op, k) * node.network.latency + hops * _hop(node)
    if op == "all_reduce":
        latency = min(latency, fit["latency"] + 2 * math.ceil(math.log2(k)) * node.network.latency)
        if k == 2 and (nvls_gain(node, op, group.intra) > 1 or (node.network.kind == "efa" and group.intra > 1)):
            volume, efficiency = 1.0, fit["tree_efficiency"]
    network = Ramp(latency, efficiency * lanes / volume, fit["ramp"])
    if group.intra == 1:
        return Curve(network=network)
    scale = inside.local_scale * traffic(op, n) / traffic(op, group.intra)
    return Curve(local=inside.local, local_scale=scale, network=network, latency=inside.latency)


def _network_all_to_all(cluster: Cluster, group: Axis) -> Curve:
    """Pairwise exchange: of a rank's bytes (n−g)/n leave the node, over the NICs that the group's g ranks share."""
    node, fit = cluster.node, _fit(cluster.node)
    n, g = group.size, group.intra
    lanes = min(cluster.node_bandwidth / group.sharing, g * _own_nics(cluster))
    network = Ramp(fit["latency"] + (group.nodes - 1) * node.network.latency,
                   fit["efficiency"] * lanes / (g * (n - g) / n), fit["ramp"])
    if g == 1:
        return Curve(network=network)
    inside = _local(node, "all_to_all", g)
    return Curve(local=inside.local, local_scale=inside.local_scale * g / n, network=network, latency=inside.latency)
