"""The order in which each stage of a schedule does its work.

Sources: GPipe (Huang et al., NeurIPS'19), 1F1B (Narayanan et al., ICML'21), Megatron-LM's interleaved 1F1B (Narayanan
et al., SC'21, §2.2), zero-bubble H1, H2 and V (Qi et al., arXiv:2401.10241; V in the order that PyTorch's
`ScheduleZBVZeroBubble` documents).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from autoplan.workload import Schedule

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """A piece of work: the forward pass, the backward pass (where it is split, the input's gradient), and the weights'
    gradient where it is a piece of its own."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


@dataclass(frozen=True)
class Order:
    """What a stage does, one after the other, [n] each: kinds of work, micro-batches, chunks of the stage."""

    kind: Ints
    micro_batch: Ints
    chunk: Ints

    @property
    def held(self) -> Ints:
        """Micro-batches of one chunk that are held after each piece of work: begun, and not over."""
        last = Kind.WEIGHT if (self.kind == Kind.WEIGHT).any() else Kind.BACKWARD
        held: Ints = np.cumsum((self.kind == Kind.FORWARD).astype(np.int64) - (self.kind == last))
        return held


def order(schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, virtual_stages: int = 1) -> Order:
    """Return what stage `stage` (from 0) does. ValueError where the schedule can't run so (see `schedules.legal`)."""
    p, m, v = num_stages, num_micro_batches, virtual_stages
    if not 0 <= stage < p or m < 1 or v < 1 or (v > 1) != schedule.chunked:
        raise ValueError(f"{schedule.value} has no stage {stage} of {p} with {m} micro-batches and {v} virtual stages")
    if schedule is Schedule.GPIPE:
        return _flat(m, ahead=m)
    if schedule is Schedule.ONE_F_ONE_B:
        return _flat(m, ahead=p - stage - 1)
    if schedule is Schedule.ZB_H1:
        return _flat(m, ahead=p - stage - 1, delay=stage)
    if schedule is Schedule.ZB_H2:
        return _flat(m, ahead=2 * (p - stage - 1), delay=2 * stage)
    return _vee(stage, p, m) if schedule is Schedule.ZB_V else _interleaved(stage, p, m, v)


def _flat(m: int, ahead: int, delay: int | None = None) -> Order:
    """One chunk: `ahead` forward passes, then forward and backward in turn, then what backward passes are left.

    delay: backward passes by which a weight's gradient lags its own; None where it is a part of them.
    """
    ahead = min(ahead, m)
    rows = [(Kind.FORWARD, np.arange(m), np.maximum(np.arange(m) - ahead, -1)),
            (Kind.BACKWARD, np.arange(m), np.arange(m))]
    if delay is not None:
        rows.append((Kind.WEIGHT, np.arange(m), np.arange(m) + delay))
    kind = np.concatenate([np.full(m, one) for one, _, _ in rows])
    which = np.concatenate([numbers for _, numbers, _ in rows])
    turn = np.concatenate([turns for _, _, turns in rows])
    sequence = np.lexsort((which, kind, turn))  # each turn: a forward, a backward pass, a weight's gradient
    return Order(kind[sequence], which[sequence], np.zeros(len(kind), np.int64))


def _interleaved(stage: int, p: int, m: int, v: int) -> Order:
    """Megatron-LM's: groups of p micro-batches, every chunk of a group before the next group."""
    if m % p:
        raise ValueError(f"{m} micro-batches are no multiple of {p} stages")
    groups = np.arange(m).reshape(-1, 1, p)
    which = np.broadcast_to(groups, (m // p, v, p)).ravel()
    chunk = np.broadcast_to(np.arange(v)[:, None], (m // p, v, p))
    forward, backward = chunk.ravel(), chunk[:, ::-1].ravel()
    total = m * v
    ahead = min(2 * (p - stage - 1) + (v - 1) * p, total)
    turn = np.concatenate([np.maximum(np.arange(total) - ahead, -1), np.arange(total)])
    kind = np.repeat([int(Kind.FORWARD), int(Kind.BACKWARD)], total)
    number = np.tile(np.arange(total), 2)
    sequence = np.lexsort((number, kind, turn))
    return Order(kind[sequence], np.tile(which, 2)[sequence], np.concatenate([forward, backward])[sequence])


def _vee(stage: int, p: int, m: int) -> Order:
    """Two chunks a stage, the second on the way back; ValueError for fewer than 2p − 1 micro-batches.

    The stage runs forward until the first micro-batch comes back, then alternates the chunks, each with its weights'
    gradient at once; at the end what input's gradients are left go first, since other stages wait for them.
    """
    if m < 2 * p - 1:
        raise ValueError(f"{m} micro-batches don't fill {p} stages there and back")
    f, b, w = (2 * np.array(kind) + np.arange(2) for kind in Kind)  # a piece of work is 2 · kind + chunk
    begun = 2 * p - 1 - stage  # forward passes of the first chunk before the two alternate
    both = [b[0], w[0], f[1], b[1], w[1]]
    parts = [([f[0]], 2 * (p - stage) - 1), ([f[1], f[0]], stage), ([f[1], b[1], w[1]], p - stage),
             ([f[0], *both], m - begun), (both, begun - p), ([b[0], b[1]], stage), ([b[0], w[0]], p - stage),
             ([w[1]], stage), ([w[0]], stage)]
    pieces = np.concatenate([np.tile(np.array(some, np.int64), times) for some, times in parts])
    which = np.empty(len(pieces), np.int64)
    for one in (*f, *b, *w):
        which[pieces == one] = np.arange(m)
    return Order(pieces // 2, which, pieces % 2)
