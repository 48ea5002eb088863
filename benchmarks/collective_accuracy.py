"""How well collectives are predicted: measured sweeps against the price that `CostModel` gives them.

    python benchmarks/collective_accuracy.py [DIR] [--json]

DIR holds kernels/ and hardware/ as their READMEs describe; default: ../shared/reference next to the repository. Four
sets: tables that ship, each inner size predicted from the table's other sizes (leave one out); the same systems with
their tables hidden, by the fit of their kind of link; sweeps inside a node by sources that are in no table; sweeps
across nodes. What no table or fit saw is marked (`unseen`).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from accuracy import Line, errors, mean_of, show
from collective_tables import OPS, SYSTEMS, Point, Samples, local_points, network_points, one_node, samples, thin
from kernel_tables import REFERENCE, read

from autoplan.cluster import load as load_cluster
from autoplan.cluster.types import Axis, Cluster
from autoplan.cost import collectives
from autoplan.cost.kernels import load
from autoplan.cost.model import CostModel

RINGS: tuple[collectives.Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")
VIDUR = {"a100_dgx": "a100", "h100_dgx": "h100"}
APEX = {"H100-SXM-80GB": "h100", "H200": "h200"}
SWEEPS = {"A100x8 stas": "a100", "H200x8 stas": "h200", "H100x8 Azure": "h100", "A100x8 Azure": "a100",
          "H200x8 Azure": "h200", "B200x8 stas": "b200"}
LARGE = 2**24  # bytes from which a message is bound by bandwidth


@cache
def costs(cluster: Cluster) -> CostModel:
    """Prices of one cluster."""
    return CostModel(cluster)


def price(point: Point) -> float:
    """Seconds of a measured collective."""
    cluster, op, axis, nbytes, _ = point
    call = {"all_reduce": costs(cluster).all_reduce, "all_gather": costs(cluster).all_gather,
            "reduce_scatter": costs(cluster).reduce_scatter, "all_to_all": costs(cluster).all_to_all,
            "p2p": costs(cluster).p2p}[op]
    return float(call(nbytes, axis))


def lines(table: str, device: str, kind: str, points: list[Point], unseen: bool) -> Iterator[Line]:
    """A line for all messages, and one for the large ones where both kinds exist."""
    predicted, measured = np.array([price(p) for p in points]), np.array([p[4] for p in points])
    large = np.array([p[3] >= LARGE for p in points])
    yield Line(table, device, kind, errors(predicted, measured), unseen)
    if 0 < large.sum() < len(points):
        yield Line(table, device, f"{kind} ≥ 16 MiB", errors(predicted[large], measured[large]), unseen)


def left_out(measured: Samples) -> Iterator[Line]:
    """Each inner size of each shipped table, predicted from the table's others."""
    for key in SYSTEMS:
        for op, sizes in measured[key].items():
            predicted, seconds = [], []
            for times in (thin(t) for n, t in sizes.items() if n > 1):
                nbytes, us = times
                for i in range(1, len(nbytes) - 1):
                    rest = collectives.table(nbytes[:i] + nbytes[i + 1:], us[:i] + us[i + 1:])
                    predicted.append(float(rest(np.float64(nbytes[i]))))
                    seconds.append(us[i])
            if predicted:
                yield Line("left out", key, op, errors(np.array(predicted), np.array(seconds)), unseen=True)


def hidden(measured: Samples) -> Iterator[Line]:
    """The systems of the tables, priced without them by the fit of their kind of link (which saw them)."""
    data = load("collectives")
    tables, data["systems"] = data["systems"], {}
    costs.cache_clear()
    for key in SYSTEMS:
        for kind, ops in (("rings", RINGS), ("all_to_all", ("all_to_all",)), ("p2p", ("p2p",))):
            points = local_points(key, measured, ops)
            if points:
                yield from lines("no table", key, kind, points, unseen=kind == "all_to_all")
    data["systems"] = tables
    costs.cache_clear()


def other_sources(reference: Path) -> Iterator[Line]:
    """Sweeps inside a node that went into no table."""
    found: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for i, r in enumerate(read(reference / "kernels/vidur_network_all.csv.gz")):
        n, op = int(r["num_gpus"]), r["collective"]
        if i % 20 == 0 and r["cluster"] in VIDUR and int(r["devices_per_node"]) == n and op == "all_reduce":
            key = VIDUR[r["cluster"]]
            found["vidur", key, "all_reduce"].append(
                (one_node(key), "all_reduce", Axis(n, n, 1, 1), float(r["bytes"]), float(r["median_ms"]) * 1e-3))
    for r in read(reference / "kernels/apex_comm.csv"):
        n, op = int(r["num_gpus_per_node"]), OPS[r["collective"]]
        if r["gpu"] in APEX and r["num_nodes"] == "1" and n in (2, 4, 8) and r["dtype"] == "half" and op != "p2p" \
                and int(r["size_kb"]):
            key = APEX[r["gpu"]]
            found["apex", key, op].append((one_node(key), op, Axis(n, n, 1, 1),  # type: ignore[arg-type]
                                           int(r["size_kb"]) * 1024.0, float(r["time_us"]) * 1e-6))
    for r in read(reference / "hardware/collectives_measured.csv"):
        if r["dataset"] in SWEEPS and 1024 <= int(r["bytes"]) <= 2**29:
            key, n = SWEEPS[r["dataset"]], int(r["n_gpus"])
            found[r["dataset"].split()[-1], key, "all_reduce"].append(
                (one_node(key), "all_reduce", Axis(n, n, 1, 1), float(r["bytes"]), float(r["time_us"]) * 1e-6))
        if r["dataset"] == "GB200 NVL72 1 rack":
            found["coreweave", "gb200", "all_reduce of 72"].append(
                (load_cluster("gb200-nvl72:72"), "all_reduce", Axis(72, 72, 1, 1), float(r["bytes"]),
                 float(r["time_us"]) * 1e-6))
        if r["dataset"] == "MI355X":
            found["oracle", "mi355x", r["op"]].append(
                (load_cluster("mi355x-8x"), r["op"], Axis(8, 8, 1, 1), float(r["bytes"]),  # type: ignore[arg-type]
                 float(r["time_us"]) * 1e-6))
    for (source, key, op), points in sorted(found.items()):
        yield from lines(source, key, op, points, unseen=True)


def across_nodes(reference: Path) -> Iterator[Line]:
    """Sweeps across nodes; each network's fit saw its own."""
    hardware = read(reference / "hardware/collectives_measured.csv")
    for network, sets in network_points(reference, hardware).items():
        for label, points in sets.items():
            yield from lines("nodes", network, label.replace("V100-PCIe, ", ""), points, unseen=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("reference", nargs="?", type=Path, default=REFERENCE)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.reference / "kernels").is_dir():
        print(f"{options.reference}/kernels is absent: nothing to compare")
        return
    measured = samples(options.reference)
    parts = {"left_out": list(left_out(measured)), "no_table": list(hidden(measured)),
             "other_source": list(other_sources(options.reference)), "nodes": list(across_nodes(options.reference))}
    summary: dict[str, float | int] = {"rows": sum(
        one.errors.n for some in parts.values() for one in some if not one.kind.endswith("16 MiB"))}
    for name, some in parts.items():
        whole = [one for one in some if not one.kind.endswith("16 MiB")]
        large = [one for one in some if one.kind.endswith("16 MiB")]
        summary[f"{name}_median"], summary[f"{name}_p90"] = mean_of(whole, "median"), mean_of(whole, "p90")
        if large:
            summary[f"{name}_large_median"] = mean_of(large, "median")
    show([one for some in parts.values() for one in some], summary, options.json)


if __name__ == "__main__":
    main()
