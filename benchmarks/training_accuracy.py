"""Price every usable row of a CSV of published training measurements, and say how wrong we are.

    python benchmarks/training_accuracy.py [CSV] [--groups FILE] [--json|--markdown] [--source ID] [--rows OUT.csv]

CSV: columns as in the data set's README; default ../shared/reference/training/training.csv next to the repository.
What a source ran beyond its rows is stated in benchmarks/training/sources.yaml. For each source: rows, n rows with
price and step time, MAPE, median signed error and rank correlation of step times, MAPE of one constant utilisation (per
source and precision, of the other rows), the same for memory, OOM rows and how many are called so, rows that ran and
how many are called OOM, and the rank correlation and top-1 regret of its ranking groups. Flagged rows stand apart;
repeats count once. Rows without a price are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from training import results, tables
from training.rows import read

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "reference" / "training"


def main() -> int:
    """Price the rows and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("csv", nargs="?", type=Path, default=DATA / "training.csv", metavar="CSV")
    parser.add_argument("--groups", type=Path, metavar="FILE",
                        help="ranking groups; default: ranking_groups.csv beside CSV, if there is one")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print the table of docs/accuracy.md")
    parser.add_argument("--source", metavar="ID", help="only this source")
    parser.add_argument("--rows", type=Path, metavar="OUT.csv", help="write a line a row with all terms")
    arguments = parser.parse_args()
    if not arguments.csv.exists():
        print(f"skipped: no {arguments.csv}", file=sys.stderr)
        return 0
    rows = [row for row in read(arguments.csv) if arguments.source in (None, row.source_id)]
    file = arguments.groups or arguments.csv.with_name("ranking_groups.csv")
    members = results.read_groups(file) if arguments.groups or file.exists() else {}
    outcome = results.price_all(rows)
    found = results.report(rows, outcome, results.groups(outcome.clean, members))
    if arguments.rows:
        results.write_rows(arguments.rows, outcome)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(tables.markdown(found) if arguments.markdown else tables.lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
