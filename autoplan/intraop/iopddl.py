"""The public IOPDDL file format (google/iopddl, ASPLOS/EuroSys 2025 contest): JSON, plain or gzipped.

`problem.nodes` {`intervals` [[lo, hi)], `costs` [[…]], `usages` [[…]]}, `problem.edges` {`nodes` [[u, v]], `costs`
[row-major K_u·K_v]}, `problem.usage_limit`. A cost of 10^18 or more is forbidden.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from autoplan.errors import InputError
from autoplan.intraop.arrays import IntArray, ProblemArrays, from_problem, offsets, to_problem
from autoplan.intraop.problem import FloatArray, IntraOpProblem

FORBIDDEN = 10**18


def read_problem(path: str | Path) -> IntraOpProblem:
    """Read a problem file. Raises InputError, naming the file and key, if it can't be read or isn't in the format."""
    return to_problem(read_arrays(path))


def read_arrays(path: str | Path) -> ProblemArrays:
    """Read a problem file as flat arrays: about 100 MB of JSON in 2 s and 1 GB. Raises as `read_problem` does."""
    path = Path(path)
    with _no_collection():
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                data = json.loads(file.read())
        except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"can't read the problem: {error}", where=str(path)) from None
        try:
            return _arrays(data["problem"])
        except KeyError as error:
            raise InputError("the key is missing", where=str(path), key=str(error.args[0])) from None
        except (TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
            raise InputError(f"not an IOPDDL problem: {error}", where=str(path)) from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector away from millions of numbers that form no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _arrays(problem: dict[str, Any]) -> ProblemArrays:
    nodes, edges = problem["nodes"], problem["edges"]
    node_at, node_cost = _flat(nodes["costs"])
    edge_at, edge_cost = _flat(edges["costs"])
    term_at, usage = _flat(nodes["usages"])
    pairs, intervals = _pairs(edges["nodes"]), _pairs(nodes["intervals"])
    if len(pairs) != edge_at.size - 1:
        raise ValueError(f"{len(pairs)} edges with {edge_at.size - 1} cost lists")
    if not len(intervals) == term_at.size - 1 == node_at.size - 1:
        raise ValueError(f"{len(intervals)} intervals and {term_at.size - 1} usages for {node_at.size - 1} nodes")
    limit = problem.get("usage_limit")
    return ProblemArrays(node_at, _seconds(node_cost), pairs[:, 0].copy(), pairs[:, 1].copy(), edge_at,
                         _seconds(edge_cost), np.arange(len(intervals)), intervals[:, 0].copy(), intervals[:, 1].copy(),
                         term_at, usage, math.inf if limit is None else float(limit))


def _flat(lists: Sequence[Sequence[float]]) -> tuple[IntArray, FloatArray]:
    at = offsets(list(map(len, lists)))
    return at, np.fromiter(itertools.chain.from_iterable(lists), np.float64, int(at[-1]))


def _pairs(pairs: Sequence[Sequence[int]]) -> IntArray:
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("not every edge or interval is a pair")
    numbers = list(itertools.chain.from_iterable(pairs))
    if not all(type(number) is int for number in numbers):
        raise ValueError("an edge or interval isn't a pair of whole numbers")
    return np.array(numbers, dtype=np.int64).reshape(-1, 2)


def _seconds(costs: FloatArray) -> FloatArray:
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def write_problem(problem: IntraOpProblem | ProblemArrays, path: str | Path) -> None:
    """Write a problem file, gzipped if the name ends in `.gz`.

    The format has one interval a node: each further usage term of a node becomes a companion node after the others,
    without cost, tied to it by an edge that allows equal strategies only. So the first N strategies of a solution of
    the file solve the problem.
    """
    arrays = problem if isinstance(problem, ProblemArrays) else from_problem(problem)
    sizes: list[int] = np.diff(arrays.node_at).tolist()
    costs = _lists(arrays.node_cost, arrays.node_at)
    pairs = np.stack([arrays.edge_u, arrays.edge_v], axis=1).tolist()
    matrices = _lists(arrays.edge_cost, arrays.edge_at)
    intervals = [[0, 0] for _ in sizes]
    usages: list[list[int | float]] = [[0] * size for size in sizes]
    used: set[int] = set()
    terms = zip(arrays.term_node.tolist(), arrays.term_start.tolist(), arrays.term_end.tolist(),
                _lists(arrays.usage, arrays.term_at), strict=True)
    for node, start, end, usage in terms:
        if node not in used:
            used.add(node)
            intervals[node], usages[node] = [start, end], usage
            continue
        pairs.append([node, len(costs)])
        matrices.append([0 if s == t else FORBIDDEN for s in range(sizes[node]) for t in range(sizes[node])])
        costs.append([0] * sizes[node])
        intervals.append([start, end])
        usages.append(usage)
    body: dict[str, object] = {"nodes": {"intervals": intervals, "costs": costs, "usages": usages},
                               "edges": {"nodes": pairs, "costs": matrices}}
    if math.isfinite(arrays.limit):
        body["usage_limit"] = _numbers(np.array([arrays.limit]))[0]
    path = Path(path)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"problem": body}))


def _lists(values: FloatArray, at: IntArray) -> list[list[int | float]]:
    numbers = _numbers(values)
    return [numbers[a:b] for a, b in itertools.pairwise(at.tolist())]


def _numbers(values: FloatArray) -> list[int | float]:
    return [FORBIDDEN if math.isinf(v) else int(v) if v.is_integer() else v for v in values.tolist()]
