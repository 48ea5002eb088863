"""Meshes, submeshes, groups and boundaries, checked against the sets of devices that they stand for."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import Axis, Cluster, Device, Link, Node, NodeGroup, boundary, group, mesh, meshes, submesh_sizes
from autoplan.errors import InputError


def make(nodes: int, per_node: int, oversubscription: float = 1.0) -> Cluster:
    device = Device("d", 2**30, 1e12, {"bf16": 1e14}, True, "made up")
    node = Node("n", device, per_node, Link("nvswitch", 3e11, 2e-6), 4, Link("infiniband", 2.5e10, 1e-5), "made up")
    return Cluster("made-up", (NodeGroup(node, nodes),), per_node, oversubscription)


def groups_of(shape: tuple[int, ...], axis: int) -> list[list[int]]:
    """The groups of devices along `axis` of a row-major mesh."""
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    others = [range(size) if i != axis else range(1) for i, size in enumerate(shape)]
    bases = [sum(x * s for x, s in zip(point, strides, strict=True)) for point in product(*others)]
    return [[base + j * strides[axis] for j in range(shape[axis])] for base in bases]


def brute_force(shape: tuple[int, ...], axis: int, per_node: int) -> Axis | None:
    """The axis found by looking at every device of every group; None if groups spread unevenly."""
    seen = set()
    on_node_0 = 0
    for ids in groups_of(shape, axis):
        ranks = Counter(i // per_node for i in ids)
        if len(set(ranks.values())) > 1:
            return None
        seen.add((ranks[ids[0] // per_node], len(ranks)))
        on_node_0 += 0 in ranks
    if len(seen) > 1:
        return None
    (intra, nodes), = seen
    return Axis(size=shape[axis], intra=intra, nodes=nodes, sharing=on_node_0)


def sizes(limit: int) -> st.SearchStrategy[int]:
    return st.integers(1, limit)


@pytest.mark.parametrize("per_node", [1, 4, 6, 8])
def test_axes_equal_enumeration(per_node: int) -> None:
    accepted = 0
    for shape in product((1, 2, 3, 4, 6, 8), repeat=3):
        total = shape[0] * shape[1] * shape[2]
        cluster = make(max(1, 96 // per_node), per_node)
        expected = [brute_force(shape, i, per_node) for i in range(3)]
        whole = total <= cluster.num_devices and (total % per_node == 0 or per_node % total == 0)
        if whole and None not in expected:
            assert list(mesh(cluster, shape).axes) == expected, shape
            accepted += 1
        else:
            with pytest.raises(ValueError):
                mesh(cluster, shape)
    assert accepted > 30


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([2, 4, 6, 8, 12, 72]), sizes(6))
def test_submeshes_and_meshes_tile_the_cluster(per_node: int, nodes: int) -> None:
    cluster = make(nodes, per_node)
    submeshes = submesh_sizes(cluster)
    assert submeshes == tuple(sorted(set(submeshes)))
    assert submeshes[0] == 1 and submeshes[-1] == cluster.num_devices
    for count in submeshes:
        found = meshes(cluster, count)
        assert found[0].shape == (count, 1)
        assert len({m.shape for m in found}) == len(found)
        for m in found:
            assert m.shape[0] * m.shape[1] == m.num_devices == count
            assert m.names == ("data", "model")
            assert m.shape[1] <= 2 * per_node
        assert any(m.shape[1] == min(count, per_node) for m in found)


def test_submesh_sizes_are_alpas() -> None:
    assert submesh_sizes(make(3, 8)) == (1, 2, 4, 8, 16, 24)
    assert submesh_sizes(make(1, 6)) == (1, 2, 3, 6)


def test_max_model_bounds_the_model_axis() -> None:
    cluster = make(4, 8)
    assert [m.shape[1] for m in meshes(cluster, 32)] == [1, 2, 4, 8, 16]
    assert [m.shape[1] for m in meshes(cluster, 32, max_model=4)] == [1, 2, 4]
    assert [m.shape[1] for m in meshes(cluster, 32, max_model=32)] == [1, 2, 4, 8, 16, 32]
    assert [m.shape[1] for m in meshes(cluster, 24)] == [1, 2, 4, 8]


def test_the_number_of_meshes_does_not_grow_with_the_cluster() -> None:
    assert len(meshes(make(2048, 8), 16384)) == len(meshes(make(4, 8), 32))


def test_default_names() -> None:
    cluster = make(4, 8)
    assert mesh(cluster, (8,)).names == ("data",)
    assert mesh(cluster, (2, 2, 8)).names == ("data", "context", "model")
    assert mesh(cluster, (2, 2, 2, 4)).names == ("axis0", "axis1", "axis2", "axis3")
    assert mesh(cluster, (4, 8), ("x", "y")).names == ("x", "y")


def test_known_axes() -> None:
    data, model = mesh(make(4, 8), (8, 4)).axes
    assert data == Axis(size=8, intra=2, nodes=4, sharing=4)
    assert model == Axis(size=4, intra=4, nodes=1, sharing=2)
    assert not data.is_local and model.is_local


@pytest.mark.parametrize("shape", [(2, 6), (2, 12), (8, 3), (6,), (64,), (0, 8), (), (-1, -8)])
def test_meshes_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        mesh(make(4, 8), shape)


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b", "c")])
def test_wrong_names_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        mesh(make(4, 8), (2, 8), names)


def test_groups() -> None:
    cluster = make(4, 8)
    assert group(cluster, 4) == Axis(size=4, intra=4, nodes=1, sharing=1)
    assert group(cluster, 16) == Axis(size=16, intra=8, nodes=2, sharing=1)
    assert group(cluster, [0, 8, 16]) == Axis(size=3, intra=1, nodes=3, sharing=1)
    assert group(cluster, [7, 6]) == Axis(size=2, intra=2, nodes=1, sharing=1)


@pytest.mark.parametrize("devices", [0, -1, 33, 12, [], [0, 0], [0, 1, 8], [32], [-1]])
def test_bad_groups_are_refused(devices: int | list[int]) -> None:
    with pytest.raises(ValueError):
        group(make(4, 8), devices)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([2, 4, 6, 8]), sizes(5), st.data())
def test_boundaries_equal_enumeration(per_node: int, nodes: int, data: st.DataObject) -> None:
    cluster = make(nodes, per_node)
    count = data.draw(st.sampled_from([s for s in submesh_sizes(cluster) if cluster.num_devices % s == 0]))
    stages = cluster.num_devices // count
    index = data.draw(st.integers(0, stages - 1))
    axis = boundary(cluster, count, index)
    if index == stages - 1:
        assert axis == Axis(size=1, intra=1, nodes=1, sharing=1)
        return
    last = (index + 1) * count - 1
    senders = [d for d in range(index * count, last + 1) if d // per_node == last // per_node]
    assert axis.size == 2
    assert axis.is_local == (last // per_node == (last + 1) // per_node)
    assert axis.sharing == len(senders)


def test_boundary_without_an_index() -> None:
    cluster = make(4, 8)
    assert boundary(cluster, 4) == Axis(size=2, intra=2, nodes=1, sharing=4)
    assert boundary(cluster, 8) == Axis(size=2, intra=1, nodes=2, sharing=8)
    assert boundary(cluster, 16) == Axis(size=2, intra=1, nodes=2, sharing=8)
    assert boundary(cluster, 32).size == 1


@pytest.mark.parametrize(("count", "index"), [(3, None), (0, None), (64, None), (8, 4), (8, -1)])
def test_bad_boundaries_are_refused(count: int, index: int | None) -> None:
    with pytest.raises(ValueError):
        boundary(make(4, 8), count, index)


@pytest.mark.parametrize("sizes", [(4, 2, 1, 1), (0, 0, 1, 1), (2, 2, 1, 0)])
def test_an_axis_checks_itself(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        Axis(*sizes)


def test_cluster_totals() -> None:
    cluster = make(4, 8, oversubscription=2.0)
    assert (cluster.num_nodes, cluster.num_devices) == (4, 32)
    assert cluster.node_bandwidth == 4 * 2.5e10 / 2
    assert hash(cluster) == hash(make(4, 8, oversubscription=2.0))


def test_a_cluster_of_two_kinds_of_node_is_refused() -> None:
    one = make(1, 8)
    two = Cluster("two", (*one.groups, *one.groups), 8)
    with pytest.raises(InputError, match="not supported yet"):
        _ = two.num_devices
