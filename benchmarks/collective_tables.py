"""Measured collectives, for the programs that make tables and fits of them and that judge the prices.

DIR holds kernels/ and hardware/ as their READMEs describe. Bytes are those of the full tensor, times in microseconds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from kernel_tables import read

from autoplan.cluster import load as load_cluster
from autoplan.cluster.types import Axis, Cluster, Device, Link, Node, NodeGroup
from autoplan.cost import collectives

SIZES = [512 * 4**i for i in range(4)] + [2**i for i in range(16, 34)]
OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
       "alltoall": "all_to_all", "sendrecv": "p2p", "send_recv": "p2p"}
# Table → patterns in the device's name, kinds of link inside the node, bytes/s per direction of the measured links.
SYSTEMS: dict[str, tuple[list[str], list[str], float]] = {
    "a100": (["A100", "A800"], ["nvswitch"], 300e9), "h100": (["H100", "H800"], ["nvswitch"], 450e9),
    "h200": (["H200"], ["nvswitch"], 450e9), "b200": (["B200"], ["nvswitch"], 900e9),
    "b300": (["B300"], ["nvswitch"], 900e9), "gb200": (["GB200"], ["nvswitch"], 900e9),
    "gb300": (["GB300"], ["nvswitch"], 900e9), "v100": (["V100"], ["nvlink-mesh"], 150e9),
    "l40s": (["L40S"], ["pcie", "pcie-host"], 31e9), "v100-pcie": (["V100PCIE"], ["pcie-host", "pcie"], 16e9),
    "rtx-pro-6000": (["RTXPRO6000"], ["pcie"], 63e9),
}
AIC = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm",
       "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server"}
CUSTOM = "vLLM_custom_graph"  # an inference engine's own all-reduce, inside a CUDA graph
APEX = {"h100": "H100-SXM-80GB", "h200": "H200", "v100-pcie": "V100-PCIE-16GB"}
LARGE = {"a100": "A100x8 Azure", "h100": "H100x8 Azure", "h200": "H200x8 Azure", "b200": "B200x8 stas"}

Point = tuple[Cluster, collectives.Operation, Axis, float, float]  # …, bytes, seconds
Samples = dict[str, dict[str, dict[int, dict[int, list[float]]]]]  # system, operation, ranks, bytes → microseconds


def samples(reference: Path) -> Samples:
    """Every measurement inside one node that goes into a table."""
    out: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    aic = {v: k for k, v in AIC.items()}
    for r in read(reference / "kernels/aic_collectives_all.csv.gz"):
        nccl = r["library"] == "nccl" and r["dtype"] == "half"
        if r["system"] in aic and (nccl or r["kernel_source"] == CUSTOM):
            op = OPS[r["op_name"]] if nccl else "custom_all_reduce"
            out[aic[r["system"]]][op][int(r["num_gpus"])][int(r["bytes"])].append(float(r["latency_ms"]) * 1e3)
    apex = {v: k for k, v in APEX.items()}
    for r in read(reference / "kernels/apex_comm.csv"):
        if r["num_nodes"] == "1" and r["dtype"] == "half" and r["size_kb"] != "0":
            key, op = apex[r["gpu"]], OPS[r["collective"]]
            if key == "v100-pcie" or op == "p2p":  # the other operations of H100 and H200 are aic's
                out[key][op][int(r["num_gpus_per_node"])][int(r["size_kb"]) * 1024].append(float(r["time_us"]))
    for r in read(reference / "kernels/vidur_hist_v100_a100_network.csv"):
        if r["link"] == "intra" and r["gpu"] == "v100" and r["bytes"] != "0":
            out[r["gpu"]][OPS[r["collective"]]][int(r["num_gpus"])][int(r["bytes"])].append(float(r["median_ms"]) * 1e3)
    for r in read(reference / "kernels/vidur_network_all.csv.gz"):
        if (r["cluster"], r["collective"], r["devices_per_node"]) == ("a100_dgx", "send_recv", "2"):
            out["a100"]["p2p"][2][int(r["bytes"])].append(float(r["median_ms"]) * 1e3)
    for key in ("l40s", "rtx-pro-6000"):  # no send measured: two ranks that exchange 2·S send S each way at once
        out[key]["p2p"][2] = defaultdict(list, {b // 2: ts for b, ts in out[key]["all_to_all"][2].items()})
    large = {v: k for k, v in LARGE.items()}
    for r in read(reference / "hardware/collectives_measured.csv"):
        if r["dataset"] in large and int(r["bytes"]) > 2**29 and r["op"] == "all_reduce":
            out[large[r["dataset"]]]["all_reduce"][int(r["n_gpus"])][int(r["bytes"])].append(float(r["time_us"]))
    for op in ("all_gather", "reduce_scatter"):  # V100: half of an all-reduce, which is one after the other
        for n, times in out["v100"]["all_reduce"].items():
            out["v100"][op][n] = defaultdict(list, {b: [t / 2 for t in ts] for b, ts in times.items()})
    return out


def thin(times: dict[int, list[float]]) -> list[list[float]]:
    """[sizes, microseconds]: medians at the measured sizes nearest to SIZES (all, if there are few), made monotone."""
    near = {min(times, key=lambda b: abs(b - size)) for size in SIZES}
    kept = sorted(b for b in times if b in near or len(times) <= 16)
    values = np.maximum.accumulate([statistics.median(times[b]) for b in kept])
    return [kept, [float(f"{v:.4g}") for v in values]]


def made(device: str, nodes: int, intra: Link, nics: int, network: Link, gpus: int = 8) -> Cluster:
    """A cluster of which only the links and the device's name matter."""
    node = Node("n", Device(device, 1, 1.0, {"bf16": 1.0}, True, ""), gpus, intra, nics, network, "")
    return Cluster("c", (NodeGroup(node, nodes),), gpus)


def one_node(key: str) -> Cluster:
    """A node with the links of a measured system."""
    names, kinds, bandwidth = SYSTEMS[key]
    hop = 5.7e-6 if kinds[0].startswith("pcie") else 1.9e-6
    peer = 25e9 if kinds[0] == "nvlink-mesh" else None
    return made(names[0], 1, Link(kinds[0], bandwidth, hop, peer), 8, Link("infiniband", 50e9, 14e-6))


def local_points(key: str, measured: Samples, ops: Iterable[str]) -> list[Point]:
    """The measurements of one system that a table would hold."""
    cluster = one_node(key)
    return [(cluster, op, Axis(n, n, 1, 1), float(b), float(t) * 1e-6)
            for op in ops for n, times in measured[key][op].items() if n > 1
            for b, t in zip(*thin(times), strict=True)]


def pcie_points(reference: Path, hardware: list[dict[str, str]]) -> dict[str, list[Point]]:
    """Measurements over PCIe on hosts without a table, by kind of link: with peer-to-peer access, and without."""
    def point(link: Link, op: collectives.Operation, n: int, nbytes: float, seconds: float) -> Point:
        return (made("x", 1, link, 1, Link("ethernet", 1e9, 14e-6)), op, Axis(n, n, 1, 1), nbytes, seconds)

    gen4, gen5 = (Link("pcie", bandwidth, 5.7e-6) for bandwidth in (31e9, 63e9))
    out = {"pcie": [point(gen4, "reduce_scatter", 8, float(r["bytes"]), float(r["time_us"]) * 1e-6)
                    for r in hardware if r["dataset"] == "PCIe 8 GPU reduce_scatter"], "pcie-host": []}
    pairs = {"a100_pairwise_nvlink": gen4, "h100_pairwise_nvlink": gen5}  # two bridged pairs: PCIe between them
    for i, r in enumerate(read(reference / "kernels/vidur_network_all.csv.gz")):
        if i % 60 or int(r["bytes"]) < 2**16:
            continue
        nbytes, seconds = float(r["bytes"]), float(r["median_ms"]) * 1e-3
        if r["cluster"] in pairs and r["collective"] == "all_reduce" and r["devices_per_node"] == "4":
            out["pcie"].append(point(pairs[r["cluster"]], "all_reduce", 4, nbytes, seconds))
        if (r["cluster"], r["devices_per_node"]) == ("a40_pairwise_nvlink", "2"):  # slower than any bridge
            out["pcie-host"].append(point(Link("pcie-host", 31e9, 5.7e-6), "p2p", 2, nbytes, seconds))
    return out


def network_points(reference: Path, hardware: list[dict[str, str]]) -> dict[str, dict[str, list[Point]]]:
    """Multi-node measurements by kind of network and label, on the clusters that they were taken on."""
    def sweep(dataset: str, cluster: Cluster, intra: int, nodes: int) -> list[Point]:
        return [(cluster, r["op"], Axis(intra * nodes, intra, nodes, 1), float(r["bytes"]),
                 float(r["time_us"]) * 1e-6) for r in hardware if r["dataset"] == dataset and int(r["bytes"]) >= 1024]

    hdr4 = made("A100", 3, Link("nvswitch", 300e9, 1.9e-6), 4, Link("infiniband", 25e9, 14e-6))
    b200 = made("B200", 4, Link("nvswitch", 900e9, 1.9e-6), 8, Link("efa", 50e9, 14e-6))
    out: dict[str, dict[str, list[Point]]] = {
        "efa": {"2×8 A100 p4de, 4×100G": sweep("p4de 2node", load_cluster("p4d.24xlarge:16"), 8, 2),
                "2×8 H100 p5, 32×100G": sweep("p5 2node", load_cluster("p5.48xlarge:16"), 8, 2),
                "4×8 B200 p6, 8×400G": [p for p in sweep("B200x32 4node stas", b200, 8, 4) if p[3] >= 2**18]},
        "infiniband": {"8×8 H100 NDR (SHARP)": sweep("H100x64 SHARP IB", load_cluster("dgx-h100:64"), 8, 8),
                       "2×8 A100, 4×HDR": sweep("A100 2node 4xHDR", hdr4, 8, 2),
                       "3×8 A100, 4×HDR": sweep("A100 3node 4xHDR", hdr4, 8, 3),
                       "2×72 GB200": sweep("GB200 2 racks", load_cluster("gb200-nvl72:144"), 72, 2),
                       "20×72 GB200": sweep("GB200 20 racks", load_cluster("gb200-nvl72:1440"), 72, 20)},
        "ethernet": {}}
    pcie = made("V100PCIE", 4, Link("pcie-host", 16e9, 5.7e-6), 1, Link("ethernet", 1.25e9, 14e-6), gpus=4)
    for r in read(reference / "kernels/apex_comm.csv"):
        nodes, intra = int(r["num_nodes"]), int(r["num_gpus_per_node"])
        if r["gpu"] == "V100-PCIE-16GB" and nodes > 1 and intra in (1, 2, 4) and int(r["size_kb"]) > 1 \
                and not (nodes == 4 and r["collective"] == "reduce_scatter"):  # rows that lack a column
            label = f"{r['collective']} V100-PCIe, {nodes} nodes, 10GbE"
            out["ethernet"].setdefault(label, []).append(
                (pcie, OPS[r["collective"]], Axis(intra * nodes, intra, nodes, 1),
                 int(r["size_kb"]) * 1024.0, float(r["time_us"]) * 1e-6))
    dgx, h100 = load_cluster("dgx-a100-80gb:16"), load_cluster("dgx-h100:16")
    for r in read(reference / "kernels/vidur_hist_v100_a100_network.csv"):
        if r["gpu"] == "a100" and r["link"] == "inter" and int(r["bytes"]) >= 2**22:  # its floor is 37 µs
            out["infiniband"].setdefault("p2p A100, one HDR NIC (vidur)", []).append(
                (dgx, "p2p", Axis(2, 1, 2, 1), float(r["bytes"]), float(r["median_ms"]) * 1e-3))
    for i, r in enumerate(read(reference / "kernels/vidur_network_all.csv.gz")):
        if (r["cluster"], r["collective"]) == ("a100_dgx", "all_reduce") and int(r["bytes"]) <= 2**15 \
                and int(r["num_gpus"]) > int(r["devices_per_node"]):  # its NICs aren't known: latency only
            intra = int(r["devices_per_node"])
            out["infiniband"].setdefault("A100, two nodes, ≤ 32 KiB (vidur)", []).append(
                (dgx, "all_reduce", Axis(2 * intra, intra, 2, 1), float(r["bytes"]), float(r["median_ms"]) * 1e-3))
        if (r["cluster"], r["collective"], r["devices_per_node"]) == ("h100_dgx", "send_recv", "1") and i % 40 == 0 \
                and int(r["bytes"]) >= 2**16:
            out["infiniband"].setdefault("p2p H100, one NDR NIC (vidur)", []).append(
                (h100, "p2p", Axis(2, 1, 2, 1), float(r["bytes"]), float(r["median_ms"]) * 1e-3))
    return out
