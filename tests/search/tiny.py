"""Models and clusters so small that a plan takes a fraction of a second, and what the tests do with plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import autoplan
from autoplan.cluster import Cluster
from autoplan.cost.model import CostModel
from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph
from autoplan.model.spec import TransformerSpec
from autoplan.plan import Plan
from autoplan.plan.check import over_capacity
from autoplan.runtimes import load as load_runtime
from autoplan.search.diagnose import nearest
from autoplan.search.pricer import Pricer
from autoplan.search.request import merged, pins_of, workload_of
from autoplan.search.space import Candidate, Pins, candidates, chain
from autoplan.workload import Workload

GPT: dict[str, Any] = {
    "name": "tiny-gpt", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab_size": 32000, "norm": "layer",
    "positions": "learned", "max_positions": 1024, "seq_len": 1024, "biases": ("qkv", "o", "mlp")}
LLAMA: dict[str, Any] = {
    "name": "tiny-llama", "layers": 6, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn": 2816, "gated": True,
    "vocab_size": 32000, "seq_len": 2048}

NAMED_ONLY = 1.0  # a gap that leaves the search no reason to look beyond named recipes


def gpt(**changes: object) -> ModelGraph:
    """Return a GPT with learned positions and biases."""
    return build(TransformerSpec(**{**GPT, **changes}))


def llama(**changes: object) -> ModelGraph:
    """Return a Llama with grouped queries, a gated MLP and rotary positions."""
    return build(TransformerSpec(**{**LLAMA, **changes}))


def cluster(ref: str) -> Cluster:
    """Return a shipped cluster."""
    return autoplan.load_cluster(ref)


def again(plan: Plan, model: ModelGraph, machines: Cluster, **options: Any) -> Plan:
    """Return the estimate of a plan's own degrees."""
    how, asked = plan.parallelism, plan.workload
    assert how.recipe is not None
    return autoplan.estimate(
        model, machines, tp=how.tp, pp=how.pp, dp=how.dp, cp=how.cp, micro_batch_size=how.micro_batch_size,
        global_batch_size=asked.global_batch_size, seq_len=asked.seq_len, precision=asked.precision.value,
        optimizer=asked.optimizer, grad_dtype=asked.grad_dtype.value,
        reduce_dtype=asked.reduce_dtype.value, attention=asked.attention.value, dropout=asked.dropout,
        frozen=asked.frozen, zero=how.zero, recompute=how.recompute.value, sequence_parallel=how.sequence_parallel,
        schedule=how.schedule.value, virtual_stages=how.virtual_stages, runtime=plan.runtime, **options)


def with_memory(machines: Cluster, nbytes: float) -> Cluster:
    """Return the cluster with devices of another memory size."""
    group = machines.groups[0]
    device = replace(group.node.device, memory_bytes=int(nbytes))
    return replace(machines, groups=(replace(group, node=replace(group.node, device=device)),))


def workload(model: ModelGraph, machines: Cluster, batch: int, runtime: str = "plain", **asked: object) -> Workload:
    """Return the workload of a global batch, with the defaults of the command line for all that isn't asked."""
    defaults: dict[str, Any] = {"seq_len": None, "precision": None, "optimizer": "adam", "grad_dtype": None,
                                "reduce_dtype": None, "attention": None, "dropout": False, "frozen": False}
    return workload_of(model, machines, global_batch_size=batch, runtime=load_runtime(runtime),
                       **{**defaults, **asked}).workload


def pricer_of(model: ModelGraph, machines: Cluster, batch: int, runtime: str = "plain", **asked: object) -> Pricer:
    """Return what prices a model, as `workload` asks for it."""
    rules = load_runtime(runtime)
    return Pricer(chain(model), machines, CostModel(machines, rules), rules,
                  workload(model, machines, batch, runtime, **asked))


def searched(pricer: Pricer, pins: Pins | None = None, *, named: bool = True) -> list[Candidate]:
    """Return the uniform candidates that a search under the pins tries."""
    return list(candidates(pricer.chain, pricer.cluster, pricer.workload, pricer.runtime, pins or Pins(), named=named))


def fits(plan: Plan) -> bool:
    """Whether every stage surely fits its devices' memory."""
    return not over_capacity(plan)


def least_memory(model: ModelGraph, machines: Cluster, batch: int, *, fix: Any = None, **options: Any) -> float:
    """Return the bytes a device needs so that some named configuration surely fits."""
    found = nearest(pricer_of(model, machines, batch), pins_of(merged(fix, options)))
    assert found is not None
    return max(stage.memory for stage in found[0].stages)
