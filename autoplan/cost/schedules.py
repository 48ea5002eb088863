"""Pipeline schedules in closed form: micro-batches in flight, the time of a step's micro-batches, what is legal.

Sources: GPipe (Huang et al., NeurIPS'19), 1F1B (PipeDream-Flush; Narayanan et al., ICML'21), interleaved 1F1B
(Narayanan et al., SC'21, §2.2; the counts follow Megatron-LM's `get_pp_rank_microbatches`). p stages, m micro-batches,
v virtual stages (model chunks) a stage.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoplan.workload import Schedule


def in_flight(schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int,
              virtual_stages: int = 1, extra: int = 0) -> float:
    """Return how many micro-batches of a whole stage's saved activations `stage` (from 0) holds at its peak.

    GPipe: m. 1F1B: min(m, p − stage + extra), extra being what a runtime holds beyond need. Interleaved: min(m·v, 2(p − stage − 1) + (v − 1)·p + 1) chunks of 1/v stage.
    """
    p, m, v = num_stages, num_micro_batches, virtual_stages
    if schedule is Schedule.GPIPE:
        return float(m)
    if schedule is Schedule.ONE_F_ONE_B:
        return float(min(m, p - stage + (extra if p > 1 else 0)))
    return min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v


def pipeline_time(schedule: Schedule, times: npt.ArrayLike, num_micro_batches: int, virtual_stages: int = 1) -> float:
    """Return the seconds from the first forward to the last backward.

    times: [p] seconds of one micro-batch, forward and backward, on each whole stage. GPipe and 1F1B:
    Σ + (m − 1)·max. Interleaved: m·max + (Σ − max)/v, as the bubble shrinks by v; for equal stages of time t that is
    m·t + (p − 1)·t/v. Exact for equal stages without p2p; for unequal ones the sum and the slowest stage stand in for
    the critical path.
    """
    stage_times = np.asarray(times, dtype=np.float64)
    slowest = float(stage_times.max())
    bubble = float(stage_times.sum()) - slowest
    if schedule is Schedule.INTERLEAVED:
        bubble /= virtual_stages
    return num_micro_batches * slowest + bubble


def legal(schedule: Schedule, num_stages: int, num_micro_batches: int, virtual_stages: int,
          layers_per_stage: int) -> str | None:
    """Return why the schedule can't run, in words, or None when it can.

    layers_per_stage: layers of one whole stage; interleaving cuts them into v equal chunks.
    """
    if schedule is not Schedule.INTERLEAVED:
        if virtual_stages == 1:
            return None
        return f"only interleaved 1F1B has virtual stages; {schedule.value} with {virtual_stages} was asked for"
    if num_stages < 2:
        return f"interleaved 1F1B needs at least 2 stages; there is {num_stages}"
    if virtual_stages < 2:
        return f"interleaved 1F1B needs at least 2 virtual stages a stage; it is {virtual_stages}"
    if num_micro_batches % num_stages:
        return (f"interleaved 1F1B needs a micro-batch count that is a multiple of the {num_stages} stages; "
                f"it is {num_micro_batches}")
    if layers_per_stage % virtual_stages:
        return (f"interleaved 1F1B needs layers of a stage that divide into {virtual_stages} virtual stages; "
                f"there are {layers_per_stage}")
    return None
