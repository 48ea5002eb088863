"""The public IOPDDL file format (google/iopddl, ASPLOS/EuroSys 2025 contest): JSON, plain or gzipped.

`problem.nodes` {`intervals` [[lo, hi)], `costs` [[…]], `usages` [[…]]}, `problem.edges` {`nodes` [[u, v]], `costs`
[row-major K_u·K_v]}, `problem.usage_limit`. Costs and usages are never negative (the contest's are whole numbers, here
they may be fractions); a cost of 10^18 or more is forbidden. An edge connects two nodes.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autoplan.errors import InputError
from autoplan.intraop.arrays import IntArray, ProblemArrays, from_problem, offsets, to_problem
from autoplan.intraop.problem import FloatArray, IntraOpProblem

FORBIDDEN = 10**18
_AMOUNT = "a finite number of at least 0"
_FAR = 2**62  # ends of intervals: their differences are 64 bits
_SHOWN = 60  # characters of a value in an error


def read_problem(path: str | Path) -> IntraOpProblem:
    """Read a problem file. Raises InputError, naming the file and key, if it can't be read or isn't in the format."""
    return to_problem(read_arrays(path))


def read_arrays(path: str | Path) -> ProblemArrays:
    """Read a problem file as flat arrays: about 100 MB of JSON in 2 s and 1 GB. Raises as `read_problem` does."""
    path = Path(path)
    with _no_collection():
        return _arrays(_Part(str(path), "", _load(path)))


def _load(path: Path) -> object:
    """Return what the JSON file holds. Raises InputError."""
    where = str(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read().decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError("can't be read: not a whole gzip file", where=where) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", where=where) from None
    except ValueError:
        raise InputError("not a UTF-8 text file", where=where) from None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})", where=where) from None
    except RecursionError:
        raise InputError("not JSON that can be read: nested too deeply", where=where) from None
    except ValueError:
        raise InputError("not JSON that can be read: NaN, Infinity or a number of thousands of digits",
                         where=where) from None


def _no_constant(name: str) -> float:
    """Refuse NaN and Infinity, which Python's JSON knows and the standard doesn't. Raises ValueError."""
    raise ValueError(name)


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


@dataclass(frozen=True)
class _Part:
    """A value in the file `where`; `key` is its dotted path."""

    where: str
    key: str
    value: Any

    def __getitem__(self, name: str) -> _Part:
        """Return a member. Raises InputError where this isn't an object or has no such key."""
        if not isinstance(self.value, dict):
            raise self.fault("not an IOPDDL problem", self.value, "a JSON object")
        key = f"{self.key}.{name}".lstrip(".")
        if name not in self.value:
            raise InputError("this key is missing", where=self.where, key=key)
        return _Part(self.where, key, self.value[name])

    def fault(self, what: str, found: object, allowed: str, *at: int) -> InputError:
        """Return the error of this value, or of the one inside it whose indices are `at`."""
        shown: object = "null" if found is None else found
        if len(text := repr(shown)) > _SHOWN:
            shown = text[:_SHOWN - 1] + "…"
        return InputError(what, where=self.where, key=self.key + "".join(f"[{i}]" for i in at) or None, found=shown,
                          allowed=allowed)

    def lists(self, count: int, owner: str) -> list[list[Any]]:
        """Return the lists in this list, one a node or an edge (`owner`), of which there are `count`."""
        if not isinstance(self.value, list):
            raise self.fault("not an IOPDDL problem", self.value, "a list of lists")
        if not set(map(type, self.value)) <= {list}:
            i, found = next((i, x) for i, x in enumerate(self.value) if not isinstance(x, list))
            raise self.fault("not an IOPDDL problem", found, "a list", i)
        if len(self.value) != count:
            raise self.fault(f"not one list for every {owner}", len(self.value), str(count))
        return self.value


def _arrays(data: _Part) -> ProblemArrays:
    problem = data["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    costs, links, spans = nodes["costs"], edges["nodes"], nodes["intervals"]
    count, num_edges = (len(part.value) if isinstance(part.value, list) else 0 for part in (costs, links))
    node_at, node_cost = _flat(costs, count, "node")
    sizes = np.diff(node_at)
    if (sizes < 1).any():
        raise costs.fault("a node without strategies", [], "at least one cost", int(sizes.argmin()))
    pairs, intervals = _pairs(links, num_edges, "edge"), _pairs(spans, count, "node")
    _refuse(links, (pairs.min(axis=1) < 0) | (pairs.max(axis=1) >= count), "no such node",
            f"two of the {count} nodes, counted from 0")
    _refuse(links, pairs[:, 0] == pairs[:, 1], "an edge from a node to itself", "two different nodes")
    _refuse(spans, intervals[:, 0] > intervals[:, 1], "ends before it starts", "[start, end], start ≤ end")
    edge_at, edge_cost = _flat(edges["costs"], num_edges, "edge", sizes[pairs[:, 0]] * sizes[pairs[:, 1]])
    term_at, usage = _flat(nodes["usages"], count, "node", sizes)
    return ProblemArrays(node_at, _seconds(node_cost), pairs[:, 0].copy(), pairs[:, 1].copy(), edge_at,
                         _seconds(edge_cost), np.arange(count), intervals[:, 0].copy(), intervals[:, 1].copy(),
                         term_at, usage, _limit(problem))


def _limit(problem: _Part) -> float:
    """Return the limit, inf where there is none."""
    if problem.value.get("usage_limit") is None:
        return math.inf
    limit = problem["usage_limit"]
    if not _is_amount(limit.value):
        raise limit.fault("not a limit", limit.value, _AMOUNT)
    return float(limit.value)


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max  # type: ignore[operator]


def _flat(part: _Part, count: int, owner: str, sizes: IntArray | None = None) -> tuple[IntArray, FloatArray]:
    """Return the lists of numbers of this part, one an `owner` and of these sizes, flat: where each begins, and all."""
    lists = part.lists(count, owner)
    at = offsets(list(map(len, lists)))
    if sizes is not None and (wrong := np.diff(at) != sizes).any():
        i = int(wrong.argmax())
        raise part.fault(f"not one number for every choice of the {owner}", len(lists[i]), str(sizes[i]), i)
    fine = set(map(type, itertools.chain.from_iterable(lists))) <= {int, float}
    try:
        values = np.fromiter(itertools.chain.from_iterable(lists), np.float64, int(at[-1])) if fine else np.zeros(0)
    except OverflowError:
        fine = False
    if not fine or not ((values >= 0) & (values < np.inf)).all():
        i, k = next((i, k) for i, one in enumerate(lists) for k, x in enumerate(one) if not _is_amount(x))
        raise part.fault("not a cost or a usage", lists[i][k], _AMOUNT, i, k)
    return at, values


def _pairs(part: _Part, count: int, owner: str) -> IntArray:
    """Return the pairs of whole numbers, one an `owner`: [count, 2]."""
    for i, pair in enumerate(lists := part.lists(count, owner)):
        if len(pair) != 2 or not all(type(x) is int and -_FAR <= x <= _FAR for x in pair):
            raise part.fault("not a pair", pair, "two whole numbers of 64 bits", i)
    return np.array(lists, dtype=np.int64).reshape(-1, 2)


def _refuse(part: _Part, bad: npt.NDArray[np.bool_], what: str, allowed: str) -> None:
    """Raise InputError for the first pair that is `bad`, if any."""
    if bad.any():
        i = int(bad.argmax())
        raise part.fault(what, part.value[i], allowed, i)


def _seconds(costs: FloatArray) -> FloatArray:
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def write_problem(problem: IntraOpProblem | ProblemArrays, path: str | Path) -> None:
    """Write a problem file, gzipped if the name ends in `.gz`.

    The format has one interval a node: each further usage term of a node becomes a companion node after the others,
    without cost, tied to it by an edge that allows equal strategies only. So the first N strategies of a solution of
    the file solve the problem. It has no loops either: their diagonals are added to the nodes' costs.
    """
    arrays = problem if isinstance(problem, ProblemArrays) else from_problem(problem)
    sizes: list[int] = np.diff(arrays.node_at).tolist()
    node_cost, loops = arrays.node_cost.copy(), arrays.edge_u == arrays.edge_v
    for edge in np.flatnonzero(loops).tolist():
        node = arrays.edge_u[edge]
        diagonal = arrays.edge_cost[arrays.edge_at[edge]:arrays.edge_at[edge + 1]:sizes[node] + 1]
        node_cost[arrays.node_at[node]:arrays.node_at[node + 1]] += diagonal
    costs = _lists(node_cost, arrays.node_at)
    pairs = np.stack([arrays.edge_u, arrays.edge_v], axis=1)[~loops].tolist()
    matrices = [m for m, loop in zip(_lists(arrays.edge_cost, arrays.edge_at), loops, strict=True) if not loop]
    intervals = [[0, 0] for _ in sizes]
    usages: list[list[int | float]] = [[0] * size for size in sizes]
    used: set[int] = set()
    ends = np.maximum(arrays.term_start, arrays.term_end)
    terms = zip(arrays.term_node.tolist(), arrays.term_start.tolist(), ends.tolist(),
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
