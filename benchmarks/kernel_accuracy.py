"""How well compute kernels are predicted: every measured kernel against the price that `CostModel` gives it.

    python benchmarks/kernel_accuracy.py [DIR] [--json]

DIR holds kernels/ as its README describes; default: ../shared/reference next to the repository. Tables:
aiconfigurator (matmul, prefill, decode), vidur (whole layers: their matmuls and memory-bound operators), Azure. The
price is that of a long run; aiconfigurator's short matmuls ran at the boost clock, and are priced at it ("boost").
No table is interpolated, so there is no row to leave out: a few constants price a table. What no fit saw is marked
(`unseen`): the matmuls of whole layers on A100 and H100.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from accuracy import Line, errors, mean_of, show
from kernel_tables import A40, REFERENCE, SYSTEMS, System, decode, gemms, layer_gemms, prefill, streams

from autoplan.cluster import device as shipped_device
from autoplan.cluster.types import Cluster, Link, Node, NodeGroup
from autoplan.cost.kernels import load
from autoplan.cost.model import CostModel

BOOST = 5e-4  # seconds of the longest kernel that keeps the boost clock (see fit_compute.py)


@cache
def costs(system: System, boost: bool = False) -> CostModel:
    """Prices of one device of a system, in a long run or at the boost clock."""
    device = shipped_device(system.device)
    node = Node("one", device, 1, Link("pcie", 1e9, 1e-6), 1, Link("ethernet", 1e9, 1e-6), "")
    model = CostModel(Cluster("one", (NodeGroup(node, 1),), 1))
    if boost:
        model.kernels = replace(model.kernels, sustained=1.0)
    return model


def matmuls(reference: Path) -> Iterator[Line]:
    """aiconfigurator's matmuls, by dtype, clock and number of tokens."""
    tables = gemms(reference)
    for system in SYSTEMS:
        for dtype in ("bf16", "fp8"):
            if (system.key, dtype) not in tables:
                continue
            rows = tables[system.key, dtype]
            m, seconds = rows[:, 0], rows[:, 3]
            for boost, chosen in ((True, seconds < BOOST), (False, seconds >= BOOST)):
                price = np.asarray(costs(system, boost).matmul(*rows[:, :3].T, dtype=dtype, own_cast=True))
                for label, some in (("m < 1024", m < 1024), ("m ≥ 1024", m >= 1024)):
                    if (chosen & some).sum() >= 5:
                        yield Line("aic gemm", system.key, f"{dtype} {label}{' boost' if boost else ''}",
                                   errors(price[chosen & some], seconds[chosen & some]))


def squares() -> Iterator[Line]:
    """Azure's cuBLASLt runs of square matmuls (its AI benchmarking guide, as hardware/README.md prints them)."""
    size = np.array([1024, 2048, 4096, 8192, 16384])
    for key, dtype, tflops in (("a100", "fp16", (119, 222, 228, 254, 256)),
                               ("h100", "fp8", (274, 1011, 1217, 1290, 1377))):
        system = next(s for s in SYSTEMS if s.key == key)
        price = np.asarray(costs(system).matmul(size, size, size, dtype=dtype))
        measured = 2 * size**3 / np.array(tflops) / 1e12
        yield Line("Azure", key, f"{dtype} squares, 1,024 to 16,384", errors(price, measured), unseen=True)


def layers(reference: Path) -> Iterator[Line]:
    """vidur's operators: matmuls, and what is bound by memory, from 100 MB on."""
    tables = layer_gemms(reference)
    for system in (*SYSTEMS, A40):
        if system.key in tables:
            rows = tables[system.key]
            price = np.asarray(costs(system).matmul(*rows[:, :3].T))
            yield Line("vidur layers", system.key, "bf16 m ≥ 1024", errors(price, rows[:, 3]), unseen=system is not A40)
    for key, kinds in streams(reference).items():
        system = next(s for s in (*SYSTEMS, A40) if s.key == key)
        for kind, rows in kinds.items():
            rows = rows[rows[:, 0] >= 1e8]
            yield Line("vidur layers", key, f"{kind} ≥ 100 MB",
                       errors(np.asarray(costs(system).memory_bound(rows[:, 0], kind)), rows[:, 1]))


def attention(reference: Path) -> Iterator[Line]:
    """aiconfigurator's prefill and decode; what prefill rows hold around the kernel, as fitted, is added."""
    prefilled, decoded = prefill(reference), decode(reference)
    for system in SYSTEMS:
        if system.key in prefilled:
            batch, heads, kv, length, seconds = prefilled[system.key].T
            price = np.asarray(costs(system).attention(batch=batch, heads=heads, kv_heads=kv, q_len=length,
                                                       kv_len=length, head_dim=128))
            passes = load("compute")["devices"][system.key]["attention"]["around"]
            price = price + passes * 4 * batch * 128 * length * (heads + kv) / system.bandwidth
            for label, some in (("length < 1024", length < 1024), ("length ≥ 1024", length >= 1024)):
                yield Line("aic prefill", system.key, label, errors(price[some], seconds[some]))
        if system.key in decoded:
            batch, heads, kv, length, seconds = decoded[system.key].T
            price = np.asarray(costs(system).attention(batch=batch, heads=heads, kv_heads=kv, q_len=1, kv_len=length,
                                                       head_dim=128))
            nbytes = 4 * batch * kv * length * 128
            for label, some in (("< 16 MB", nbytes < 16e6), ("≥ 16 MB", nbytes >= 16e6)):
                yield Line("aic decode", system.key, f"KV {label}", errors(price[some], seconds[some]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("reference", nargs="?", type=Path, default=REFERENCE)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.reference / "kernels").is_dir():
        print(f"{options.reference}/kernels is absent: nothing to compare")
        return
    lines = [*matmuls(options.reference), *squares(), *layers(options.reference), *attention(options.reference)]
    summary: dict[str, float | int] = {"rows": sum(line.errors.n for line in lines)}
    for name, kinds in (("gemm_large", ("bf16 m ≥ 1024", "bf16 m ≥ 1024 boost")),
                        ("gemm_fp8_large", ("fp8 m ≥ 1024", "fp8 m ≥ 1024 boost")),
                        ("prefill", ("length ≥ 1024",)), ("decode", ("KV ≥ 16 MB",))):
        some = [line for line in lines if line.kind in kinds]
        summary[f"{name}_median"], summary[f"{name}_p90"] = mean_of(some, "median"), mean_of(some, "p90")
    summary["memory_median"] = mean_of([line for line in lines if line.kind.endswith("100 MB")], "median")
    summary["unseen_median"] = mean_of([line for line in lines if line.unseen], "median")
    show(lines, summary, options.json)


if __name__ == "__main__":
    main()
