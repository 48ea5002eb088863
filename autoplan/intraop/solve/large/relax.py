"""The Lagrangian bound of a core, and prices on memory, by message passing under prices that follow the rounding."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.messages import sweep
from autoplan.intraop.solve.large.model import Model, room_of
from autoplan.intraop.solve.large.prices import adjust, priced

_STEP, _SLOWING = 1.5, 40.0  # prices change by at most e^±1.5 at first; the step halves after so many rounds
_FORGET = 0.05  # weight of the newest rounding in the average that the prices follow, in the long run
_LEAST = 1e-7  # no price falls below this share of what the price would be if memory cost as much as all else


@dataclass(frozen=True, eq=False)
class Relaxed:
    """bound: seconds that no choice can beat, without the core's constant. price [T]: the prices that prove it.
    choice: the rounding under them (it may exceed limits).
    """

    bound: float
    price: FloatArray
    choice: Ints


def finite(model: Model, great: float | None = None) -> Model:
    """Return the model with forbidden costs replaced by `great`, a hundred times the greatest cost if None.

    Bounds of it are bounds of the model.
    """
    nodes, arcs = model.node_cost, model.arc_cost
    if great is None:
        great = 100.0 * max(float(np.max(c, where=np.isfinite(c), initial=0.0)) for c in (nodes, arcs)) or 1.0
    return model._replace(node_cost=np.where(np.isfinite(nodes), nodes, great),
                          arc_cost=np.where(np.isfinite(arcs), arcs, great))


def dearest(model: Model) -> float:
    """Return seconds that no choice without forbidden costs exceeds."""
    total = 0.0
    for costs, at in ((model.node_cost, model.node_at), (model.arc_cost, model.arc_cost_at)):
        if costs.size:
            total += float(np.maximum.reduceat(np.where(np.isfinite(costs), np.abs(costs), 0.0), at).sum())
    return total or 1.0


def relax(model: Model, rounds: int, deadline: float) -> Relaxed:
    """Adjust prices for so many rounds of message passing, or until the monotonic clock passes `deadline`."""
    soft = finite(model)
    message = np.zeros(int(model.size[np.repeat(np.arange(model.size.size), np.diff(model.arc_at))].sum()))
    choice = np.zeros(model.size.size, np.int64)
    bound = sweep(soft, soft.node_cost, message, choice)
    best = Relaxed(bound, np.zeros(model.slack.size), choice.copy())
    if not model.slack.size:
        for _ in range(rounds):
            bound = max(bound, sweep(soft, soft.node_cost, message, choice))
            return Relaxed(bound, best.price, choice)
    unit = max(abs(bound), 1.0) / max(float(model.slack.sum()), 1.0)
    price, room = np.full(model.slack.size, 0.1 * unit), np.zeros(model.slack.size)
    for step in range(rounds):
        cost = priced(soft, soft.node_cost, price)
        bound = sweep(soft, cost, message, choice) - float((price * model.slack).sum())
        if bound > best.bound:
            best = Relaxed(bound, price.copy(), choice.copy())
        weight = max(2.0 / (step + 2.0), _FORGET)
        room = (1.0 - weight) * room + weight * room_of(model, choice)
        adjust(price, room, model.slack, _STEP / (1.0 + step / _SLOWING), _LEAST * unit)
        if time.monotonic() > deadline:
            break
    return best
