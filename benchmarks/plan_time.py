"""Time whole `autoplan` processes, and the memory they take, against the targets the project set itself.

    python benchmarks/plan_time.py [--json] [--only TEXT]

Every case is one run of the `autoplan` that is installed beside this Python, from the start of the interpreter to its
end, with --json and its output thrown away. Exit code 1 where a case fails or misses its target.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

AUTOPLAN = Path(sys.executable).with_name("autoplan")


@dataclass(frozen=True)
class Case:
    """Arguments of a command, and the wall time in seconds it should stay under (None: no target)."""

    name: str
    arguments: tuple[str, ...]
    target_s: float | None


@dataclass(frozen=True)
class Result:
    """What one process took: wall seconds, peak resident MiB; and what it planned."""

    name: str
    target_s: float | None
    wall_s: float
    peak_mib: float
    exit_code: int
    parallelism: dict[str, object] | None
    iteration_time_s: float | None
    gap: float | None
    error: str | None

    @property
    def good(self) -> bool:
        """Whether it ended well and in time."""
        return self.exit_code == 0 and (self.target_s is None or self.wall_s < self.target_s)


CASES = (
    Case("gpt3-175b on 1,024 A100-80GB",
         ("plan", "gpt3-175b", "dgx-a100-80gb:1024", "--global-batch-size", "1536", "--json"), 10.0),
    Case("gpt-39b on 64 V100-16GB",
         ("plan", "gpt-39b", "p3.16xlarge:64", "--global-batch-size", "1024", "--precision", "fp16", "--json"), 5.0),
    Case("llama-3.1-405b on 16,384 H100",
         ("plan", "llama-3.1-405b", "dgx-h100:16384", "--global-batch-size", "2048", "--seq-len", "8192", "--json"),
         30.0),
    Case("llama-3.1-70b on 64 H100", ("plan", "llama-3.1-70b", "dgx-h100:64", "--json"), None),
    Case("--help", ("--help",), 0.3),
)


def run(case: Case) -> Result:
    """Run one case in a process of its own and measure it."""
    begin = time.perf_counter()
    process = subprocess.Popen([AUTOPLAN, *case.arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    plan = json.loads(output) if process.returncode == 0 and "--json" in case.arguments else None
    return Result(
        case.name, case.target_s, wall, peak, process.returncode,
        plan and plan["parallelism"], plan and plan["predicted"]["iteration_time_s"], plan and plan["search"]["gap"],
        output.strip().splitlines()[0] if process.returncode > 0 and output.strip() else None)


def row(result: Result) -> str:
    """Return one line of the table."""
    target = "–" if result.target_s is None else f"{result.target_s:g}"
    verdict = "ok" if result.good else f"exit {result.exit_code}" if result.exit_code else "slow"
    planned = result.error or ""
    if result.parallelism is not None:
        keys = ("tp", "pp", "dp", "micro_batch_size", "zero", "recompute", "virtual_stages")
        degrees = " ".join(f"{key} {result.parallelism[key]}" for key in keys)
        planned = f"{degrees}  {result.iteration_time_s:.3f} s  gap {100 * (result.gap or 0.0):.1f} %"
    return f"{result.name:32}{target:>9}{result.wall_s:>9.2f}{result.peak_mib:>10.0f}  {verdict:8}{planned}"


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds TEXT")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in case.name]
    if not arguments.json:
        print(f"{'case':32}{'target s':>9}{'wall s':>9}{'peak MiB':>10}  {'':8}plan")
    results = []
    for case in cases:
        results.append(run(case))
        if not arguments.json:
            print(row(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(result) | {"good": result.good} for result in results], indent=2))
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
