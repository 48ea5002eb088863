"""Submeshes and logical meshes of a cluster: which links each mesh axis crosses, and who shares them.

Devices are numbered node by node, so device d lies on node d // gpus_per_node. Submeshes are those of Alpa
(Zheng et al., OSDI 2022, §5.2): a part of one node that divides it, or whole nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isqrt, prod

from autoplan.cluster.types import Axis, Cluster, Mesh

DEFAULT_NAMES = {1: ("data",), 2: ("data", "model"), 3: ("data", "context", "model")}
ALONE = Axis(size=1, intra=1, nodes=1, sharing=1)


def mesh(cluster: Cluster, shape: Sequence[int], names: Sequence[str] | None = None) -> Mesh:
    """Lay a logical mesh of `shape` over prod(shape) consecutive devices that start on a node's edge.

    names: one an axis; default ("data",), ("data", "model"), ("data", "context", "model"), else axis0, axis1, ….
    ValueError if a size is below 1, the mesh has more devices than the cluster, it is neither whole nodes nor a
    part that divides a node, or the groups of an axis spread unevenly over nodes (such as 6 neighbouring devices of
    8-GPU nodes).
    """
    shape = tuple(shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"a mesh shape needs sizes ≥ 1, not {shape}")
    names = tuple(names) if names is not None else default_names(len(shape))
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ValueError(f"a mesh of {len(shape)} axes needs as many different names, not {names}")
    total = prod(shape)
    _check_submesh(cluster, total)
    axes = []
    stride = total
    for size in shape:
        stride //= size
        axes.append(_axis(size, stride, total, cluster.gpus_per_node, shape))
    return Mesh(shape=shape, names=names, axes=tuple(axes), num_devices=total)


def default_names(num_axes: int) -> tuple[str, ...]:
    """Names of the axes of a mesh of `num_axes` axes."""
    return DEFAULT_NAMES.get(num_axes) or tuple(f"axis{i}" for i in range(num_axes))


def submesh_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Device counts of the submeshes, ascending: the divisors of a node, then whole nodes (Alpa's (1, m), (n, M))."""
    per_node = cluster.gpus_per_node
    return divisors(per_node) + tuple(n * per_node for n in range(2, cluster.num_nodes + 1))


def meshes(cluster: Cluster, num_devices: int, max_model: int | None = None) -> tuple[Mesh, ...]:
    """All canonical two-axis meshes (a, b) of a submesh, a · b == num_devices, by ascending b.

    b is a divisor of a node, or whole nodes; at most `max_model` (default: two nodes). Two meshes are canonical and
    different only if an axis crosses other links, so their number doesn't grow with the cluster.
    ValueError if no submesh has `num_devices` devices.
    """
    _check_submesh(cluster, num_devices)
    per_node = cluster.gpus_per_node
    limit = min(num_devices, 2 * per_node if max_model is None else max_model)
    sizes = divisors(per_node) + tuple(range(2 * per_node, limit + 1, per_node))
    return tuple(mesh(cluster, (num_devices // b, b)) for b in sizes if b <= limit and num_devices % b == 0)


def group(cluster: Cluster, devices: int | Sequence[int]) -> Axis:
    """Describe a group of devices that communicates alone (sharing == 1).

    devices: their number (consecutive, from device 0), or their ids.
    ValueError if the group is empty, an id is repeated or not in the cluster, or nodes hold unequal parts of it.
    """
    ids = range(devices) if isinstance(devices, int) else tuple(devices)
    if not ids or len(set(ids)) != len(ids):
        raise ValueError(f"a group needs at least one device, each once, not {devices!r}")
    if min(ids) < 0 or max(ids) >= cluster.num_devices:
        raise ValueError(f"{cluster.name} has devices 0 to {cluster.num_devices - 1}, not all of {devices!r}")
    ranks = Counter(device // cluster.gpus_per_node for device in ids)
    intra = min(ranks.values())
    if intra != max(ranks.values()):
        raise ValueError(f"the group {devices!r} is spread unevenly over nodes: {sorted(ranks.values())} devices")
    return Axis(size=len(ids), intra=intra, nodes=len(ranks), sharing=1)


def boundary(cluster: Cluster, num_devices: int, index: int | None = None) -> Axis:
    """The pair of devices (size 2) over which a stage of `num_devices` devices sends to the next stage.

    Every device of the stage sends at once; `sharing` is how many of them share a node's NICs.
    index: which of the row of equal stages that fills the cluster sends; the boundary crosses nodes when that stage
    ends its node. Without it the stage is taken to lie inside a node if it is smaller than one, and to end it
    otherwise. A stage with no successor gets an axis of size 1, over which nothing is sent.
    ValueError if no submesh has `num_devices` devices or the cluster hasn't that many stages.
    """
    _check_submesh(cluster, num_devices)
    per_node = cluster.gpus_per_node
    stages = cluster.num_devices // num_devices
    if index is not None and not 0 <= index < stages:
        raise ValueError(f"{cluster.name} has stages 0 to {stages - 1} of {num_devices} devices, not {index}")
    if stages == 1 or index == stages - 1:
        return ALONE
    end = num_devices if index is None else (index + 1) * num_devices
    if end % per_node == 0:
        return Axis(size=2, intra=1, nodes=2, sharing=min(num_devices, per_node))
    return Axis(size=2, intra=2, nodes=1, sharing=num_devices)


def divisors(n: int) -> tuple[int, ...]:
    """The divisors of n ≥ 1, ascending."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


def _check_submesh(cluster: Cluster, num_devices: int) -> None:
    per_node = cluster.gpus_per_node
    if not 1 <= num_devices <= cluster.num_devices:
        raise ValueError(f"{cluster.name} has {cluster.num_devices} devices, not {num_devices}")
    if num_devices % per_node and per_node % num_devices:
        raise ValueError(f"{num_devices} devices are neither whole {per_node}-GPU nodes nor a part that divides one")


def _axis(size: int, stride: int, total: int, per_node: int, shape: tuple[int, ...]) -> Axis:
    """The axis whose groups are {base + j · stride : j < size} in a mesh of `total` devices."""
    if size == 1 or per_node % (size * stride) == 0:
        intra = size
    elif stride % per_node == 0:
        intra = 1
    elif per_node % stride == 0 and (size * stride) % per_node == 0:
        intra = per_node // stride
    else:
        raise ValueError(f"in the mesh {shape} an axis of {size} devices spreads unevenly over {per_node}-GPU nodes")
    return Axis(size=size, intra=intra, nodes=size // intra, sharing=min(total, per_node) // intra)
