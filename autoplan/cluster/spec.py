"""The cluster file: its pydantic models, what it means in SI units, and its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from autoplan.cluster.types import Cluster, Device, Dtype, Link, Node, NodeGroup

GIB = 2**30
MAX_NODES = 1_000_000

Positive = Annotated[float, Field(gt=0, le=1e12)]
Text = Annotated[str, Field(min_length=1)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class DeviceSpec(_Spec):
    """An accelerator."""

    memory_gib: Positive = Field(description="Total memory that the device's runtime reports, GiB (2^30 bytes).")
    hbm_bandwidth_gb_s: Positive = Field(description="Peak memory bandwidth, GB/s.")
    peak_tflops: Annotated[dict[Dtype, Positive], Field(min_length=1)] = Field(
        description="Peak dense TFLOP/s by dtype, without sparsity. An absent dtype is not supported.")
    flash_attention: bool = Field(description="Whether fused attention kernels exist for the device.")
    source: Text = Field(description="Where the figures come from.")
    from_memory: list[Text] = Field(default=[], description="Figures for which no document was opened.")

    def build(self, name: str) -> Device:
        """The device in SI units."""
        return Device(
            name=name, memory_bytes=int(self.memory_gib * GIB), hbm_bandwidth=self.hbm_bandwidth_gb_s * 1e9,
            peak_flops={dtype: tflops * 1e12 for dtype, tflops in self.peak_tflops.items()},
            flash_attention=self.flash_attention, source=_sourced(self.source, self.from_memory))


class InlineDeviceSpec(DeviceSpec):
    """An accelerator defined inside a cluster file."""

    name: Text = Field(description="What the device is called.")


class IntraSpec(_Spec):
    """What connects the GPUs of a node."""

    kind: Literal["nvswitch", "nvlink-mesh", "full-mesh", "nvlink-pairs", "pcie", "pcie-host"] = Field(
        description="How the GPUs of a node are connected; pcie-host: PCIe without peer-to-peer access.")
    bandwidth_gb_s: Positive = Field(description="GB/s per direction of one GPU to all its peers together.")
    latency_us: Positive = Field(description="Latency of one step, µs.")
    peer_bandwidth_gb_s: Positive | None = Field(
        default=None, description="GB/s per direction from one GPU to one peer, where that is less.")


class NetworkSpec(_Spec):
    """What connects nodes."""

    kind: Literal["infiniband", "efa", "ethernet"] = Field(description="What the network is.")
    nics: Annotated[int, Field(gt=0, le=1024)] = Field(description="Network cards of a node.")
    bandwidth_gbit_s: Positive = Field(description="Gb/s per direction of one card.")
    latency_us: Positive = Field(description="Latency of one step, µs.")


def _device_form(value: object) -> str | None:
    if isinstance(value, str):
        return "name"
    return "inline" if isinstance(value, dict | InlineDeviceSpec) else None


class ClusterSpec(_Spec):
    """A cluster of equal nodes."""

    device: Annotated[
        Annotated[Text, Tag("name")] | Annotated[InlineDeviceSpec, Tag("inline")],
        Discriminator(_device_form, custom_error_type="device_form",
                      custom_error_message="must be the name of a device or a mapping that defines one"),
    ] = Field(description="A device of cluster_specs/devices.yaml by name, or a definition.")
    gpus_per_node: Annotated[int, Field(gt=0, le=1024)] = Field(description="GPUs of a node.")
    nodes: Annotated[int, Field(gt=0, le=MAX_NODES)] = Field(
        default=1, description="Nodes of the cluster, when no number of GPUs is asked for.")
    intra: IntraSpec = Field(description="What connects the GPUs of a node.")
    network: NetworkSpec = Field(description="What connects the nodes.")
    oversubscription: Annotated[float, Field(ge=1)] = Field(
        default=1.0, description="Divides the bandwidth between nodes; 1 for a fabric that doesn't block.")
    source: Text = Field(description="Where the figures come from.")
    from_memory: list[Text] = Field(default=[], description="Figures for which no document was opened.")

    def build(self, name: str, device: Device, num_nodes: int, gpus_per_node: int) -> Cluster:
        """The cluster in SI units, with `num_nodes` nodes of which `gpus_per_node` GPUs are used."""
        peer = self.intra.peer_bandwidth_gb_s
        node = Node(
            name=name, device=device, gpus=self.gpus_per_node,
            intra=Link(self.intra.kind, self.intra.bandwidth_gb_s * 1e9, _seconds(self.intra.latency_us),
                       None if peer is None else peer * 1e9),
            nics=self.network.nics,
            network=Link(self.network.kind, self.network.bandwidth_gbit_s * 1e9 / 8, _seconds(self.network.latency_us)),
            source=_sourced(self.source, self.from_memory))
        return Cluster(name=name, groups=(NodeGroup(node, num_nodes),), gpus_per_node=gpus_per_node,
                       oversubscription=float(self.oversubscription))


def cluster_schema() -> dict[str, Any]:
    """JSON Schema of a cluster file."""
    return ClusterSpec.model_json_schema()


def _seconds(microseconds: float) -> float:
    """µs in seconds, to the femtosecond: 1.9 µs is 1.9e-06 s, not 1.8999999999999998e-06."""
    return round(microseconds / 1e6, 15)


def _sourced(source: str, from_memory: list[str]) -> str:
    source = " ".join(source.split())
    return f"{source}; from memory: {', '.join(from_memory)}" if from_memory else source
