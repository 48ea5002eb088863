"""A process that works on a core and tells what it finds.

It reads a pickled `Task` from stdin and writes pickled messages to stdout: ("found", choice, cost), ("bound", seconds)
or ("done",). Its parent may end it at any time.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

from autoplan.intraop.solve.large.core import Core, Ints

_EXACT_SHARE = 0.7  # of the time for a proof, before the search goes on


@dataclass(frozen=True, eq=False)
class Task:
    """What to do with a core: `exact` or `search`, for how many seconds. number: of the start."""

    core: Core
    kind: str
    seconds: float
    number: int


def run(task: Task, out: BinaryIO) -> None:
    """Work on the task and write messages to `out`."""
    begin, proven = time.monotonic(), False

    def tell(*message: Any) -> None:
        pickle.dump(message, out, protocol=pickle.HIGHEST_PROTOCOL)
        out.flush()

    def found(choice: Ints, cost: float) -> None:
        tell("found", choice, cost)

    def bound(seconds: float) -> None:
        tell("bound", seconds)

    if task.kind == "exact":
        from autoplan.intraop.solve.large.exact import prove

        proven = prove(task.core, task.number, begin + _EXACT_SHARE * task.seconds, found, bound)
    if not proven:
        from autoplan.intraop.solve.large.search import search

        search(task.core, task.number, begin + task.seconds, found, bound)
    tell("done")


def main() -> None:
    """Serve one task of the parent process."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the messages
    run(pickle.load(sys.stdin.buffer), channel)
