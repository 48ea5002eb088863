"""The public IOPDDL file format (google/iopddl, ASPLOS/EuroSys 2025 contest): JSON, plain or gzipped.

`problem.nodes` {`intervals` [[lo, hi)], `costs` [[…]], `usages` [[…]]}, `problem.edges` {`nodes` [[u, v]], `costs`
[row-major K_u·K_v]}, `problem.usage_limit`. A cost of 10^18 or more is forbidden.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np

from autoplan.errors import InputError
from autoplan.intraop.problem import FloatArray, IntraOpProblem, UsageTerm

FORBIDDEN = 10**18


def read_problem(path: str | Path) -> IntraOpProblem:
    """Read a problem file. Raises InputError, naming the file and key, if it can't be read or isn't in the format."""
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"can't read the problem: {error}", where=str(path)) from None
    try:
        problem = data["problem"]
        nodes, edges = problem["nodes"], problem["edges"]
        costs = tuple(_seconds(c) for c in nodes["costs"])
        pairs = tuple((int(u), int(v)) for u, v in edges["nodes"])
        matrices = tuple(_seconds(c).reshape(costs[u].size, costs[v].size)
                         for (u, v), c in zip(pairs, edges["costs"], strict=True))
        usages = tuple(UsageTerm(i, int(lo), int(hi), np.asarray(usage, dtype=np.float64))
                       for i, ((lo, hi), usage) in enumerate(zip(nodes["intervals"], nodes["usages"], strict=True))
                       if lo < hi)
        limit = problem.get("usage_limit")
        return IntraOpProblem(tuple(map(str, range(len(costs)))), costs, pairs, matrices, usages,
                              math.inf if limit is None else float(limit))
    except KeyError as error:
        raise InputError("the key is missing", where=str(path), key=str(error.args[0])) from None
    except (TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise InputError(f"not an IOPDDL problem: {error}", where=str(path)) from None


def _seconds(costs: list[float]) -> FloatArray:
    values = np.asarray(costs, dtype=np.float64)
    return np.where(values >= FORBIDDEN, np.inf, values)


def write_problem(problem: IntraOpProblem, path: str | Path) -> None:
    """Write a problem file, gzipped if the name ends in `.gz`.

    The format has one interval a node: each further usage term of a node becomes a companion node after the others,
    without cost, tied to it by an edge that allows equal strategies only. So the first N strategies of a solution of
    the file solve the problem.
    """
    costs, pairs, matrices = list(problem.costs), list(problem.edges), list(problem.edge_costs)
    intervals, usages = [[0, 0] for _ in costs], [np.zeros(c.size) for c in costs]
    used: set[int] = set()
    for term in problem.usages:
        size = problem.costs[term.node].size
        if term.node not in used:
            used.add(term.node)
            intervals[term.node], usages[term.node] = [term.start, term.end], term.usage
            continue
        pairs.append((term.node, len(costs)))
        matrices.append(np.where(np.eye(size) > 0, 0.0, np.inf))
        costs.append(np.zeros(size))
        intervals.append([term.start, term.end])
        usages.append(term.usage)
    body: dict[str, object] = {
        "nodes": {"intervals": intervals, "costs": [_numbers(c) for c in costs],
                  "usages": [_numbers(u) for u in usages]},
        "edges": {"nodes": [list(pair) for pair in pairs], "costs": [_numbers(m.ravel()) for m in matrices]}}
    if math.isfinite(problem.limit):
        body["usage_limit"] = _numbers(np.array([problem.limit]))[0]
    path = Path(path)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        json.dump({"problem": body}, file)


def _numbers(values: FloatArray) -> list[int | float]:
    return [FORBIDDEN if math.isinf(v) else int(v) if v.is_integer() else v for v in values.tolist()]
