"""Prices on memory: seconds a byte at each time, raised and lowered multiplicatively (Lagrangian relaxation).

For any prices ≥ 0 the bound of the priced problem less the price of all slack is a bound of the problem.
"""

from __future__ import annotations

import numpy as np

from autoplan.intraop.problem import FloatArray
from autoplan.intraop.solve.large.jit import kernel
from autoplan.intraop.solve.large.model import Model


@kernel
def priced(model: Model, cost: FloatArray, price: FloatArray) -> FloatArray:
    """Return `cost` (by strategy) plus the price of what each strategy holds."""
    total = np.empty(cost.size)
    for s in range(cost.size):
        total[s] = cost[s]
    prefix = np.zeros(price.size + 1)
    for t in range(price.size):
        prefix[t + 1] = prefix[t] + price[t]
    for node in range(model.size.size):
        at = model.node_at[node]
        for i in range(model.seg_of[node], model.seg_of[node + 1]):
            worth = prefix[model.seg_high[i]] - prefix[model.seg_low[i]]
            for s in range(model.size[node]):
                total[at + s] += worth * model.usage[model.seg_at[i] + s]
    return total


@kernel
def adjust(price: FloatArray, room: FloatArray, slack: FloatArray, step: float, least: float) -> None:
    """Multiply each price by exp(step · relative excess), at most e each way; no price falls below `least`."""
    for t in range(price.size):
        excess = max(-1.0, min(1.0, -room[t] / max(slack[t], 1.0)))
        price[t] = max(least, price[t] * np.exp(step * excess))
