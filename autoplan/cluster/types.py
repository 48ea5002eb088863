"""What a cluster is made of: devices, links, nodes and groups of nodes; and the logical meshes laid over it.

SI units: bytes, bytes/s, seconds, FLOP/s. Every bandwidth is per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from autoplan.errors import InputError

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
LinkKind = Literal[
    "nvswitch", "nvlink-mesh", "full-mesh", "nvlink-pairs", "pcie", "pcie-host",  # between the GPUs of a node
    "infiniband", "efa", "ethernet",  # between nodes
]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True)
class Device:
    """One accelerator.

    memory_bytes: what the runtime (CUDA, ROCm) reports as the device's total memory.
    hbm_bandwidth: peak bytes/s of its memory. peak_flops: dense FLOP/s by dtype; an absent key is unsupported.
    flash_attention: whether fused attention kernels (FlashAttention 2) exist for it.
    source: where the figures come from.
    """

    name: str
    memory_bytes: int
    hbm_bandwidth: float
    peak_flops: Mapping[str, float] = field(hash=False)
    flash_attention: bool
    source: str


@dataclass(frozen=True)
class Link:
    """A kind of link and its peak figures.

    bandwidth: bytes/s per direction; inside a node of one GPU to all its peers together, for a network of one NIC.
    latency: seconds of one step (one send from a device to the next).
    peer_bandwidth: bytes/s per direction from one GPU to *one* peer where that is less than `bandwidth`, else None.
    """

    kind: LinkKind
    bandwidth: float
    latency: float
    peer_bandwidth: float | None = None


@dataclass(frozen=True)
class Node:
    """A machine, or any domain of `gpus` devices on one scale-up fabric, with `nics` network cards."""

    name: str
    device: Device
    gpus: int
    intra: Link
    nics: int
    network: Link
    source: str


@dataclass(frozen=True)
class NodeGroup:
    """`count` equal nodes."""

    node: Node
    count: int


@dataclass(frozen=True)
class Cluster:
    """Nodes on one network.

    gpus_per_node: how many GPUs of each node are used.
    oversubscription: ≥ 1; divides the bandwidth between nodes.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    gpus_per_node: int
    oversubscription: float = 1.0

    @property
    def node(self) -> Node:
        """The node that every node of the cluster is like. InputError if there is more than one kind."""
        return self._group.node

    @property
    def device(self) -> Device:
        """The device that every device of the cluster is like."""
        return self._group.node.device

    @property
    def num_nodes(self) -> int:
        """Nodes used."""
        return self._group.count

    @property
    def num_devices(self) -> int:
        """Devices used."""
        return self._group.count * self.gpus_per_node

    @property
    def node_bandwidth(self) -> float:
        """Bytes/s per direction that one node can send to other nodes, all its NICs together."""
        node = self.node
        return node.nics * node.network.bandwidth / self.oversubscription

    @property
    def _group(self) -> NodeGroup:
        if len(self.groups) != 1:
            raise InputError("clusters of more than one kind of node are not supported yet", where=self.name,
                             key="groups", found=len(self.groups), allowed="one group of equal nodes")
        return self.groups[0]


@dataclass(frozen=True)
class Axis:
    """One axis of a logical mesh, or any group of devices: all that is needed to price a collective over it.

    size: ranks of one group. intra: its ranks inside one node. nodes: nodes it spans; size == intra · nodes.
    sharing: groups of this axis on one node that are active at once and share the node's NICs.
    ValueError if a count is below 1 or the sizes disagree.
    """

    size: int
    intra: int
    nodes: int
    sharing: int

    def __post_init__(self) -> None:
        if min(self.size, self.intra, self.nodes, self.sharing) < 1 or self.size != self.intra * self.nodes:
            raise ValueError(f"an axis needs counts ≥ 1 and size == intra · nodes, not {self}")

    @property
    def is_local(self) -> bool:
        """Whether a group stays inside one node."""
        return self.nodes == 1


@dataclass(frozen=True)
class Mesh:
    """A logical mesh over consecutive devices, row-major: the last axis runs over neighbouring devices."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    num_devices: int
