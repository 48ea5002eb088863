"""Reads the collectives of a compiled program off its optimised HLO text.

Two habits of XLA's CPU backend are undone. It never forms a reduce-scatter: it emits an all-reduce of which each device
keeps a slice, which is counted as the reduce-scatter that the GPU and TPU backends make of it. And it runs collectives
inside loops, which are counted as often as the loop runs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoplan.sharding import Collective

Sent = dict[tuple[Collective, int], float]

KINDS = {
    "all-reduce": Collective.ALL_REDUCE, "all-gather": Collective.ALL_GATHER,
    "reduce-scatter": Collective.REDUCE_SCATTER, "all-to-all": Collective.ALL_TO_ALL,
    "collective-permute": Collective.PERMUTE,
}
BITS = {"pred": 8, "token": 0, "opaque": 0}  # other types end in their bits: f32, s8, bf16, f8e4m3fn
SAME = ("bitcast", "copy", "convert", "reshape", "transpose", "get-tuple-element", "slice")  # the same elements or some

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) (?:\(.*\) -> .*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<op>[\w\-]+)\((?P<rest>.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')


def wire_bytes(kind: Collective, group: int, nbytes: float) -> float:
    """Return the bytes a device sends in a bandwidth-optimal collective over `group` devices.

    nbytes: of the whole tensor for gathers and reductions, of what one device holds for all-to-all and permute.
    """
    if kind is Collective.PERMUTE:
        return nbytes
    return (2.0 if kind is Collective.ALL_REDUCE else 1.0) * (group - 1) / group * nbytes


def sent(text: str) -> Sent:
    """Return the bytes that each device sends while the program runs once, by collective and group size."""
    computations, entry = _parse(text)
    times = _times(computations, entry)
    result: Sent = defaultdict(float)
    for name, computation in computations.items():
        for one in computation.values():
            for kind, group, nbytes in _collectives(one, computation, computations) if times[name] else ():
                result[kind, group] += times[name] * wire_bytes(kind, group, nbytes)
    return dict(result)


@dataclass
class _Instruction:
    """One line. users: instructions of the same computation that read it."""

    name: str
    type: str
    op: str
    rest: str
    users: list[_Instruction] = field(default_factory=list)

    @property
    def operands(self) -> list[str]:
        """Names of the operands, in order."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])

    @property
    def sizes(self) -> list[float]:
        """Bytes of the result, or of each part of a tuple."""
        return [math.prod(int(n) for n in dims.split(",") if n) * _bits(dtype) / 8
                for dtype, dims in _SHAPE.findall(self.type)]


_Computation = dict[str, _Instruction]


def _bits(dtype: str) -> int:
    found = re.match(r"[a-z]+(\d+)", dtype)
    return BITS[dtype] if dtype in BITS or found is None else int(found[1])


def _parse(text: str) -> tuple[dict[str, _Computation], str]:
    """Return the computations of an HLO module by name, and the entry's name."""
    computations: dict[str, _Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            if found := _COMPUTATION.match(line):
                current = computations[found["name"]] = {}
                entry = found["name"] if found["entry"] else entry
        elif line.startswith("}"):
            current = None
        elif found := _INSTRUCTION.match(line):
            current[found["name"]] = _Instruction(found["name"], found["type"], found["op"], found["rest"])
    for computation in computations.values():
        for one in computation.values():
            for operand in one.operands:
                if operand in computation:
                    computation[operand].users.append(one)
    return computations, entry


def _times(computations: Mapping[str, _Computation], entry: str) -> dict[str, int]:
    """Return how often each computation runs: the trip counts of the loops around it."""
    times: dict[str, int] = defaultdict(int)

    def run(name: str, count: int) -> None:
        times[name] += count
        for one in computations[name].values():
            trips = _TRIPS.search(one.rest)
            for called in _CALLED.findall(one.rest):
                run(called, count * (int(trips[1]) if trips else 1))

    run(entry, 1)
    return times


def _collectives(one: _Instruction, around: _Computation,
                 computations: Mapping[str, _Computation]) -> Iterator[tuple[Collective, int, float]]:
    """Yield what an instruction sends: collective, group size, bytes; a combined one may be of two kinds."""
    kind, group = KINDS.get(one.op.removesuffix("-start")), _group(one.rest)
    if kind is None or group == 1:
        return
    total = sum(one.sizes)
    if kind is Collective.REDUCE_SCATTER:
        total *= group
    scattered = _scattered(one, computations) if kind is Collective.ALL_REDUCE else 0.0
    if scattered:
        yield Collective.REDUCE_SCATTER, group, scattered
    if total > scattered:
        yield kind, group, total - scattered


def _group(rest: str) -> int:
    """Return the devices in one group, in any of the ways XLA writes groups down."""
    if "source_target_pairs=" in rest:
        return 2
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{([^}]*)\}", rest):  # mesh['a'=2,'b'=4] {'b'}
        sizes = dict(re.findall(r"'([\w.\-]+)'=(\d+)", found[1]))
        axes = re.findall(r"'([\w.\-]+)'(?::\(\d+\)(\d+))?", found[2])  # 'a':(1)2 is a part of an axis
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", rest):
        return int(found[1])
    found = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
    return len(found[1].split(",")) if found else 1


def _scattered(one: _Instruction, computations: Mapping[str, _Computation]) -> float:
    """Return the bytes of an all-reduce's results of which every device uses a slice alone."""
    group = _group(one.rest)
    if not one.type.startswith("("):
        return sum(one.sizes) if _only_sliced(one, group, computations) else 0.0
    parts = [(user, re.search(r"index=(\d+)", user.rest)) for user in one.users if user.op == "get-tuple-element"]
    return sum(one.sizes[int(at[1])] for user, at in parts if at and _only_sliced(user, group, computations))


def _only_sliced(one: _Instruction, group: int, computations: Mapping[str, _Computation]) -> bool:
    """Whether all that is read of a result is a slice, one of as many as the group has devices; in fusions too."""
    if not one.users:
        return False
    for user in one.users:
        if user.op == "dynamic-slice" and user.operands[0] == one.name and user.sizes[0] * group <= sum(one.sizes):
            continue
        if user.op in SAME:
            if not _only_sliced(user, group, computations):
                return False
        elif user.op in ("fusion", "call"):
            called = _CALLED.search(user.rest)
            body = computations[called[1]] if called else {}
            inner = [parameter for parameter in body.values() if parameter.op == "parameter"
                     and user.operands[int(parameter.rest.split(")")[0])] == one.name]
            if not inner or not all(_only_sliced(parameter, group, computations) for parameter in inner):
                return False
        else:
            return False
    return True
