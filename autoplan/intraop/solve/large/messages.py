"""Convergent message passing (TRW-S, Kolmogorov 2006): a lower bound without memory limits, and a rounding.

The vector that arc a carries is what its far end tells its own node about each own strategy. A sweep visits the nodes
in order and back; the bound never falls from sweep to sweep.
"""

from __future__ import annotations

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.jit import kernel, part
from autoplan.intraop.solve.large.model import Model


@kernel
def sweep(model: Model, cost: FloatArray, message: FloatArray, choice: Ints) -> float:
    """Pass messages forward and backward once, and round. cost: by strategy (finite; prices included).

    `message` is updated; `choice` receives, node by node, the best strategy given those chosen before and the messages
    of those that come after. Returns the lower bound.
    """
    bound = 0.0
    for turn in range(2):
        bound = 0.0
        for step in range(model.size.size):
            node = step if turn == 0 else model.size.size - 1 - step
            belief = beliefs(model, cost, message, node)
            if turn == 0:
                round_node(model, cost, message, choice, node)
            bound += to_zero(belief)
            bound += send(model, belief, message, node, turn == 0)
    return bound


@part
def to_zero(values: FloatArray) -> float:
    """Subtract the least value from all, and return it."""
    least = np.inf
    for s in range(values.size):
        least = min(least, values[s])
    for s in range(values.size):
        values[s] -= least
    return least


@part
def beliefs(model: Model, cost: FloatArray, message: FloatArray, node: int) -> FloatArray:
    """Return a node's costs plus all that its neighbours tell it."""
    size = model.size[node]
    belief = np.empty(size)
    for s in range(size):
        belief[s] = cost[model.node_at[node] + s]
    for a in range(model.arc_at[node], model.arc_at[node + 1]):
        at = model.arc_message_at[a]
        for s in range(size):
            belief[s] += message[at + s]
    return belief


@part
def send(model: Model, belief: FloatArray, message: FloatArray, node: int, forward: bool) -> float:
    """Tell the later (or earlier) neighbours what each of their strategies costs at best here. Returns Σ minima."""
    size = model.size[node]
    begin, end = model.arc_at[node], model.arc_at[node + 1]
    later = 0
    for a in range(begin, end):
        if model.arc_to[a] > node:
            later += 1
    share = 1.0 / max(later, end - begin - later, 1)
    total = 0.0
    part = np.empty(size)
    for a in range(begin, end):
        other = model.arc_to[a]
        if (other > node) != forward:
            continue
        at = model.arc_message_at[a]
        for s in range(size):
            part[s] = share * belief[s] - message[at + s]
        out, cost_at = model.arc_message_at[model.arc_back[a]], model.arc_cost_at[a]
        lowest = np.inf
        for t in range(model.size[other]):
            best = np.inf
            row = cost_at + t * size
            for s in range(size):
                best = min(best, part[s] + model.arc_cost[row + s])
            message[out + t] = best
            if best < lowest:
                lowest = best
        for t in range(model.size[other]):
            message[out + t] -= lowest
        total += lowest
    return total


@part
def round_node(model: Model, cost: FloatArray, message: FloatArray, choice: Ints, node: int) -> None:
    """Choose a node's strategy, given the choices of earlier nodes and the messages of later ones."""
    size = model.size[node]
    score = np.empty(size)
    for s in range(size):
        score[s] = cost[model.node_at[node] + s]
    for a in range(model.arc_at[node], model.arc_at[node + 1]):
        other = model.arc_to[a]
        if other < node:
            row = model.arc_cost_at[a] + choice[other] * size
            for s in range(size):
                score[s] += model.arc_cost[row + s]
        else:
            at = model.arc_message_at[a]
            for s in range(size):
                score[s] += message[at + s]
    best = 0
    for s in range(size):
        if score[s] < score[best]:
            best = s
    choice[node] = best
