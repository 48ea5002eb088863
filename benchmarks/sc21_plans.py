"""Plan the ten GPT models of SC'21 (Narayanan et al., table 1) and compare with the configurations published there.

    python benchmarks/sc21_plans.py [--json] [--only TEXT] [DIR]

DIR holds training/training.csv as its README describes; default: ../shared/reference next to the repository. For each
model: the measured step, the published configuration as `estimate` prices it, and our plan on the same A100-80GB.
`estimate` prices fused attention where the device has it; the measured runs of 2021 had none. Exit code 1 where our
plan is slower than the published configuration by the same prices, splits tensors across nodes, or has no name.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import autoplan

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "megatron_sc21_t1"
CLUSTER = "dgx-a100-80gb"
NODE = 8
KEYS = ("tp", "pp", "dp", "micro_batch_size", "virtual_stages", "zero", "recompute", "sequence_parallel")


def read(folder: Path) -> list[dict[str, str]]:
    """Return the table's rows, or none where the data aren't there."""
    path = folder / "training" / "training.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["source_id"] == SOURCE]


def compare(row: dict[str, str]) -> dict[str, Any]:
    """Price the published configuration of one row, plan the same model, and return both."""
    model = autoplan.load_model(f"megatron-gpt-{row['params_b'].removesuffix('.0')}b")
    cluster = autoplan.load_cluster(f"{CLUSTER}:{row['num_gpus']}")
    batch, chunks = int(row["global_batch"]), int(row["vpp"] or 1)
    published = autoplan.estimate(
        model, cluster, tp=int(row["tp"]), pp=int(row["pp"]), dp=int(row["dp"]), global_batch_size=batch,
        micro_batch_size=int(row["micro_batch"]), precision="fp16", recompute=row["recompute"],
        schedule="interleaved" if chunks > 1 else "1f1b", virtual_stages=chunks)
    begin = time.perf_counter()
    plan = autoplan.plan(model, cluster, global_batch_size=batch, precision="fp16")
    wall = time.perf_counter() - begin
    ours, theirs = plan.predicted.iteration_time_s, published.predicted.iteration_time_s
    return {
        "model": model.name, "gpus": cluster.num_devices, "global_batch": batch,
        "measured_s": float(row["step_time_norm_s"]),
        "published": {**_degrees(published), "iteration_time_s": theirs,
                      "fits": published.predicted.peak_memory_bytes <= cluster.device.memory_bytes},
        "plan": {**_degrees(plan), "iteration_time_s": ours, "gap": plan.search.gap, "mfu": plan.predicted.mfu,
                 "peak_memory_bytes": plan.predicted.peak_memory_bytes, "wall_s": wall},
        "tp_in_node": all(stage.parallelism.tp is not None and stage.parallelism.tp <= NODE for stage in plan.stages),
        "no_slower": ours <= theirs * (1 + 1e-9),
        "named": plan.parallelism.recipe is not None,
    }


def _degrees(plan: autoplan.Plan) -> dict[str, Any]:
    return {key: getattr(plan.parallelism, key) for key in KEYS}


def _words(degrees: dict[str, Any]) -> str:
    words = "·".join("?" if degrees[key] is None else f"{degrees[key]}" for key in KEYS[:5])
    return f"{words} z{degrees['zero']} {degrees['recompute']}{' sp' if degrees['sequence_parallel'] else ''}"


def line(found: dict[str, Any]) -> str:
    """Return one line of the table."""
    published, plan = found["published"], found["plan"]
    verdict = [word for word, good in (("fits", published["fits"]), ("tp ≤ 8", found["tp_in_node"]),
                                       ("no slower", found["no_slower"]), ("named", found["named"])) if not good]
    return (f"{found['model']:20}{found['gpus']:>6}{found['measured_s']:>10.2f}{published['iteration_time_s']:>10.2f}  "
            f"{_words(published):27}{plan['iteration_time_s']:>9.2f}  {_words(plan):31}"
            f"{100 * plan['gap']:>5.1f}{100 * plan['mfu']:>6.1f}{plan['wall_s']:>7.1f}  "
            f"{'NOT ' + ', '.join(verdict) if verdict else 'ok'}")


def main() -> int:
    """Compare all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "reference", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name holds TEXT")
    arguments = parser.parse_args()
    rows = [row for row in read(arguments.folder) if arguments.only in row["model"]]
    if not rows:
        print(f"skipped: no rows of {SOURCE} in {arguments.folder / 'training' / 'training.csv'}", file=sys.stderr)
        return 0
    if not arguments.json:
        print("degrees: tp·pp·dp·micro-batch·virtual stages, ZeRO stage, recompute; times in seconds of a step")
        print(f"{'model':20}{'GPUs':>6}{'measured':>10}{'estimate':>10}  {'published':27}{'plan':>9}  {'degrees':31}"
              f"{'gap %':>5}{'MFU %':>6}{'wall s':>7}")
    results = []
    for row in rows:
        results.append(compare(row))
        if not arguments.json:
            print(line(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))
    return 0 if all(found["tp_in_node"] and found["no_slower"] and found["named"] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
