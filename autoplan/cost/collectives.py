"""Seconds of a collective over a group of devices, inside a node and across nodes.

Bytes are those of the full tensor: all-reduce: what each rank holds; all-gather: the gathered result; reduce-scatter:
the input each rank holds; all-to-all: what one rank holds before; p2p: the message. A `Curve` is all that is needed to
price one operation over one group at any size; `curve` builds it, `CostModel` keeps it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
class Faster:
    """The faster of two tables at each size."""

    one: Table
    other: Table

    def __call__(self, nbytes: Array) -> Array:
        """Seconds of `nbytes`."""
        return np.minimum(self.one(nbytes), self.other(nbytes))


@dataclass(frozen=True)
class Curve:
    """One operation over one group: local part, network part, and how they add up.

    time = latency + max(local(bytes·local_scale), min of network(bytes)); either may be absent. The two parts overlap:
    NCCL sends chunks on while it reduces others. `network` has one entry an algorithm, of which the fastest is taken.
    """

    latency: float = 0.0
    local: Table | Faster | Ramp | None = None
    local_scale: float = 1.0
    network: tuple[Ramp, ...] = ()

    def __call__(self, nbytes: ArrayLike) -> Array:
        """Seconds of `nbytes`; zero bytes take no time."""
        size = np.asarray(nbytes, dtype=np.float64)
        if self.local is None and not self.network:
            return np.zeros_like(size)
        time = np.zeros_like(size)
        if self.local is not None:
            time = self.local(size * self.local_scale)
        if self.network:
            time = np.maximum(time, functools.reduce(np.minimum, [ramp(size) for ramp in self.network]))
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


def curve(cluster: Cluster, op: Operation, group: Axis, custom: bool = False) -> Curve:
    """Return the curve of `op` over `group`, a named axis or any group of devices of `cluster`.

    custom: inside a node an inference engine's own all-reduce kernel may be used where it was measured and is faster.
    """
    if group.size == 1:
        return FREE
    node = cluster.node
    if group.is_local:
        return _local(node, op, group.size, custom)
    if op == "p2p":
        return _network_p2p(cluster, group)
    if op == "all_to_all":
        return _network_all_to_all(cluster, group)
    return _network_ring(cluster, op, group)


# ---------------------------------------------------------------- inside a node


def _local(node: Node, op: Operation, n: int, custom: bool = False) -> Curve:
    measured = _tables(node, op)
    if not measured:
        return Curve(local=_ring(node, op, n))
    data, reference = measured
    at = min((k for k in data if k >= n), default=max(data))
    local: Table | Faster = data[at]
    engines = _tables(node, "custom_all_reduce") if custom and op == "all_reduce" else None
    if engines and at in engines[0]:
        local = Faster(data[at], engines[0][at])
    gain = nvls_gain(node, op, n) / nvls_gain(node, op, at)
    scale = traffic(op, n) / traffic(op, at) * reference / node.intra.bandwidth / gain
    hop = _fit(node.intra.kind, op)["hop"] * node.intra.latency
    return Curve(local=local, local_scale=scale, latency=max(0, steps(op, n) - steps(op, at)) * hop)


# Without peer-to-peer access GPUs copy through host memory, at 4 to 6 GB/s on PCIe 3 (V100) as on PCIe 4 (L40S, A40):
# a faster slot than PCIe 3 x16 doesn't help.
_HOST_COPY = 16e9


def _ring(node: Node, op: Operation, n: int) -> Ramp:
    """Ring inside a node of which no table exists, at the fitted fraction of the links' bandwidth.

    Where one peer is reached over `peer_bandwidth` only, n ranks use n−1 such links; in an NVLink mesh (DGX-1V) n,
    since half of the linked pairs have two.
    """
    fit, link = _fit(node.intra.kind, op), node.intra
    bandwidth, efficiency = link.bandwidth, fit["efficiency"]
    if link.kind == "pcie-host":
        bandwidth = min(bandwidth, _HOST_COPY)
    if link.peer_bandwidth is not None:
        links = 1 if op == "p2p" else n if link.kind == "nvlink-mesh" else n - 1
        bandwidth = min(bandwidth, links * link.peer_bandwidth)
    if link.kind == "nvlink-pairs" and n > 2:
        efficiency = fit["beyond_pair"]
    return Ramp(latency=fit["latency"] + steps(op, n) * fit["hop"] * link.latency,
                bandwidth=efficiency * nvls_gain(node, op, n) * bandwidth / traffic(op, n), ramp=fit["ramp"])


def _fit(kind: str, op: Operation) -> dict[str, float]:
    """Fitted constants of a kind of link: latency (s), hop (link latencies a step costs), efficiency, ramp (s)."""
    values: dict[str, float] = load("collectives")["generic"][kind]["p2p" if op == "p2p" else "ring"]
    return values


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


def _tables(node: Node, op: str) -> tuple[dict[int, Table], float] | None:
    """Return the measured tables of `op` by group size and the bandwidth of the links they were measured on."""
    systems = load("collectives")["systems"]
    patterns = {key: s["names"] for key, s in systems.items() if node.intra.kind in s["links"]}
    key = find(node.device.name, patterns)
    if key is None:
        return None
    tables = parsed_tables(key).get(op)
    return (tables, float(systems[key]["bandwidth"])) if tables else None


@functools.cache
def parsed_tables(system: str) -> dict[str, dict[int, Table]]:
    raw: dict[str, dict[str, list[list[float]]]] = load("collectives")["systems"][system]["tables"]
    return {op: {int(n): table(rows[0], np.array(rows[1]) * 1e-6) for n, rows in sizes.items()}
            for op, sizes in raw.items()}


# ---------------------------------------------------------------- across nodes

# The Ethernet fit is of TCP at 10 Gb/s. NICs from 100 Gb/s on bypass the kernel (RoCE, GPUDirect-TCPX): collectives
# over them take the constants of EFA, the nearest network of that kind that was measured.
_KERNEL_BYPASS = 100e9 / 8


def _network_fit(node: Node, op: Operation) -> dict[str, float]:
    bypass = node.network.kind == "ethernet" and node.network.bandwidth >= _KERNEL_BYPASS and op != "p2p"
    return _fit("efa" if bypass else node.network.kind, op)


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
    node = cluster.node
    fit = _network_fit(node, "p2p")
    bandwidth = min(_own_nics(cluster), cluster.node_bandwidth / group.sharing)
    return Curve(network=(Ramp(fit["latency"] + fit["hop"] * node.network.latency, fit["efficiency"] * bandwidth,
                               fit["ramp"]),))


def _network_ring(cluster: Cluster, op: Operation, group: Axis) -> Curve:
    """All-reduce, all-gather and reduce-scatter: NCCL's ring through all nodes, or its double binary tree (all-reduce).

    A ring leaves each node once for every NIC it uses, so a node sends (n−1)/n·S (all-reduce: twice that). The links
    inside the node carry the same traffic at the speed of the node's own collective, at the same time; but the
    latencies of the two add up.
    """
    node, n, k = cluster.node, group.size, group.nodes
    inside = _local(node, op, group.intra) if group.intra > 1 else FREE
    fit = _network_fit(node, op)
    hop, lanes = fit["hop"] * node.network.latency, _lanes(cluster, group)
    inner = steps(op, n) - steps(op, k) - steps(op, group.intra)
    start = fit["latency"] + float(inside(1.0))
    latency = start + steps(op, k) * hop + inner * _fit(node.intra.kind, op)["hop"] * node.intra.latency
    network = [Ramp(latency, fit["efficiency"] * lanes / traffic(op, n), fit["ramp"])]
    if op == "all_reduce":
        latency = start + 2 * math.ceil(math.log2(k)) * hop
        network.append(Ramp(latency, fit["tree"] * lanes / _tree_traffic(node, group), fit["ramp"]))
    if group.intra == 1:
        return Curve(network=tuple(network))
    scale = inside.local_scale * traffic(op, n) / traffic(op, group.intra)
    return Curve(local=inside.local, local_scale=scale, network=tuple(network))


def _tree_traffic(node: Node, group: Axis) -> float:
    """Bytes that a node sends per byte of an all-reduce along a double binary tree.

    Each node is a leaf of one tree of half the data and inside the other, so it sends 2·S; beyond two nodes at half of
    the bandwidth: more would make 20 racks of GB200 too fast at 0.5 to 2 GiB. Two nodes send S, if the node itself
    reduces fast enough to keep up (NVLS) or on EFA, where a two-node sweep shows it.
    """
    if group.nodes > 2:
        return 4.0
    fast = nvls_gain(node, "all_reduce", group.intra) > 1 or (node.network.kind == "efa" and group.intra > 1)
    return 1.0 if fast else 2.0


def _network_all_to_all(cluster: Cluster, group: Axis) -> Curve:
    """Pairwise exchange: of a rank's bytes (n−g)/n leave the node, over the NICs that the group's g ranks share."""
    node, n, g = cluster.node, group.size, group.intra
    fit = _network_fit(node, "all_to_all")
    lanes = min(cluster.node_bandwidth / group.sharing, g * _own_nics(cluster))
    network = (Ramp(fit["latency"] + (group.nodes - 1) * fit["hop"] * node.network.latency,
                    fit["efficiency"] * lanes / (g * (n - g) / n), fit["ramp"]),)
    if g == 1:
        return Curve(network=network)
    inside = _local(node, "all_to_all", g)
    return Curve(local=inside.local, local_scale=inside.local_scale * g / n, network=network, latency=inside.latency)
