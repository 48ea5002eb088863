"""The search of a core: prices, a rounding that fits, then annealed large-neighbourhood search until the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.anneal import BEST, COST, OVER, anneal
from autoplan.intraop.solve.large.core import Core, Ints
from autoplan.intraop.solve.large.forest import scratch
from autoplan.intraop.solve.large.messages import sweep
from autoplan.intraop.solve.large.model import Model, build_model, cost_of, room_of
from autoplan.intraop.solve.large.prices import priced
from autoplan.intraop.solve.large.relax import Relaxed, dearest, finite, relax

_SLICE_S = 0.2
_RELAX_SHARE, _ROUNDS = 0.13, 1500
_RAISES, _SWEEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 9.0, 20.0, 100.0), 200
_TRIAL_SWEEPS = 40  # after so many sweeps without a rounding that fits prices are raised
_NODES_A_MOVE = 60
_HOT, _COOLING = 5e-5, 1e-3  # first temperature as a share of the cost; last temperature as a share of the first
_LEAN = 0.7  # the share of the time at whose end memory left free is worth nothing any more

Found = Callable[[Ints, float], None]
Bound = Callable[[float], None]


def search(core: Core, number: int, deadline: float, found: Found, bound: Bound) -> None:
    """Search until the monotonic clock passes `deadline`.

    number: of the start, which seeds the generator; even ones begin with a rounding that fits, odd ones with one that
    may have to be repaired. found: called with each better choice that fits, and its cost, at
    most once a slice. bound: called with lower bounds.

    Memory left free is worth its price at first, which falls to nothing: so it isn't hoarded by what moves first.
    """
    model = build_model(core)
    rng = np.random.default_rng(number)
    begin = time.monotonic()
    relaxed = relax(model, _ROUNDS, begin + _RELAX_SHARE * (deadline - begin))
    bound(relaxed.bound + core.constant)
    choice = relaxed.choice.copy()
    if number % 2 == 0:
        choice = fitting(model, relaxed, begin + 2 * _RELAX_SHARE * (deadline - begin))
    most = dearest(model)
    model = finite(model, 2.0 * most)
    room = room_of(model, choice)
    best = choice.copy()
    state = np.array([cost_of(model, choice), np.maximum(-room, 0.0).sum(), most * (1 + 1e-9), 0.0])
    if state[OVER] <= 0.0 and state[COST] < state[BEST]:
        state[BEST] = state[COST]
        found(best.copy(), core.cost(best))
    work = scratch(model, _NODES_A_MOVE)
    hot = _HOT * (min(state[COST], most) + abs(core.constant))
    worth = np.concatenate([[0.0], np.cumsum(relaxed.price)])
    budget, told, start = 100_000, state[BEST], time.monotonic()
    while (now := time.monotonic()) < deadline:
        done = (now - start) / (deadline - start)
        lean = max(0.0, 1.0 - done / _LEAN)
        anneal(model, work, rng, choice, room, relaxed.price, lean * worth, best, state, hot * _COOLING**done,
               _NODES_A_MOVE, budget)
        spent = max(time.monotonic() - now, 1e-6)
        budget = int(min(4 * budget, max(100, budget * min(_SLICE_S, 0.5 * (deadline - now)) / spent), 1 << 40))
        if state[BEST] < told:
            told = state[BEST]
            found(best.copy(), core.cost(best))
        room = room_of(model, choice)
        state[COST], state[OVER] = cost_of(model, choice), np.maximum(-room, 0.0).sum()


def fitting(model: Model, relaxed: Relaxed, deadline: float) -> Ints:
    """Return the cheapest rounding that fits, at the least raised prices where some do; else the last one."""
    soft = finite(model)
    message = np.zeros(int(model.size[np.repeat(np.arange(model.size.size), np.diff(model.arc_at))].sum()))
    choice: Ints = relaxed.choice.copy()
    best, least = choice.copy(), np.inf
    for factor in _RAISES:
        cost: FloatArray = priced(soft, soft.node_cost, factor * relaxed.price)
        for step in range(_SWEEPS):
            sweep(soft, cost, message, choice)
            if step % 5 == 4 and (room_of(model, choice) >= 0.0).all() and (seconds := cost_of(soft, choice)) < least:
                best, least = choice.copy(), seconds
            if time.monotonic() > deadline or (step == _TRIAL_SWEEPS and least == np.inf):
                break
        if least < np.inf or time.monotonic() > deadline:
            return best if least < np.inf else choice
    return choice
