"""Large-neighbourhood search with local price factors and annealed acceptance, over the moves of `forest`."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.core import Ints
from autoplan.intraop.solve.large.forest import (
    Scratch,
    cheapest,
    fix_surroundings,
    forest_cost,
    free_memory,
    grow_ball,
    hang_trees,
    overfill,
    pick_forest,
)
from autoplan.intraop.solve.large.jit import kernel, part
from autoplan.intraop.solve.large.model import Model

COST, OVER, BEST, STAMP = 0, 1, 2, 3  # indices of `state`: cost and overfill of the choice, best feasible cost, moves


@kernel
def anneal(model: Model, work: Scratch, rng: Generator, choice: Ints, room: FloatArray, price: FloatArray,
           worth: FloatArray, best: Ints, state: FloatArray, temperature: float, most: int, budget: int) -> int:
    """Make moves on `choice` until about `budget` entries were looked at; `best` keeps the best that fits.

    price [T]: seconds a byte, where a forest could overfill memory. worth [T + 1]: the sum of what a byte left free at
    all earlier times is worth, in seconds. Returns the number of moves made.
    """
    moves = 0
    while budget > 0:
        moves += 1
        state[3] += 1.0
        count = pick_ball(model, work, rng, most, int(state[3]))
        size = pick_forest(model, work, rng, count)
        budget -= move(model, work, rng, choice, room, price, worth, state, temperature, size)
        for k in range(size):
            work.place[work.forest[k]] = -1
        if state[1] <= 0.0 and state[0] < state[2]:
            state[2] = state[0]
            for node in range(choice.size):
                best[node] = choice[node]
            budget -= choice.size // 4
    return moves


@part
def pick_ball(model: Model, work: Scratch, rng: Generator, most: int, stamp: int) -> int:
    """Fill `ball` with nodes around one or several random places. Returns how many."""
    nodes = model.size.size
    places = 1 if rng.random() < 0.5 else 2 + int(rng.random() * 6)
    total = 4 + int(rng.random() ** 2 * (most - 4))
    count = 0
    for _ in range(places):
        count = grow_ball(model, work, rng, int(rng.random() * nodes), count, max(2, total // places), stamp)
    return count


@part
def move(model: Model, work: Scratch, rng: Generator, choice: Ints, room: FloatArray, price: FloatArray,
         worth: FloatArray, state: FloatArray, temperature: float, size: int) -> int:
    """Choose the forest's strategies anew, at the least price factor that fits. Returns the entries looked at."""
    hang_trees(model, work, size)
    fix_surroundings(model, work, choice, worth, size)
    begin, end, binding = free_memory(model, work, choice, room, price, size)
    old = work.best
    for k in range(size):
        old[k] = choice[work.forest[k]]
    before, lean_before = forest_cost(model, work, old, size)
    over_before = overfill(model, work, old, size, begin, end)
    target = 0.98 * over_before
    round_cost = 8 * work.value_at[size] + end - begin + 64
    spent = 2 * round_cost
    low, high, found, tries = 0.0, 0.0, False, 0
    after = lean_after = np.inf
    over_after = 0.0
    while tries < 12:
        factor = high if not found else (high * 0.25 if low == 0.0 else (low * high) ** 0.5)
        tries += 1
        spent += round_cost
        cheapest(model, work, size, factor)
        over = overfill(model, work, work.trial, size, begin, end)
        if over <= target:
            cost, lean = forest_cost(model, work, work.trial, size)
            if cost + lean < after + lean_after:
                after, lean_after, over_after = cost, lean, over
                for k in range(size):
                    work.group[k] = work.trial[k]
            if factor == 0.0:
                break
            if not found:
                tries = max(tries, 8)
            found = True
            high = factor
        elif found:
            low = factor
        else:
            low = high
            high = 1.0 if high == 0.0 else 4.0 * high
            if not binding or high > 2000.0:
                break
    if after == np.inf:
        return spent
    gain = after + lean_after - before - lean_before
    if over_before <= 0.0 and gain > 0.0 and not rng.random() < np.exp(-gain / temperature):
        return spent
    same = True
    for k in range(size):
        if work.group[k] != old[k]:
            same = False
    if same:
        return spent
    overfill(model, work, work.group, size, begin, end)
    used = 0.0
    for t in range(begin, end):
        used += work.change[t]
        room[t] = work.local[t] - used
    for k in range(size):
        choice[work.forest[k]] = work.group[k]
    state[0] += after - before
    state[1] += over_after - over_before
    return spent
