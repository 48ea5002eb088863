"""Read a cluster file and lay out as many GPUs of it as are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoplan import specs
from autoplan.cluster.types import Cluster, Device
from autoplan.errors import InputError, nearest

if TYPE_CHECKING:
    from autoplan.cluster.spec import ClusterSpec, InlineDeviceSpec


def load(ref: str | Path) -> Cluster:
    """Load a cluster: the name of a shipped spec or a path, each optionally followed by `:GPUS`.

    GPUS below a node's are a part of one node; otherwise they must be whole nodes. Without it the spec's own number
    of nodes is taken. InputError for everything that is wrong with the reference or the file.
    """
    from autoplan.cluster.spec import ClusterSpec

    text = specs.reference(ref, "cluster")
    base, gpus = text, None
    if ":" in text and not specs.is_file(Path(text)):
        base, _, count = text.rpartition(":")
        gpus = _gpus(count, text)
    path = specs.locate("cluster_specs", base, "cluster")
    spec = specs.validated(ClusterSpec, specs.read_yaml(path), str(path))
    device = _device(spec.device, str(path))
    num_nodes, gpus_per_node = _layout(spec, gpus, text)
    return spec.build(path.stem, device, num_nodes, gpus_per_node)


def devices() -> tuple[str, ...]:
    """Names of the shipped devices, as a cluster file may refer to them."""
    return tuple(_shipped_devices()[1])


def device(name: str) -> Device:
    """The shipped device of that name. InputError if there is none."""
    return _device(name, "devices.yaml")


def cluster_schema() -> dict[str, Any]:
    """JSON Schema of a cluster file."""
    from autoplan.cluster.spec import cluster_schema as schema

    return schema()


def _shipped_devices() -> tuple[Path, Mapping[str, object]]:
    path = specs.shipped("cluster_specs") / "devices.yaml"
    data = specs.read_yaml(path)
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping from names to devices", where=str(path))
    return path, data


def _device(ref: str | InlineDeviceSpec, where: str) -> Device:
    from autoplan.cluster.spec import DeviceSpec

    if not isinstance(ref, str):
        return ref.build(ref.name)
    path, known = _shipped_devices()
    if ref not in known:
        hint = nearest(ref, known)
        allowed = f"{', '.join(known)}, or a mapping that defines a device"
        raise InputError("unknown device", where=where, key="device", found=ref,
                         allowed=f"{allowed} – {hint}" if hint else allowed)
    return specs.validated(DeviceSpec, known[ref], str(path), prefix=ref).build(ref)


def _gpus(count: str, ref: str) -> int:
    """The number after the colon."""
    if not (count.isascii() and count.isdecimal()) or len(count) > 9 or int(count) == 0:
        raise InputError("the number of GPUs after the colon can't be used", where=ref, found=count,
                         allowed="a whole number of at least 1, of at most 9 digits")
    return int(count)


def _layout(spec: ClusterSpec, gpus: int | None, ref: str) -> tuple[int, int]:
    """(nodes, GPUs used of each) for `gpus` GPUs."""
    from autoplan.cluster.spec import MAX_NODES

    per_node = spec.gpus_per_node
    if gpus is None:
        return spec.nodes, per_node
    if gpus < per_node:
        return 1, gpus
    nodes, rest = divmod(gpus, per_node)
    if rest:
        raise InputError(f"{gpus} GPUs are not a whole number of {per_node}-GPU nodes", where=ref,
                         allowed=f"{nodes * per_node} or {(nodes + 1) * per_node} GPUs")
    if nodes > MAX_NODES:
        raise InputError("too many nodes", where=ref, found=nodes, allowed=f"at most {MAX_NODES}")
    return nodes, per_node
