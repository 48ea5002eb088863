"""Pipeline schedules in closed form: micro-batches in flight, the time of a step's micro-batches, what is legal.

Sources: GPipe (Huang et al., NeurIPS'19), 1F1B (PipeDream-Flush; Narayanan et al., ICML'21), interleaved 1F1B
(Narayanan et al., SC'21, §2.2; the counts follow Megatron-LM's `get_pp_rank_microbatches`), zero-bubble H1, H2 and V
(Qi et al., arXiv:2401.10241, §2 and its ZB-V). p stages, m micro-batches, v virtual stages (model chunks) a stage.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoplan.workload import Schedule

V_CHUNKS = 2  # of a stage under zero-bubble V


def in_flight(schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int,
              virtual_stages: int = 1, extra: int = 0) -> float:
    """Return how many micro-batches of a whole stage's saved activations `stage` (from 0) holds at its peak.

    GPipe: m. 1F1B: min(m, p − stage + extra), extra being what a runtime holds beyond need. Interleaved:
    min(m·v, 2(p − stage − 1) + (v − 1)·p + 1) chunks of 1/v stage. Zero-bubble: H1 and V min(m, p), H2
    min(m, 2p − 1), on every stage, where a micro-batch is held in full until its weight gradients are done.
    """
    p, m, v = num_stages, num_micro_batches, virtual_stages
    if schedule is Schedule.GPIPE:
        return float(m)
    if schedule.splits_backward:
        return float(min(m, _ahead(schedule, p)))
    if schedule is Schedule.ONE_F_ONE_B:
        return float(min(m, p - stage + (extra if p > 1 else 0)))
    return min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v


def position(schedule: Schedule, stage: int, chunk: int, num_stages: int) -> int:
    """Return where in the model's row of chunks a stage's chunk is: round robin, but under zero-bubble V there and
    back again."""
    if schedule is Schedule.ZB_V and chunk == 1:
        return 2 * num_stages - 1 - stage
    return chunk * num_stages + stage


def _ahead(schedule: Schedule, num_stages: int) -> int:
    """Return the micro-batches that a zero-bubble schedule starts before the first is done with."""
    return 2 * num_stages - 1 if schedule is Schedule.ZB_H2 else num_stages


def pipeline_time(schedule: Schedule, times: npt.ArrayLike, num_micro_batches: int, virtual_stages: int = 1, *,
                  forward: npt.ArrayLike = 0.0, weight: npt.ArrayLike = 0.0) -> float:
    """Return the seconds that a step's micro-batches take.

    times: [p] seconds of one micro-batch, forward and backward, on each whole stage; forward, weight: of these, the
    forward pass and the weight gradients, which only zero-bubble schedules (`Schedule.splits_backward`) ask for.

    GPipe and 1F1B: Σ + (m − 1)·max. Interleaved: m·max + (Σ − max)/v, as the bubble shrinks by v; for equal stages of
    time t that is m·t + (p − 1)·t/v. Zero-bubble, for equal stages with F forward, B input's gradient, W weights'
    gradient: m·(F + B + W) and a bubble of

        H1  (p − 1)·(F + B − W)     H2  (p − 1)·(F + B − 2W)     V  (p − 1)·(max(F, B) − W)

    where W ≤ min(F, B), m fills the pipeline, and H2 is at least 0; `_bubble` has the general case. It is the time from
    a stage's first forward pass to its last weight gradient, at most over the stages: as in the paper (§3.1), no
    stage waits for the others before it updates its weights and begins the next step. All are exact for equal stages
    without p2p; for unequal ones the sum and the slowest stage stand in for the critical path.
    """
    stage_times = np.asarray(times, dtype=np.float64)
    slowest = float(stage_times.max())
    if schedule.splits_backward:
        forward, weight = (np.broadcast_to(np.asarray(part, np.float64), stage_times.shape)
                           for part in (forward, weight))
        return num_micro_batches * slowest + _bubble(schedule, stage_times, forward, weight, num_micro_batches)
    bubble = float(stage_times.sum()) - slowest
    if schedule is Schedule.INTERLEAVED:
        bubble /= virtual_stages
    return num_micro_batches * slowest + bubble


def _bubble(schedule: Schedule, times: npt.NDArray[np.float64], forward: npt.NDArray[np.float64],
            weight: npt.NDArray[np.float64], num_micro_batches: int) -> float:
    """Return the seconds that the slowest stage idles under a zero-bubble schedule, from the seconds of all others.

    H1 and H2: Σ' (F + B) − (a − 1)/(p − 1) · Σ' min(W, F), at least 0, Σ' over the others, with a = min(m, p) or
    min(m, 2p − 1) micro-batches begun ahead: a weight gradient fills the bubble, but no more of it than a forward
    pass. V: Σ' (max(F, B, W) − min(F, B, W)), which is exact where W ≤ F ≤ B and never too little for equal stages.
    """
    others = np.arange(len(times)) != times.argmax()
    f, w = forward[others], weight[others]
    b = times[others] - f - w
    if schedule is Schedule.ZB_V:
        parts = np.array([f, b, w])
        return float((parts.max(axis=0) - parts.min(axis=0)).sum())
    filled = _filled(schedule, len(times), num_micro_batches)
    return max(0.0, float((f + b).sum() - filled * np.minimum(w, f).sum()))


def _filled(schedule: Schedule, num_stages: int, num_micro_batches: int) -> float:
    """Return how many weight gradients of each stage but the slowest fill the bubble of H1 or H2, on average."""
    return (min(num_micro_batches, _ahead(schedule, num_stages)) - 1) / max(1, num_stages - 1)


def weight_relief(schedule: Schedule, num_stages: int, num_micro_batches: int) -> float:
    """Return by how many seconds, for each second of all stages' weight gradients, a zero-bubble schedule's bubble is
    at most shorter than Σ' t, that of 1F1B, or for V than Σ' t / 2, that of two interleaved chunks.

    For H1 and H2 since F + B = t − W and min(W, F) ≤ W; for V since max(F, B, W) ≥ (t − W)/2 and min(F, B, W) ≤ W.
    """
    return 1.5 if schedule is Schedule.ZB_V else 1.0 + _filled(schedule, num_stages, num_micro_batches)


def legal(schedule: Schedule, num_stages: int, num_micro_batches: int, virtual_stages: int,
          layers_per_stage: int) -> str | None:
    """Return why the schedule can't run, in words, or None when it can.

    layers_per_stage: layers of one whole stage; schedules with virtual stages cut them into v equal chunks.
    """
    name = {Schedule.INTERLEAVED: "interleaved 1F1B", Schedule.ZB_V: "zero-bubble V"}.get(schedule)
    if name is None:
        if virtual_stages == 1:
            return None
        return f"only interleaved 1F1B has virtual stages; {schedule.value} with {virtual_stages} was asked for"
    if num_stages < 2:
        return f"{name} needs at least 2 stages; there is {num_stages}"
    if schedule is Schedule.ZB_V and virtual_stages != V_CHUNKS:
        return f"{name} has {V_CHUNKS} virtual stages a stage; {virtual_stages} were asked for"
    if virtual_stages < 2:
        return f"{name} needs at least 2 virtual stages a stage; it is {virtual_stages}"
    if schedule is Schedule.INTERLEAVED and num_micro_batches % num_stages:
        return (f"{name} needs a micro-batch count that is a multiple of the {num_stages} stages; "
                f"it is {num_micro_batches}")
    if schedule is Schedule.ZB_V and num_micro_batches < 2 * num_stages - 1:
        return (f"{name} needs {2 * num_stages - 1} micro-batches to fill {num_stages} stages; "
                f"there {'is' if num_micro_batches == 1 else 'are'} {num_micro_batches}")
    if layers_per_stage % virtual_stages:
        return (f"{name} needs layers of a stage that divide into {virtual_stages} virtual stages; "
                f"there are {layers_per_stage}")
    return None
