"""The search of a core: prices, a rounding, then annealed large-neighbourhood search until the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from autoplan.intraop.solve.large.anneal import BEST, COST, OVER, anneal
from autoplan.intraop.solve.large.core import Core, Ints
from autoplan.intraop.solve.large.forest import scratch
from autoplan.intraop.solve.large.model import build_model, cost_of, room_of
from autoplan.intraop.solve.large.relax import relax

_SLICE_S = 0.2
_RELAX_SHARE, _ROUNDS = 0.06, 1000
_NODES_A_MOVE = 200
_HOT, _COOLING = 2e-5, 1e-3  # first temperature as a share of the cost; last temperature as a share of the first

Found = Callable[[Ints, float], None]
Bound = Callable[[float], None]


def search(core: Core, number: int, deadline: float, found: Found, bound: Bound) -> None:
    """Search until the monotonic clock passes `deadline`.

    number: of the start, which seeds the generator. found: called with each better choice that fits, and its cost, at
    most once a slice. bound: called with better lower bounds.
    """
    model = build_model(core)
    rng = np.random.default_rng(number)
    begin = time.monotonic()
    relaxed = relax(model, _ROUNDS, begin + _RELAX_SHARE * (deadline - begin))
    bound(relaxed.bound + core.constant)
    choice = relaxed.choice.copy()
    room = room_of(model, choice)
    best = choice.copy()
    state = np.array([cost_of(model, choice), np.maximum(-room, 0.0).sum(), np.inf, 0.0])
    if state[OVER] <= 0.0 and state[COST] < math.inf:
        state[BEST] = state[COST]
        found(best.copy(), state[BEST] + core.constant)
    work = scratch(model, _NODES_A_MOVE)
    hot = _HOT * abs(state[COST] + core.constant) if state[COST] < math.inf else 1.0
    budget, told, start = 100_000, state[BEST], time.monotonic()
    while (now := time.monotonic()) < deadline:
        done = (now - start) / (deadline - start)
        anneal(model, work, rng, choice, room, relaxed.price, best, state, hot * _COOLING**done, _NODES_A_MOVE, budget)
        spent = max(time.monotonic() - now, 1e-6)
        budget = int(min(4 * budget, max(100, budget * min(_SLICE_S, 0.5 * (deadline - now)) / spent), 1 << 40))
        if state[BEST] < told:
            told = state[BEST]
            found(best.copy(), told + core.constant)
        room = room_of(model, choice)
        state[OVER] = np.maximum(-room, 0.0).sum()
