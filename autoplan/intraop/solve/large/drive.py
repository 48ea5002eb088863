"""From a problem to its solution: reduce, let worker processes prove and search, keep the best of what they tell."""

from __future__ import annotations

import math
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from autoplan.intraop.arrays import ProblemArrays
from autoplan.intraop.problem import Conflict, Solution, Status, solution
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.reduce import Reduced, reduce_problem
from autoplan.intraop.solve.large.worker import Task

Message = tuple[Any, ...]

_EXACT_PAIRS, _MAYBE_PAIRS = 150_000, 600_000  # edge entries of cores to prove first; to prove beside a search
_DEFAULT_S = 60.0
_LAST_STEPS_S = 1.0  # left to end the workers and to price the choice
_ROUNDING = 1e-12  # a bound this close to the cost, relatively, is equal to it
_COMMAND = (sys.executable, "-c", "from autoplan.intraop.solve.large.worker import main; main()")


def solve_arrays(arrays: ProblemArrays, time_limit: float | None = None, seed: int = 0, jobs: int | None = None,
                 ) -> Solution:
    """Return the best choice found in `time_limit` wall seconds (60 if None), sooner if it is proven optimal.

    jobs: worker processes; as many as there are processors, at most 2, if None. The same seed gives the same starts,
    but how far a search gets depends on the machine.
    """
    begin = time.monotonic()
    limit = _DEFAULT_S if time_limit is None else time_limit
    deadline = begin + limit - min(0.1 * limit, _LAST_STEPS_S)
    reduced = reduce_problem(arrays, begin + 0.4 * limit)
    if isinstance(reduced, Conflict):
        nothing = solution(arrays, None, "infeasible", "large", seconds=time.monotonic() - begin)
        excess = reduced.excess if reduced.start is None else reduced.excess + arrays.tolerance
        return replace(nothing, conflict=replace(reduced, excess=excess))
    found = _Found(reduced)
    if not reduced.core.num_nodes:
        found.take(("found", np.zeros(0, np.int64), reduced.core.constant))
        found.take(("bound", reduced.core.constant))
    else:
        _work(reduced, found, deadline, seed, jobs or min(2, os.cpu_count() or 1))
    choice = None if found.choice is None else reduced.complete(found.choice)
    spent = time.monotonic() - begin
    proven = found.bound >= found.cost - _ROUNDING * abs(found.cost)
    status: Status = "optimal" if proven else "feasible"
    if choice is None:
        status = "infeasible" if found.bound == math.inf else "time_limit"
    return solution(arrays, None if choice is None else choice.tolist(), status, "large", lower_bound=found.bound,
                    seconds=spent)


class _Found:
    """The best of what the workers told so far."""

    def __init__(self, reduced: Reduced) -> None:
        self.reduced = reduced
        self.choice: Ints | None = None
        self.cost, self.bound = math.inf, -math.inf

    def take(self, message: Message) -> bool:
        """Take a message. Returns whether there is nothing left to find."""
        if message[0] == "found" and message[2] < self.cost:
            self.choice, self.cost = message[1], message[2]
        elif message[0] == "bound":
            self.bound = max(self.bound, message[1])
        return self.bound >= self.cost or self.bound == math.inf


def _tasks(reduced: Reduced, seed: int, jobs: int, seconds: float) -> list[Task]:
    pairs = reduced.core.edge_cost.size
    tasks = [Task(reduced.core, "search", seconds, seed + k) for k in range(jobs)]
    if pairs <= _EXACT_PAIRS or (jobs > 1 and pairs <= _MAYBE_PAIRS):
        tasks[0] = replace(tasks[0], kind="exact")
    return tasks


def _work(reduced: Reduced, found: _Found, deadline: float, seed: int, jobs: int) -> None:
    """Run the workers until the deadline, until one proves that nothing is left, or until all are done."""
    messages: queue.Queue[Message] = queue.Queue()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for task in _tasks(reduced, seed, jobs, deadline - time.monotonic()):
            worker = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())
            workers.append(worker)
            threading.Thread(target=_talk, args=(worker, task, messages), daemon=True).start()
        running = len(workers)
        while running and (left := deadline - time.monotonic()) > 0:
            try:
                message = messages.get(timeout=left)
            except queue.Empty:
                return
            running -= message[0] == "done"
            if found.take(message):
                return
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()


def _environment() -> dict[str, str]:
    """Return the environment of a worker: one thread, and this process's module path."""
    path = os.pathsep.join(p for p in sys.path if p)
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}


def _talk(worker: subprocess.Popen[bytes], task: Task, messages: queue.Queue[Message]) -> None:
    """Send a worker its task and pass on what it tells, until it ends."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        with worker.stdin:
            pickle.dump(task, worker.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        while True:
            message = pickle.load(worker.stdout)
            if message[0] == "done":
                break
            messages.put(message)
    except (EOFError, OSError, pickle.UnpicklingError):
        pass
    messages.put(("done",))
