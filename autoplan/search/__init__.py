"""The planner's front door: `plan` searches, `estimate` prices one configuration. Read this file first.

plan: load → workload and pins → bound every candidate → solve the promising ones → the best, with its bound.
estimate: the same path with every degree pinned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from autoplan.cluster import Cluster
from autoplan.cluster import load as load_cluster
from autoplan.cost.model import CostModel
from autoplan.cost.profile import Profile
from autoplan.cost.profile import load as load_profile
from autoplan.errors import InputError
from autoplan.model import load as load_model
from autoplan.model.graph import ModelGraph
from autoplan.plan.schema import Plan, SearchInfo, Timing
from autoplan.runtimes import Runtime
from autoplan.runtimes import load as load_runtime
from autoplan.search.assemble import plan_of
from autoplan.search.diagnose import changes, no_plan
from autoplan.search.drive import Limits, Outcome, Progress, search
from autoplan.search.pricer import Pricer
from autoplan.search.request import all_pins, check_limits, check_pins, check_solver, merged, pins_of, workload_of
from autoplan.search.solve import Solution, fallback, solve
from autoplan.search.space import Candidate, Pins, candidates, chain
from autoplan.workload import Recompute, Workload

__all__ = ["estimate", "plan"]


def plan(model: ModelGraph | str, cluster: Cluster | str, *, global_batch_size: int | None = None,
         seq_len: int | None = None, precision: str | None = None, optimizer: str = "adam",
         grad_dtype: str | None = None, reduce_dtype: str | None = None, attention: str | None = None,
         dropout: bool = False, frozen: bool = False, micro_batch_size: int | None = None, recompute: str | None = None,
         zero: int | None = None, fix: Mapping[str, object] | None = None, top: int = 5, solver: str = "auto",
         time_limit: float | None = None, gap: float = 0.05, runtime: str = "plain",
         profile: Profile | str | None = None, progress: Progress | None = None) -> Plan:
    """Return the fastest plan that trains `model` on `cluster` and fits its memory.

    model, cluster: loaded, or what `load_model` and `load_cluster` take.
    global_batch_size, seq_len, precision: None takes the model's and the device's defaults, and a note says so.
    grad_dtype, reduce_dtype: of gradients as they accumulate and as they travel; None takes the runtime's. attention:
    flash, fused_softmax or unfused; None takes the fastest the device has. dropout: masks are kept and applied. frozen:
    adapters are trained beside frozen weights.
    micro_batch_size, recompute, zero, fix: what is not left to the search (`fix`: tp, pp, dp, cp, ep, etp, zero,
    micro_batch_size, num_micro_batches, recompute, sequence_parallel, schedule, virtual_stages, and layers, the equal
    layers of each stage). top: plans ranked. solver: `auto`, `highs` or `pulp:NAME`. time_limit: seconds after which
    the best found is returned with its gap. gap: a plan proven to be within this fraction of the fastest is good
    enough; plans that a runtime has a name for are tried first. runtime: what will execute the plan. profile: one's own
    measurements, or the file that `autoplan calibrate` wrote. Raises InputError for bad input, NoPlanError with a
    diagnosis where nothing fits.
    """
    begin = time.perf_counter()
    model, cluster = _loaded(model, cluster)
    check_limits(top, gap, time_limit)
    limits = Limits(top, gap, time.monotonic() + time_limit if time_limit is not None else float("inf"))
    rules = load_runtime(runtime)
    asked = workload_of(model, cluster, global_batch_size=global_batch_size, seq_len=seq_len, precision=precision,
                        optimizer=optimizer, grad_dtype=grad_dtype, reduce_dtype=reduce_dtype, attention=attention,
                        dropout=dropout, frozen=frozen, runtime=rules)
    given: dict[str, object] = {"micro_batch_size": micro_batch_size, "recompute": recompute, "zero": zero}
    pins = pins_of(merged(fix, given))
    check_solver(solver, rules)
    pricer = _pricer(model, cluster, asked.workload, rules, pins, solver, profile)
    outcome = search(pricer, pins, limits, progress)
    if outcome.best is None:
        raise no_plan(pricer, pins, timed_out=outcome.timed_out)
    solutions = [found.solution for found in outcome.found]
    info = _search_info(pricer, outcome, solver, gap)
    return plan_of(pricer, solutions[0], search=info, timing=_timing(pricer, begin, outcome.phases),
                   alternatives=solutions[1:], notes=asked.notes)


def estimate(model: ModelGraph | str, cluster: Cluster | str, *, tp: int = 1, pp: int = 1, dp: int = 1, cp: int = 1,
             ep: int = 1, etp: int | None = None, micro_batch_size: int, global_batch_size: int,
             seq_len: int | None = None, precision: str | None = None, optimizer: str = "adam",
             grad_dtype: str | None = None, reduce_dtype: str | None = None, attention: str | None = None,
             dropout: bool = False, frozen: bool = False, zero: int = 0, recompute: str = "none",
             sequence_parallel: bool = False, schedule: str = "1f1b", virtual_stages: int = 1,
             layers: Sequence[int] | None = None, shard: int | None = None, runtime: str = "plain",
             profile: Profile | str | None = None) -> Plan:
    """Return what one configuration costs, as a plan; it may need more memory than a device has.

    ep: devices that a layer's experts are spread over, among dp (and tp, where etp is 1). etp: devices that share one
    expert, 1 or tp (None). shard: ranks over which ZeRO splits; None: dp. layers: the equal layers of each stage; None
    cuts them as well as they can be under the memory. profile: as `plan` takes it. Raises InputError for
    a configuration that can't be run: degrees that don't make up the cluster, or that don't divide the model or the
    batch; what the runtime doesn't offer.
    """
    begin = time.perf_counter()
    model, cluster = _loaded(model, cluster)
    rules = load_runtime(runtime)
    asked = workload_of(model, cluster, global_batch_size=global_batch_size, seq_len=seq_len, precision=precision,
                        optimizer=optimizer, grad_dtype=grad_dtype, reduce_dtype=reduce_dtype, attention=attention,
                        dropout=dropout, frozen=frozen, runtime=rules)
    pins = all_pins({"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "etp": etp or tp,
                     "micro_batch_size": micro_batch_size, "zero": zero,
                     "recompute": recompute, "sequence_parallel": sequence_parallel if tp != 1 else False,
                     "schedule": schedule, "virtual_stages": virtual_stages, "layers": layers, "shard": shard})
    pricer = _pricer(model, cluster, asked.workload, rules, pins, "auto", profile)
    solution = _price(pricer, pins)
    notes = list(asked.notes)
    if sequence_parallel and tp == 1:
        notes.append("sequence parallelism needs tp > 1: it was left out")
    if not solution.fits:
        notes.append(f"the nearest change that fits: {next(changes(pricer, pins), 'none was found')}")
    info = SearchInfo(lower_bound_s=None, gap=None, candidates=1, pruned=0, solves=pricer.counters.solves,
                      cache_hits=pricer.counters.hits, solver="auto", status="estimate")
    return plan_of(pricer, solution, search=info, timing=_timing(pricer, begin), notes=notes)


def _loaded(model: ModelGraph | str, cluster: Cluster | str) -> tuple[ModelGraph, Cluster]:
    """Return model and cluster, read where they are names or paths."""
    return (model if isinstance(model, ModelGraph) else load_model(model),
            cluster if isinstance(cluster, Cluster) else load_cluster(cluster))


def _pricer(model: ModelGraph, cluster: Cluster, workload: Workload, rules: Runtime, pins: Pins,
            solver: str, profile: Profile | str | None) -> Pricer:
    chained = chain(model)
    check_pins(pins, chained, cluster, workload, rules)
    measured = load_profile(profile) if isinstance(profile, str) else profile
    return Pricer(chained, cluster, CostModel(cluster, rules, measured), rules, workload, solver, pins.shard)


def _price(pricer: Pricer, pins: Pins) -> Solution:
    found = list(candidates(pricer.chain, pricer.cluster, pricer.workload, pricer.runtime, pins, named=True))
    if not found:
        raise InputError("the cluster's nodes can't be cut into such stages", key="tp, pp, dp, cp",
                         found=f"{pricer.cluster.num_devices // (pins.pp or 1)} devices a stage",
                         allowed="a part of a node that divides it, or whole nodes")
    candidate: Candidate = found[0]
    recompute, zero = pins.recompute or Recompute.NONE, pins.zero or 0
    solution = solve(pricer, candidate, recompute, zero) or fallback(pricer, candidate, recompute, zero)
    if solution is None:
        raise InputError("the model can't be split so", key="tp, dp, cp", found=candidate.mesh.shape)
    return solution


def _timing(pricer: Pricer, begin: float, phases: Mapping[str, float] | None = None) -> Timing:
    return Timing(wall_s=time.perf_counter() - begin, solve_s=pricer.counters.seconds, phases=dict(phases or {}))


def _search_info(pricer: Pricer, outcome: Outcome, solver: str, asked_gap: float) -> SearchInfo:
    assert outcome.best is not None
    best = outcome.best.objective
    bound = min(outcome.lower_bound, best)
    gap = 1.0 - bound / best
    reached: Literal["optimal", "feasible"] = "optimal" if gap <= asked_gap + 1e-9 else "feasible"
    return SearchInfo(lower_bound_s=bound, gap=gap, candidates=outcome.candidates, pruned=outcome.pruned,
                      solves=pricer.counters.solves, cache_hits=pricer.counters.hits, solver=solver,
                      status="time_limit" if outcome.timed_out else reached)
