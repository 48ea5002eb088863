"""Clusters: devices, links, nodes; the submeshes and logical meshes laid over them."""

from autoplan.cluster.mesh import boundary, group, mesh, meshes, submesh_sizes
from autoplan.cluster.types import Axis, Cluster, Device, Link, Mesh, Node, NodeGroup

__all__ = [
    "Axis", "Cluster", "Device", "Link", "Mesh", "Node", "NodeGroup",
    "boundary", "group", "mesh", "meshes", "submesh_sizes",
]
