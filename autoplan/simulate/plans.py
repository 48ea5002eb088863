"""From a plan to what is simulated.

A plan holds what is needed: seconds of a micro-batch by pass, of once-a-step work and of sends, bytes, and the devices
of each stage. Chunks of a stage are taken to be equal, as in the closed forms.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.cost.schedules import in_flight, legal
from autoplan.errors import InputError
from autoplan.plan.schema import ClusterInfo, Parallelism, Plan, Stage
from autoplan.runtimes import Runtime
from autoplan.runtimes import load as load_runtime
from autoplan.simulate.pipeline import Pipeline, Send, Work
from autoplan.workload import Schedule

MOST_PIECES = 10_000_000


def pipeline_of(plan: Plan, where: str) -> Pipeline:
    """Return the pipeline of the plan in the file `where`.

    Raises InputError for an unknown runtime, a schedule that can't run so, or more than `MOST_PIECES` of work.
    """
    how = plan.parallelism
    reason = legal(how.schedule, len(plan.stages), how.num_micro_batches, how.virtual_stages, how.virtual_stages)
    if reason:
        raise InputError(reason, where=where, key="parallelism.schedule")
    found = pipeline(plan.stages, how, plan.cluster, load_runtime(plan.runtime))
    if found.pieces > MOST_PIECES:
        raise InputError("too many pieces of work to replay", where=where, key="parallelism.num_micro_batches",
                         found=f"{found.pieces:,}", allowed=f"at most {MOST_PIECES:,}")
    return found


def pipeline(stages: Sequence[Stage], parallelism: Parallelism, cluster: ClusterInfo, runtime: Runtime) -> Pipeline:
    """Return the pipeline of a plan's stages under a runtime."""
    hidden = runtime.overlap.sends and parallelism.virtual_stages > 1
    works = tuple(_work(stage, len(stages), parallelism, hidden) for stage in stages)
    seconds = [_send_seconds(stage, len(stages), parallelism, hidden) for stage in stages]
    sends = {}
    for source, stage in enumerate(stages):
        for target in {(source - 1) % len(stages), (source + 1) % len(stages)} - {source}:
            sends[source, target] = Send(seconds[source], _link(stage, stages[target], cluster))
    return Pipeline(parallelism.schedule, parallelism.num_micro_batches, parallelism.virtual_stages, works, sends,
                    waits=not hidden)


def _work(stage: Stage, num_stages: int, parallelism: Parallelism, hidden: bool) -> Work:
    """Return what a stage does. Sends are no part of it; where they're hidden, the plan counts them once a step."""
    time, memory, m = stage.time, stage.memory, parallelism.num_micro_batches
    sent = time.breakdown.p2p_s
    computed = time.micro_batch_s - (0.0 if hidden else sent / m)
    counted = in_flight(parallelism.schedule, stage.index, num_stages, m, parallelism.virtual_stages)
    saved = memory.breakdown.activations / memory.in_flight if memory.in_flight else 0.0
    beyond = max(0.0, memory.in_flight - counted)  # what the runtime holds besides
    return Work(
        forward=time.forward_s, backward=max(0.0, computed - time.forward_s - time.weight_gradient_s),
        weight=time.weight_gradient_s, step=max(0.0, time.step_s - (sent if hidden else 0.0)), saved=saved,
        fixed=memory.total_bytes - memory.breakdown.activations + beyond * saved)


def _send_seconds(stage: Stage, num_stages: int, parallelism: Parallelism, hidden: bool) -> float:
    """Return the seconds of one tensor between a stage and a neighbour, from all that the plan counts."""
    # of these the plan counts one neighbour
    ends = (0,) if parallelism.schedule is Schedule.ZB_V else (0, num_stages - 1)
    neighbours = 1 if stage.index in ends else 2
    times = num_stages if hidden else parallelism.virtual_stages * parallelism.num_micro_batches
    return stage.time.breakdown.p2p_s / (neighbours * times)


def _link(source: Stage, target: Stage, cluster: ClusterInfo) -> tuple[object, ...]:
    """Return the link that a stage's tensors leave over: of its first device's network card, which devices of other
    stages may share, or inside the node a link of its own."""
    per_node = cluster.gpus_per_node
    node, place = divmod(min(source.devices), per_node)
    if {device // per_node for device in (*source.devices, *target.devices)} == {node}:
        return "inside", source.index
    return "network", node, place * cluster.nics_per_node // per_node
