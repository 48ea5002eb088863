"""Laws of the collectives, and their prices against measured ones."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import Axis, Cluster, NodeGroup, load
from autoplan.cost import collectives
from autoplan.cost.collectives import Operation, curve
from autoplan.specs import names

DATA = Path(__file__).parent.parent / "data/measured_collectives.csv"
OPS: tuple[Operation, ...] = get_args(Operation)
CLUSTERS = tuple(name if name.startswith("gb200") else f"{name}:64"
                 for name in names("cluster_specs") if name != "devices")
LAWS = settings(max_examples=50, deadline=None)
clusters = st.sampled_from(CLUSTERS).map(load)
ops = st.sampled_from(OPS)
axes = st.builds(lambda intra, nodes, sharing: Axis(intra * nodes, intra, nodes, sharing),
                 st.integers(1, 8), st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 4, 8]))
nbytes = st.floats(1, 1e11)


def changed(cluster: Cluster, intra: float = 1, network: float = 1) -> Cluster:
    """The same cluster with links that many times as wide."""
    node = cluster.node
    link = node.intra
    peer = None if link.peer_bandwidth is None else link.peer_bandwidth * intra
    wide = replace(node, intra=replace(link, bandwidth=link.bandwidth * intra, peer_bandwidth=peer),
                   network=replace(node.network, bandwidth=node.network.bandwidth * network))
    return replace(cluster, groups=(NodeGroup(wide, cluster.num_nodes),))


@LAWS
@given(clusters, ops, axes, nbytes, st.floats(1, 1000))
def test_never_shrinks_with_bytes(cluster: Cluster, op: Operation, axis: Axis, size: float, factor: float) -> None:
    price = curve(cluster, op, axis)
    assert price(size * factor) >= price(size) * (1 - 1e-9)


@LAWS
@given(clusters, ops, axes, nbytes, st.floats(1, 20), st.booleans())
def test_more_bandwidth_is_never_slower(cluster: Cluster, op: Operation, axis: Axis, size: float, factor: float,
                                        inside: bool) -> None:
    wider = changed(cluster, intra=factor) if inside else changed(cluster, network=factor)
    assert curve(wider, op, axis)(size) <= curve(cluster, op, axis)(size) * (1 + 1e-9)


@LAWS
@given(clusters, ops, axes, nbytes, st.integers(1, 8))
def test_sharing_and_oversubscription_never_help(cluster: Cluster, op: Operation, axis: Axis, size: float,
                                                 factor: int) -> None:
    base = curve(cluster, op, axis)(size)
    assert curve(cluster, op, replace(axis, sharing=axis.sharing * factor))(size) >= base * (1 - 1e-9)
    assert curve(replace(cluster, oversubscription=float(factor)), op, axis)(size) >= base * (1 - 1e-9)


@LAWS
@given(clusters, ops, st.integers(1, 8), nbytes)
def test_one_rank_and_no_bytes_are_free(cluster: Cluster, op: Operation, sharing: int, size: float) -> None:
    assert curve(cluster, op, Axis(1, 1, 1, sharing))(size) == 0
    assert curve(cluster, op, Axis(16, 8, 2, 1))(0.0) == 0
    assert curve(cluster, op, Axis(8, 8, 1, 1))(0.0) == 0


@LAWS
@given(clusters, ops, st.sampled_from([1, 2, 8]), nbytes)
def test_two_ranks_on_two_hosts_pay_for_the_network(cluster: Cluster, op: Operation, sharing: int, size: float) -> None:
    """Each rank sends at least half of the bytes through the NICs next to it; node links don't matter."""
    axis = Axis(2, 1, 2, sharing)
    node = cluster.node
    nic = max(node.network.bandwidth, cluster.node_bandwidth / node.gpus)
    floor = size * collectives.traffic(op, 2) / min(nic, cluster.node_bandwidth / sharing)
    time = curve(cluster, op, axis)(size)
    assert time >= floor
    assert time == curve(changed(cluster, intra=100), op, axis)(size)


@pytest.mark.parametrize("name", ["dgx-a100-80gb:64", "rtx4090-8x:64", "dgx1-v100-32gb:64"])
@pytest.mark.parametrize("axis", [Axis(2, 2, 1, 1), Axis(8, 8, 1, 1), Axis(8, 1, 8, 8), Axis(64, 8, 8, 1)])
def test_a_ring_all_reduce_is_a_scatter_and_a_gather(name: str, axis: Axis) -> None:
    cluster = load(name)
    size = np.array([2**26, 2**30, 2**33])
    both = curve(cluster, "reduce_scatter", axis)(size) + curve(cluster, "all_gather", axis)(size)
    assert curve(cluster, "all_reduce", axis)(size) == pytest.approx(both, rel=0.3)


def test_nvls_makes_only_all_reduce_faster_and_only_from_five_ranks() -> None:
    node = load("dgx-h200").node
    assert collectives.nvls_gain(node, "all_reduce", 8) > 1.2
    assert collectives.nvls_gain(node, "all_reduce", 4) == collectives.nvls_gain(node, "all_gather", 8) == 1
    assert collectives.nvls_gain(load("dgx-a100-80gb").node, "all_reduce", 8) == 1


def test_an_engines_own_all_reduce_is_faster_for_small_messages_only() -> None:
    cluster = load("dgx-h100")
    axis, size = Axis(8, 8, 1, 1), np.array([2**14, 2**20, 2**29])
    nccl, custom = (curve(cluster, "all_reduce", axis, custom=one)(size) for one in (False, True))
    assert (custom <= nccl).all()
    assert custom[0] < 0.5 * nccl[0]
    assert custom[2] == pytest.approx(nccl[2], rel=0.02)
    for op in OPS:
        if op != "all_reduce":
            assert curve(cluster, op, axis, custom=True)(2**14) == curve(cluster, op, axis)(2**14)
    v100 = load("dgx1-v100-16gb")  # no engine's kernel was measured
    assert curve(v100, "all_reduce", axis, custom=True)(2**14) == curve(v100, "all_reduce", axis)(2**14)


def test_without_peer_access_a_faster_slot_does_not_help() -> None:
    cluster = load("rtx4090-8x")
    slots = []
    for kind in ("pcie", "pcie-host"):
        intra = replace(cluster.node.intra, kind=kind, bandwidth=31e9)
        node = replace(cluster.node, intra=intra)
        slots.append([float(curve(replace(cluster, groups=(NodeGroup(n, 1),)), "all_gather", Axis(4, 4, 1, 1))(2**28))
                      for n in (node, replace(node, intra=replace(intra, bandwidth=63e9)))])
    (peer, peer_wide), (host, host_wide) = slots
    assert peer_wide < 0.6 * peer < 0.6 * host
    assert host_wide == host
    assert 0.75 * 2**28 / host == pytest.approx(5e9, rel=0.3)  # V100 5.5, L40S 4.7 GB/s of bus bandwidth, 4 GPUs


def test_one_peer_of_mi300x_is_slow() -> None:
    cluster = load("mi300x-8x")
    pair, whole = (curve(cluster, "all_gather", Axis(n, n, 1, 1))(2**30) for n in (2, 8))
    assert pair / whole == pytest.approx((1 / 2 / 64) / (7 / 8 / 448), rel=0.1)


def test_a_missing_group_size_lies_between_its_neighbours() -> None:
    cluster = load("dgx-a100-80gb")
    three, four, two = (float(curve(cluster, "all_gather", Axis(n, n, 1, 1))(2**28)) for n in (3, 4, 2))
    assert two < three < four


def test_nics_are_shared_by_groups() -> None:
    cluster = load("dgx-a100-80gb:64")
    alone, shared = (float(curve(cluster, "all_gather", Axis(8, 1, 8, sharing))(2**33)) for sharing in (1, 8))
    assert alone == shared  # a NIC a GPU: eight groups of one rank a node don't disturb each other
    few = load("p4d.24xlarge:64")  # four NICs for eight GPUs
    alone, shared = (float(curve(few, "all_gather", Axis(8, 1, 8, sharing))(2**33)) for sharing in (1, 8))
    assert shared / alone == pytest.approx(2, rel=0.05)


def test_a_table_is_made_monotone_and_goes_on_at_its_bandwidth() -> None:
    t = collectives.table([1024, 2048, 4096], [2e-6, 1e-6, 4e-6])
    assert t(np.float64(2048)) == pytest.approx(2e-6)
    assert t(np.float64(1)) == pytest.approx(2e-6)
    assert t(np.float64(2896.309376)) == pytest.approx(np.sqrt(2e-6 * 4e-6))
    slope = (t(np.float64(40960)) - t(np.float64(4096))) / 36864
    assert slope == pytest.approx(4e-6 / 4096, rel=0.1)


def rows() -> list[dict[str, str]]:
    lines = [line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.parametrize("row", rows(), ids=lambda r: f"{r['cluster']}-{r['op']}-{r['size']}")
def test_against_measured(row: dict[str, str]) -> None:
    axis = Axis(int(row["size"]), int(row["intra"]), int(row["nodes"]), 1)
    op = next(op for op in OPS if op == row["op"])
    got = float(curve(load(row["cluster"]), op, axis)(float(row["bytes"])))
    assert got * 1e6 == pytest.approx(float(row["us"]), rel=float(row["tolerance"]))
