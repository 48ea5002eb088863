"""Solve the public IOPDDL instances and compare with the contest's teams, XLA and the best known costs.

    python benchmarks/iopddl.py [DIR] [--time-limit contest|S] [--jobs N] [--seed N] [--only NAMES] [--json]

DIR holds `X.json.gz`, `README.md` (whose table gives limits, costs of the best team and XLA, best known and bounds) and
`evaluate.py`, the independent evaluator that checks every solution. Each instance is one `autoplan solve` process.
Exit code 1 where a solution is infeasible or a limit is passed by more than 2 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

AUTOPLAN = Path(sys.executable).with_name("autoplan")
DEFAULT = Path(__file__).parents[2] / "shared" / "reference" / "iopddl"


@dataclass(frozen=True)
class Instance:
    """A row of the README's table; costs are None where it has none. best_known: the verified one."""

    name: str
    limit_s: float
    best_team: float
    xla: float | None
    best_known: float
    bound: float


@dataclass(frozen=True)
class Row:
    """What one process did; cost, feasible and hard_hits are the independent evaluator's."""

    name: str
    cost: int | None
    feasible: bool
    status: str | None
    best_team: float
    xla: float | None
    best_known: float
    lower_bound: float | None
    known_bound: float
    limit_s: float
    wall_s: float
    peak_gib: float

    @property
    def good(self) -> bool:
        """Whether the solution fits and came in time."""
        return self.feasible and self.wall_s <= 1.02 * self.limit_s


def instances(folder: Path) -> list[Instance]:
    """Read the README's table."""
    found = []
    for line in (folder / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 10 and re.fullmatch("[A-Z]", cells[0]) and (folder / f"{cells[0]}.json.gz").exists():
            known = _numbers(cells[7])[-1]
            found.append(Instance(cells[0], float(cells[4]), _numbers(cells[5])[0], (_numbers(cells[6]) or [None])[0],
                                  known, known if cells[8] == "=" else _numbers(cells[8])[0]))
    return found


def _numbers(cell: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e\d+)?", cell)]


def run(folder: Path, instance: Instance, limit_s: float, jobs: int | None, seed: int) -> Row:
    """Solve one instance in a process of its own and check what it wrote."""
    path = folder / f"{instance.name}.json.gz"
    with tempfile.TemporaryDirectory() as place:
        solution = Path(place) / "solution.json"
        command = [str(AUTOPLAN), "solve", str(path), "--time-limit", str(limit_s), "--seed", str(seed), "--json",
                   "-o", str(solution), *([] if jobs is None else ["--jobs", str(jobs)])]
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        text = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        report = json.loads(text) if text.strip() else {}
        checked = {"cost": None, "feasible": False, "hard_hits": 0}
        if solution.exists():
            judge = [sys.executable, str(folder / "evaluate.py"), str(path), str(solution)]
            checked = json.loads(subprocess.run(judge, capture_output=True, text=True, check=True).stdout)
    return Row(instance.name, checked["cost"], checked["feasible"] and not checked["hard_hits"], report.get("status"),
               instance.best_team, instance.xla, instance.best_known, report.get("lower_bound"), instance.bound,
               limit_s, wall, usage.ru_maxrss / 2**20)


def show(rows: list[Row]) -> None:
    """Print the table and the geometric mean of cost over the best team's."""
    head = ("", "cost", "/ team", "/ XLA", "/ known", "bound", "gap", "known bound", "status", "s", "limit", "GiB")
    form = "{:2} {:>19} {:>7} {:>7} {:>8} {:>12} {:>7} {:>12} {:>9} {:>6} {:>6} {:>5}"
    print(form.format(*head))
    for row in rows:
        cost = math.inf if row.cost is None or not row.feasible else row.cost
        bound = -math.inf if row.lower_bound is None else row.lower_bound
        print(form.format(row.name, "none" if cost == math.inf else f"{cost:,}", f"{cost / row.best_team:.4f}",
                          f"{cost / row.xla:.4f}" if row.xla else "–", f"{cost / row.best_known:.5f}", f"{bound:.5e}",
                          f"{(cost - bound) / cost:.2%}" if cost < math.inf else "–", f"{row.known_bound:.5e}",
                          row.status or "failed", f"{row.wall_s:.1f}", f"{row.limit_s:.0f}", f"{row.peak_gib:.2f}"))
    logs = [math.log(row.cost / row.best_team) for row in rows if row.cost and row.feasible]
    if logs:
        print(f"geometric mean of cost / best team over {len(logs)} solved: {math.exp(sum(logs) / len(logs)):.4f}")


def main() -> int:
    """Run all instances and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--time-limit", default="contest", help="seconds an instance, or the contest's own")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names, such as ABD")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if not (asked.folder / "README.md").exists():
        print(f"{asked.folder} isn't there: nothing to measure")
        return 0
    rows = []
    for instance in instances(asked.folder):
        if asked.only and instance.name not in asked.only:
            continue
        limit = instance.limit_s if asked.time_limit == "contest" else float(asked.time_limit)
        rows.append(run(asked.folder, instance, limit, asked.jobs, asked.seed))
        print(f"{instance.name}: {rows[-1].cost} in {rows[-1].wall_s:.1f} s", file=sys.stderr)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
