"""What is known of a cluster, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoplan.cluster.mesh import submesh_sizes
from autoplan.cluster.types import Cluster


def describe(cluster: Cluster) -> dict[str, Any]:
    """Facts of a cluster for JSON: SI units, bandwidths per direction, each figure's source."""
    node = cluster.node
    return {
        "name": cluster.name,
        "num_devices": cluster.num_devices,
        "num_nodes": cluster.num_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "oversubscription": cluster.oversubscription,
        "memory_bytes": cluster.num_devices * cluster.device.memory_bytes,
        "node_bandwidth": cluster.node_bandwidth,
        "submesh_sizes_in_node": [size for size in submesh_sizes(cluster) if size <= cluster.gpus_per_node],
        "device": asdict(cluster.device),
        "node": {"name": node.name, "gpus": node.gpus, "intra": asdict(node.intra), "nics": node.nics,
                 "network": asdict(node.network), "source": node.source},
    }
