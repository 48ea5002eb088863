"""Make autoplan/cost/calibration/collectives.json from measured collectives and print how well it predicts.

    python benchmarks/fit_collectives.py [DIR]

DIR holds kernels/ and hardware/ as their READMEs describe; default: ../shared/reference next to the repository.
Inside a node: measured tables, thinned to powers of two (of four below 64 KiB), and a fit by kind of link for nodes
that have no table. Across nodes: one fit by kind of network, checked against the multi-node sweeps.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from collective_tables import SYSTEMS, Point, Samples, local_points, made, network_points, pcie_points, samples, thin
from kernel_tables import REFERENCE, ROOT, read
from scipy.optimize import least_squares

from autoplan.cluster import load as load_cluster
from autoplan.cluster.types import Axis, Cluster, Link
from autoplan.cost import collectives
from autoplan.cost.kernels import load

OUT = ROOT / "autoplan/cost/calibration/collectives.json"
FAMILIES = {"hopper": ["H100", "H200", "H800", "H20", "GH200"], "blackwell": ["B200", "GB200", "B300", "GB300"]}
NVLS_GAIN = {"hopper": 1.29, "blackwell": 1.23}
MAX_LANES = 8  # 144 GPUs in 2 racks (tree) 810 GB/s and 1,440 in 20 racks (ring) 405 GB/s both mean 405 GB/s a rack

# Constants of a kind of link: first guess, least, most. tree: efficiency of a two-node tree on the network.
START = {"latency": (1e-5, 0.0, 1e-3), "hop": (0.5, 0.0, 2.0), "efficiency": (0.7, 0.02, 1.0),
         "ramp": (4e-5, 0.0, 1e-2), "tree": (0.85, 0.2, 1.0)}


def errors(label: str, points: Iterable[Point], tell: bool = True) -> np.ndarray:
    """Print the error of the shipped model on `points` and return predicted/measured − 1."""
    rows = list(points)
    e = np.array([float(collectives.curve(c, op, axis)(b)) / t - 1 for c, op, axis, b, t in rows])
    if tell and len(e):
        big = e[[b >= 2**24 for *_, b, _ in rows]]
        print(f"{label:<44}{len(e):>5} rows  median {np.median(abs(e)):6.1%}  largest {abs(e).max():7.1%}  "
              f"bias {np.median(e):+6.1%}" + (f"   ≥ 16 MiB: median {np.median(abs(big)):6.1%}" if len(big) else ""))
    return e


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


def collectives_on(kind: str, bandwidth: float) -> Cluster:
    """A node of unknown devices on such links."""
    return made("x", 1, Link(kind, bandwidth, 5.7e-6), 1, Link("ethernet", 1e9, 14e-6))  # type: ignore[arg-type]


def fit_links(data: dict[str, Any], measured: Samples, reference: Path, hardware: list[dict[str, str]]) -> None:
    """Fit what nodes without a table get, each kind of link on the systems of that kind, whose tables are hidden."""
    tables, data["systems"] = data["systems"], {}
    ring = ("all_reduce", "all_gather", "reduce_scatter")
    kinds = {"nvswitch": ["a100", "h100", "h200", "b200", "b300", "gb200", "gb300"], "nvlink-mesh": ["v100"],
             "pcie": ["rtx-pro-6000"], "pcie-host": ["v100-pcie"]}
    hosts = pcie_points(reference, hardware)
    hosts["pcie-host"] += [(collectives_on("pcie-host", 31e9), op, axis, nbytes, seconds)  # its groups of 4
                           for _, op, axis, nbytes, seconds in local_points("l40s", measured, ring) if axis.size == 4]
    for kind, systems in kinds.items():
        extra = hosts.get(kind, [])
        points = [p for key in systems for p in local_points(key, measured, ring)]
        points += [p for p in extra if p[1] != "p2p"]
        fit(data["generic"][kind]["ring"], points, ("tree",))
        errors(f"without a table: {kind} rings ({', '.join(systems)})", points)
        sends = [p for key in systems for p in local_points(key, measured, ["p2p"])] + [
            p for p in extra if p[1] == "p2p"]
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
    kinds = ("nvswitch", "nvlink-mesh", "pcie", "pcie-host", "infiniband", "efa", "ethernet")
    data = load("collectives")  # the model reads this very mapping, so that a fit sees what it changes
    data.clear()
    data.update({
        "about": "Measured collectives and fits; meaning: autoplan/cost/collectives.py. Tables: [bytes, microseconds]",
        "program": "benchmarks/fit_collectives.py",
        "data": "NVIDIA aiconfigurator nccl-tests tables (Apache-2.0); vidur network tables (MIT; V100, p2p of A100); "
                "apex nccl-tests (p2p of H100 and H200, V100-PCIe); Azure and stas00/ml-engineering above 512 MiB; "
                "coreweave/nccl-tests (GB200 racks). V100 gather and scatter are half of its all-reduce. "
                "custom_all_reduce: vLLM's own kernel in a CUDA graph (aiconfigurator).",
        "families": FAMILIES, "nvls_gain": NVLS_GAIN, "max_lanes": MAX_LANES,
        "generic": {kind: {op: {n: v[0] for n, v in START.items()} for op in ("ring", "p2p")} for kind in kinds},
        "systems": {key: {"names": names, "links": links, "bandwidth": bandwidth, "tables": {
            op: {str(n): thin(times) for n, times in sorted(sizes.items()) if n > 1}
            for op, sizes in measured[key].items()}} for key, (names, links, bandwidth) in SYSTEMS.items()}})
    collectives.parsed_tables.cache_clear()
    fit_links(data, measured, reference, hardware)
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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE)
