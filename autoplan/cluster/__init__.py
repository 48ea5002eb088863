"""Clusters: devices, links, nodes; the submeshes and logical meshes laid over them."""

from autoplan.cluster.facts import describe
from autoplan.cluster.load import cluster_schema, device, devices, load
from autoplan.cluster.mesh import boundary, group, mesh, meshes, submesh_sizes
from autoplan.cluster.types import Axis, Cluster, Device, Link, Mesh, Node, NodeGroup

__all__ = [
    "Axis", "Cluster", "Device", "Link", "Mesh", "Node", "NodeGroup",
    "boundary", "cluster_schema", "describe", "device", "devices", "group", "load", "mesh", "meshes", "submesh_sizes",
]
