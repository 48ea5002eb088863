"""Proving a core's optimum: a known choice prunes, pruning reduces, and a MILP solves what is left."""

from __future__ import annotations

import math
import time

import numpy as np

from autoplan.intraop.problem import Conflict
from autoplan.intraop.solve.large.core import Core, Ints, Times
from autoplan.intraop.solve.large.milp import solve_core
from autoplan.intraop.solve.large.model import build_model
from autoplan.intraop.solve.large.prune import prune
from autoplan.intraop.solve.large.reduce import Reduced, reduce_core
from autoplan.intraop.solve.large.relax import relax
from autoplan.intraop.solve.large.search import Bound, Found, search

_SEARCH_SHARE, _SEARCH_S, _SEARCH_S_A_PAIR = 0.1, 0.05, 5e-5  # how long the first search may take
_LONG_SHARE = 0.3  # the same where the first found nothing
_ROUNDING = 1e-12  # a bound this close to the cost, relatively, is equal to it
_ROUNDS = 400
_CLOSE, _REACH = 0.005, 0.12  # relative gap that needs no target; where in the gap the target lies


def prove(core: Core, number: int, deadline: float, found: Found, bound: Bound) -> bool:
    """Find a core's optimum and prove it, as far as the monotonic clock's `deadline` allows.

    The arguments are those of `search`. An optimum's cost is told as the bound, too; where nothing fits, inf. Returns
    whether either is proven.

    While the best known cost is far from the bound, a target between them prunes in its place: either a choice that
    costs no more turns up, which is the optimum then, or the target is a bound.
    """
    known, low = math.inf, -math.inf

    def both(choice: Ints, cost: float) -> None:
        nonlocal known
        if cost < known:
            known = cost
            found(choice, cost)

    def raised(seconds: float) -> None:
        nonlocal low
        if seconds > low:
            low = seconds
            bound(seconds)

    begin = time.monotonic()
    brief = min(_SEARCH_SHARE * (deadline - begin), _SEARCH_S + _SEARCH_S_A_PAIR * core.edge_cost.size)
    search(core, number, begin + brief, both, raised)
    if known == math.inf:
        search(core, number, begin + _LONG_SHARE * (deadline - begin), both, raised)
    sure, reach = False, _REACH
    while low < known or not sure:
        sure = reach >= 1.0 or known == math.inf or known - low <= _CLOSE * abs(known)
        target = known if sure else low + reach * (known - low)
        reach *= 4.0
        small = _pruned(core, target, deadline, raised)
        if small is None:
            raised(target)
            continue
        outcome = solve_core(small.core, deadline)
        if outcome.choice is not None:
            full = small.complete(outcome.choice)
            both(full, core.cost(full))
        raised(min(outcome.bound, target))
        if time.monotonic() > deadline or (sure and low < known):
            break
    return low >= known - _ROUNDING * abs(known)


def _pruned(core: Core, cost: float, deadline: float, bound: Bound) -> Reduced | None:
    """Prune and reduce until little is gained. Returns None if no choice is cheaper than `cost`."""
    identity = Reduced(core, np.arange(core.num_nodes), Times(np.arange(core.slack.size), np.arange(core.slack.size)),
                       np.zeros(0, np.int32), core.num_nodes)
    found = identity
    while cost < math.inf and time.monotonic() < deadline and found.core.num_nodes:
        model = build_model(found.core)
        relaxed = relax(model, _ROUNDS, time.monotonic() + 0.1 * (deadline - time.monotonic()))
        bound(min(cost, relaxed.bound + found.core.constant))
        pruned = prune(found.core, model, relaxed.price, cost)
        if (left := int(np.isfinite(pruned.node_cost).sum())) == found.core.node_cost.size:
            break
        smaller = reduce_core(pruned, Times(np.arange(core.slack.size), np.arange(core.slack.size)), deadline)
        if isinstance(smaller, Conflict):
            return None
        done = left > 0.9 * found.core.node_cost.size
        found = found.then(smaller)
        if done:
            break
    return found
