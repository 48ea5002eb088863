"""How far schedules' closed forms are from a replay where stages are unequal, without sends.

    python benchmarks/schedule_error.py [--cases N] [--json]

Random stages, always the same ones, 2 to 8 of them, from 2p − 1 micro-batches on. `one factor`: forward pass, input's
gradient and weights' gradient (1, 1.0 to 1.4, 0.6 to 1.0) of all stages differ by one factor a stage, up to 1.5.
`independent`: each of a stage's three parts is 0.3 to 1. Printed: replay / closed form.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from statistics import median

from autoplan.cost.schedules import pipeline_time
from autoplan.simulate import Pipeline, Work, replay
from autoplan.workload import Schedule

CHUNKS = {Schedule.INTERLEAVED: 2, Schedule.ZB_V: 2}
Parts = list[tuple[float, float, float]]


def stages(source: random.Random, kind: str) -> Parts:
    """Return forward, input's gradient and weights' gradient of each stage."""
    count = source.randint(2, 8)
    if kind == "independent":
        return [(source.uniform(0.3, 1), source.uniform(0.3, 1), source.uniform(0.3, 1)) for _ in range(count)]
    b, w = source.uniform(1.0, 1.4), source.uniform(0.6, 1.0)
    return [(factor, factor * b, factor * w) for factor in (source.uniform(1, 1.5) for _ in range(count))]


def ratios(schedule: Schedule, kind: str, cases: int) -> Iterator[float]:
    """Yield replay / closed form of each case."""
    source, v = random.Random(0), CHUNKS.get(schedule, 1)
    for _ in range(cases):
        parts = stages(source, kind)
        p = len(parts)
        m = source.randint(2, 6) * p
        took = replay(Pipeline(schedule, m, v, tuple(Work(*part) for part in parts), {})).step_time
        yield took / pipeline_time(schedule, [sum(part) for part in parts], m, v, forward=[part[0] for part in parts],
                                   weight=[part[2] for part in parts])


def main() -> None:
    """Print a row for each schedule and kind of stages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=1000, help="stages drawn for each row (1000)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    asked = parser.parse_args()
    rows = []
    for kind in ("one factor", "independent"):
        for schedule in Schedule:
            found = list(ratios(schedule, kind, asked.cases))
            rows.append({"stages": kind, "schedule": schedule.value, "least": min(found), "median": median(found),
                         "greatest": max(found)})
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'stages':>12} {'schedule':>12} {'least':>7} {'median':>7} {'greatest':>8}")
    for row in rows:
        print(f"{row['stages']:>12} {row['schedule']:>12} {row['least']:>7.3f} {row['median']:>7.3f} "
              f"{row['greatest']:>8.3f}")


if __name__ == "__main__":
    main()
