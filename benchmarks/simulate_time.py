"""Time the simulator on pipelines of equal stages with overlapped sends, the largest 100 stages × 1,000 micro-batches.

    python benchmarks/simulate_time.py [--json]

Seconds are those of the processor, so that other programs on the machine don't count. Exit code 1 where one schedule
without virtual stages takes more than `TARGET_S` on the largest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from autoplan.simulate import Pipeline, Send, Work, replay
from autoplan.workload import Schedule

SIZES = ((8, 64), (16, 512), (100, 1000))
CHUNKS = {Schedule.INTERLEAVED: 2, Schedule.ZB_V: 2}
TARGET_S = 1.5


def pipeline(schedule: Schedule, stages: int, micro_batches: int) -> Pipeline:
    """Return stages of a unit each; a send takes a tenth of one, over a link that both neighbours' tensors share."""
    sends = {(i, j % stages): Send(0.1, i) for i in range(stages) for j in (i - 1, i + 1)}
    v = CHUNKS.get(schedule, 1)
    micro_batches += -micro_batches % stages if schedule is Schedule.INTERLEAVED else 0
    return Pipeline(schedule, micro_batches, v, (Work(1.0, 1.2, 0.8),) * stages, sends, waits=False)


def main() -> int:
    """Print a row a case; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    rows: list[dict[str, Any]] = []
    as_json = parser.parse_args().json
    for stages, micro_batches in SIZES:
        for schedule in Schedule:
            asked = pipeline(schedule, stages, micro_batches)
            begin = time.process_time()
            replay(asked)
            took = time.process_time() - begin
            rows.append({"stages": stages, "micro_batches": asked.num_micro_batches, "schedule": schedule.value,
                         "pieces": asked.pieces, "seconds": took})
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'stages':>6} {'micro-batches':>13} {'schedule':>12} {'pieces':>8} {'seconds':>8} {'µs a piece':>10}")
        for row in rows:
            each = 1e6 * row["seconds"] / row["pieces"]
            print(f"{row['stages']:>6} {row['micro_batches']:>13} {row['schedule']:>12} {row['pieces']:>8,} "
                  f"{row['seconds']:>8.3f} {each:>10.2f}")
    largest = [row for row in rows if (row["stages"], row["schedule"] in CHUNKS) == (SIZES[-1][0], False)]
    return int(any(row["seconds"] > TARGET_S for row in largest))


if __name__ == "__main__":
    sys.exit(main())
