"""Make autoplan/cost/calibration/collectives.json from measured collectives and print how well it predicts.

    python benchmarks/fit_collectives.py [DIR]

DIR holds kernels/ and hardware/ as their READMEs describe; default: ../shared/reference next to the repository.
Inside a node: measured tables, thinned to powers of two (of four below 64 KiB), and a fit by kind of link for nodes
that have no table. Across nodes: one fit by kind of network, checked against the multi-node sweeps.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from autoplan.cluster import load as load_cluster
from autoplan.cluster.types import Axis, Cluster, Device, Link, Node, NodeGroup
from autoplan.cost import collectives
from autoplan.cost.kernels import load

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "autoplan/cost/calibration/collectives.json"
SIZES = [512 * 4**i for i in range(4)] + [2**i for i in range(16, 34)]
OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
       "alltoall": "all_to_all", "sendrecv": "p2p", "send_recv": "p2p"}
# Table → patterns in the device's name, kinds of link inside the node, bytes/s per direction of the measured links.
SYSTEMS: dict[str, tuple[list[str], list[str], float]] = {
    "a100": (["A100"], ["nvswitch"], 300e9), "h100": (["H100"], ["nvswitch"], 450e9),
    "h200": (["H200"], ["nvswitch"], 450e9), "b200": (["B200"], ["nvswitch"], 900e9),
    "gb200": (["GB200"], ["nvswitch"], 900e9), "v100": (["V100"], ["nvlink-mesh"], 150e9),
    "l40s": (["L40S"], ["pcie"], 31e9), "v100-pcie": (["V100PCIE"], ["pcie"], 16e9),
    "rtx-pro-6000": (["RTXPRO6000"], ["pcie"], 63e9),
}
AIC = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200", "l40s": "l40s",
       "rtx-pro-6000": "rtx_pro_6000_server"}
APEX = {"h100": "H100-SXM-80GB", "h200": "H200", "v100-pcie": "V100-PCIE-16GB"}
LARGE = {"a100": "A100x8 Azure", "h100": "H100x8 Azure", "h200": "H200x8 Azure", "b200": "B200x8 stas"}
FAMILIES = {"hopper": ["H100", "H200", "H800", "H20", "GH200"], "blackwell": ["B200", "GB200", "B300", "GB300"]}
NVLS_GAIN = {"hopper": 1.29, "blackwell": 1.23}
MAX_LANES = 8  # 144 GPUs in 2 racks (tree) 810 GB/s and 1,440 in 20 racks (ring) 405 GB/s both mean 405 GB/s a rack

# Constants of a kind of link: first guess, least, most. tree: efficiency of a two-node tree on the network.
START = {"latency": (1e-5, 0.0, 1e-3), "hop": (0.5, 0.0, 2.0), "efficiency": (0.7, 0.02, 1.0),
         "ramp": (4e-5, 0.0, 1e-2), "tree": (0.85, 0.2, 1.0)}

Point = tuple[Cluster, collectives.Operation, Axis, float, float]  # …, bytes, seconds
Samples = dict[str, dict[str, dict[int, dict[int, list[float]]]]]  # system, operation, ranks, bytes → microseconds


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV, gzipped or not."""
    with (gzip.open(path, "rt") if path.suffix == ".gz" else path.open()) as file:
        return list(csv.DictReader(file))


def samples(reference: Path) -> Samples:
    """Every measurement inside one node that goes into a table."""
    out: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    aic = {v: k for k, v in AIC.items()}
    for r in read(reference / "kernels/aic_collectives_all.csv.gz"):
        if r["library"] == "nccl" and r["dtype"] == "half" and r["system"] in aic:
            out[aic[r["system"]]][OPS[r["op_name"]]][int(r["num_gpus"])][int(r["bytes"])].append(
                float(r["latency_ms"]) * 1e3)
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


def errors(label: str, points: Iterable[Point], tell: bool = True) -> np.ndarray:
    """Print the error of the shipped model on `points` and return predicted/measured − 1."""
    rows = list(points)
    e = np.array([float(collectives.curve(c, op, axis)(b)) / t - 1 for c, op, axis, b, t in rows])
    if tell and len(e):
        big = e[[b >= 2**24 for *_, b, _ in rows]]
        print(f"{label:<44}{len(e):>5} rows  median {np.median(abs(e)):6.1%}  largest {abs(e).max():7.1%}  "
              f"bias {np.median(e):+6.1%}" + (f"   ≥ 16 MiB: median {np.median(abs(big)):6.1%}" if len(big) else ""))
    return e


def one_node(key: str) -> Cluster:
    """A node with the links of a measured system."""
    names, kinds, bandwidth = SYSTEMS[key]
    hop = 5.7e-6 if kinds[0] == "pcie" else 1.9e-6
    peer = 25e9 if kinds[0] == "nvlink-mesh" else None
    return made(names[0], 1, Link(kinds[0], bandwidth, hop, peer), 8, Link("infiniband", 50e9, 14e-6))


def made(device: str, nodes: int, intra: Link, nics: int, network: Link, gpus: int = 8) -> Cluster:
    """A cluster of which only the links and the device's name matter."""
    node = Node("n", Device(device, 1, 1.0, {"bf16": 1.0}, True, ""), gpus, intra, nics, network, "")
    return Cluster("c", (NodeGroup(node, nodes),), gpus)


def local_points(key: str, measured: Samples, ops: Iterable[str]) -> list[Point]:
    """The measurements of one system that a table would hold."""
    cluster = one_node(key)
    return [(cluster, op, Axis(n, n, 1, 1), float(b), float(t) * 1e-6)
            for op in ops for n, times in measured[key][op].items() if n > 1
            for b, t in zip(*thin(times), strict=True)]


def fit(target: dict[str, float], points: list[Point], fixed: tuple[str, ...] = (),
        hop: float = 2.0) -> None:
    """Set `target`'s constants so that the log error over `points` is least, robustly; `fixed` ones stay as they are.

    Sets of measurements on one cluster and group count alike, however many rows they have.
    """
    sets = Counter((id(cluster), op, axis) for cluster, op, axis, *_ in points)
    weight = np.array([1 / np.sqrt(sets[id(cluster), op, axis]) for cluster, op, axis, *_ in points])
    names = [n for n in START if n not in fixed]
    bounds = {**START, "hop": (*START["hop"][:2], hop)}
    start, least, most = (np.array([bounds[n][i] for n in names]) for i in range(3))

    def residual(x: np.ndarray) -> np.ndarray:
        target.update(zip(names, map(float, x), strict=True))
        return weight * np.log(1 + errors("", points, tell=False))

    found = least_squares(residual, start, bounds=(least, most), x_scale=start, loss="soft_l1", f_scale=0.1,
                          diff_step=1e-3)
    target.update({n: float(f"{v:.4g}") for n, v in zip(names, found.x, strict=True)})


def fit_links(data: dict[str, Any], measured: Samples, hardware: list[dict[str, str]]) -> None:
    """Fit what nodes without a table get, each kind of link on the systems of that kind, whose tables are hidden."""
    tables, data["systems"] = data["systems"], {}
    ring = ("all_reduce", "all_gather", "reduce_scatter")
    kinds = {"nvswitch": ["a100", "h100", "h200", "b200", "gb200"], "nvlink-mesh": ["v100"],
             "pcie": ["v100-pcie", "l40s", "rtx-pro-6000"]}
    extra = [(made("x", 1, Link("pcie", 31e9, 5.7e-6), 1, Link("ethernet", 1e9, 14e-6)), "reduce_scatter",
              Axis(8, 8, 1, 1), float(r["bytes"]), float(r["time_us"]) * 1e-6)
             for r in hardware if r["dataset"] == "PCIe 8 GPU reduce_scatter"]
    for kind, systems in kinds.items():
        points = [p for key in systems for p in local_points(key, measured, ring)]
        points += extra if kind == "pcie" else []
        fit(data["generic"][kind]["ring"], points, ("tree",))
        errors(f"without a table: {kind} rings ({', '.join(systems)})", points)
        sends = [p for key in systems for p in local_points(key, measured, ["p2p"])]
        fit(data["generic"][kind]["p2p"], sends, ("tree", "hop"))
        errors(f"without a table: {kind} p2p", sends)
    nvswitch = data["generic"]["nvswitch"]
    # Full mesh: all-reduce on MI300X at 4 GiB, 47.7 of 64 GB/s (2 GPUs) and 312.9 of 448 (8): the mean fraction.
    full = round((47.671 / 64 + 312.912 / 448) / 2, 3)
    data["generic"]["full-mesh"] = {"ring": {**nvswitch["ring"], "efficiency": full}, "p2p": nvswitch["p2p"]}
    # Pairs with a bridge: vidur a100_pairwise_nvlink, 512 MB: 195.3 of 300 GB/s for a pair, 23.7 for two pairs.
    pair = {"efficiency": round(195.3 / 300, 3), "beyond_pair": round(23.73 / 300, 3)}
    data["generic"]["nvlink-pairs"] = {"ring": {**nvswitch["ring"], **pair},
                                       "p2p": {**nvswitch["p2p"], "beyond_pair": pair["beyond_pair"]}}
    data["systems"] = tables


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
    pcie = made("V100PCIE", 4, Link("pcie", 16e9, 5.7e-6), 1, Link("ethernet", 1.25e9, 14e-6), gpus=4)
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


def fit_networks(data: dict[str, Any], points: dict[str, dict[str, list[Point]]]) -> None:
    """Fit each kind of network, collectives and p2p apart, and print every set. EFA has no p2p data: InfiniBand's."""
    for kind, sets in points.items():
        target = data["generic"][kind]
        sends = [p for rows in sets.values() for p in rows if p[1] == "p2p"]
        fit(target["ring"], [p for rows in sets.values() for p in rows if p[1] != "p2p"],
            hop=20.0 if kind == "ethernet" else 2.0)  # a step of TCP costs far more than the sheet latency
        if sends:
            fit(target["p2p"], sends, ("tree", "hop"))
        for label, rows in sets.items():
            errors(f"{kind}: {label}", rows)
    data["generic"]["efa"]["p2p"] = data["generic"]["infiniband"]["p2p"]


def leave_one_out(measured: Samples) -> None:
    """Interpolation error at each inner size of each table when that size is left out."""
    for key in SYSTEMS:
        e = []
        for sizes in measured[key].values():
            for times in sizes.values():
                bytes_, us = thin(times)
                for i in range(1, len(bytes_) - 1):
                    rest = collectives.table(bytes_[:i] + bytes_[i + 1:], us[:i] + us[i + 1:])
                    e.append(float(rest(np.float64(bytes_[i]))) / us[i] - 1)
        print(f"table {key:<12}, one size left out{'':<11}{len(e):>5} rows  median {np.median(np.abs(e)):6.1%}  "
              f"p90 {np.quantile(np.abs(e), 0.9):6.1%}")


def main(reference: Path) -> None:
    if not (reference / "kernels").is_dir():
        print(f"{reference}/kernels is absent: nothing to fit")
        return
    measured, hardware = samples(reference), read(reference / "hardware/collectives_measured.csv")
    kinds = ("nvswitch", "nvlink-mesh", "pcie", "infiniband", "efa", "ethernet")
    data = load("collectives")  # the model reads this very mapping, so that a fit sees what it changes
    data.clear()
    data.update({
        "about": "Measured collectives and fits; meaning: autoplan/cost/collectives.py. Tables: [bytes, microseconds]",
        "program": "benchmarks/fit_collectives.py",
        "data": "NVIDIA aiconfigurator nccl-tests tables (Apache-2.0); vidur network tables (MIT; V100, p2p of A100); "
                "apex nccl-tests (p2p of H100 and H200, V100-PCIe); Azure and stas00/ml-engineering above 512 MiB; "
                "coreweave/nccl-tests (GB200 racks). V100 gather and scatter are half of its all-reduce.",
        "families": FAMILIES, "nvls_gain": NVLS_GAIN, "max_lanes": MAX_LANES,
        "generic": {kind: {op: {n: v[0] for n, v in START.items()} for op in ("ring", "p2p")} for kind in kinds},
        "systems": {key: {"names": names, "links": links, "bandwidth": bandwidth, "tables": {
            op: {str(n): thin(times) for n, times in sorted(sizes.items()) if n > 1}
            for op, sizes in measured[key].items()}} for key, (names, links, bandwidth) in SYSTEMS.items()}})
    collectives.parsed_tables.cache_clear()
    fit_links(data, measured, hardware)
    fit_networks(data, network_points(reference, hardware))
    for dataset, ref in (("GB200 NVL72 1 rack", "gb200-nvl72:72"),):
        errors("one rack of 72 GB200 from the table of 4", [
            (load_cluster(ref), "all_reduce", Axis(72, 72, 1, 1), float(r["bytes"]), float(r["time_us"]) * 1e-6)
            for r in hardware if r["dataset"] == dataset])
    leave_one_out(measured)
    write(data)


def write(data: dict[str, Any]) -> None:
    """Write the calibration, one row of numbers a line."""
    rows: dict[str, str] = {}

    def mark(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: mark(v) for k, v in value.items()}
        if isinstance(value, list) and value and isinstance(value[0], list):
            rows[f"@{len(rows)}@"] = json.dumps(value, separators=(",", ":"))
            return f"@{len(rows) - 1}@"
        return value

    text = json.dumps(mark(data), indent=1)
    for key, row in rows.items():
        text = text.replace(f'"{key}"', row, 1)
    OUT.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/reference")
