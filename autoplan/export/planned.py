"""Reads a plan's stages back: for each of their layers, the loop dim that every mesh axis was given to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.errors import InputError, Words
from autoplan.intraop.strategies import NONE
from autoplan.model import load
from autoplan.model.facts import parameters
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, LayerClass, ModelGraph, Op
from autoplan.plan.schema import Plan, Sharding, Spec, Stage
from autoplan.workload import Recompute


@dataclass(frozen=True)
class PlannedLayer:
    """Equal layers of a stage.

    assign: for each operator and mesh axis the position of a loop dim, or `NONE`. zero: by `operator.parameter`.
    """

    layer: LayerClass
    count: int
    assign: Mapping[str, tuple[int, ...]]
    zero: Mapping[str, int]


@dataclass(frozen=True)
class PlannedStage:
    """A stage.

    micro_batch: sequences of one micro-batch on all its devices. recomputes: whether the backward pass runs parts of
    the forward pass again.
    """

    index: int
    shape: tuple[int, ...]
    names: tuple[str, ...]
    micro_batch: int
    seq_len: int
    recomputes: bool
    layers: tuple[PlannedLayer, ...]

    def sizes(self, op: Op) -> dict[str, int]:
        """Return the size of every loop dim of an operator, unsplit."""
        return {BATCH: self.micro_batch, SEQ: self.seq_len, KV_SEQ: self.seq_len} | op.static_sizes


def model_of(plan: Plan, ref: str | None, where: str) -> ModelGraph:
    """Return the plan's model: that of `ref`, else the one of the plan's name.

    where: the plan's file. Raises InputError where there is none, or it isn't the model that was planned.
    """
    try:
        model = load(ref or plan.model.name)
    except InputError as error:
        if ref is not None:
            raise
        raise InputError("its model isn't known by its name; give it with --model", where=where, key="model.name",
                         found=plan.model.name) from error
    found = _size(model.num_layers, parameters(model)["total"])
    planned = _size(plan.model.num_layers, plan.model.parameters.total)
    if found != planned:
        raise InputError("not the model that was planned", where="--model" if ref else where, key="layers, parameters",
                         found=Words(found), allowed=planned)
    return model


def _size(layers: int, total: int) -> str:
    return f"{layers:,} layers with {total:,} parameters"


def planned_stages(plan: Plan, model: ModelGraph, where: str) -> tuple[PlannedStage, ...]:
    """Return the plan's stages. Raises InputError where the plan's shardings aren't those of the model's operators."""
    micro_batch = plan.workload.global_batch_size // plan.parallelism.num_micro_batches
    return tuple(PlannedStage(stage.index, stage.mesh.shape, stage.mesh.axes, micro_batch, plan.workload.seq_len,
                              stage.parallelism.recompute is not Recompute.NONE, _layers(stage, model, where))
                 for stage in plan.stages)


def _layers(stage: Stage, model: ModelGraph, where: str) -> tuple[PlannedLayer, ...]:
    counts = Counter(model.layers[index] for first, last in stage.chunks for index in range(first, last + 1))
    return tuple(_layer(model.classes[index], counts[index], stage, where) for index in sorted(counts))


def _layer(layer: LayerClass, count: int, stage: Stage, where: str) -> PlannedLayer:
    assign: dict[str, tuple[int, ...]] = {}
    zero: dict[str, int] = {}
    for op in layer.ops:
        key = f"{layer.name}.{op.name}"
        sharding = stage.shardings.get(key)
        if sharding is None or set(sharding.params) != {param.name for param in op.params}:
            raise InputError("the plan has no sharding of this operator and its parameters", where=where,
                             key=f"stages[{stage.index}].shardings.{key}")
        assign[op.name] = tuple(_loop_dim(op, sharding, axis) for axis in stage.mesh.axes)
        zero |= {f"{op.name}.{name}": spec.zero for name, spec in sharding.params.items()}
    return PlannedLayer(layer, count, assign, zero)


def _loop_dim(op: Op, sharding: Sharding, axis: str) -> int:
    """Return the loop dim that an axis splits: it shows in the output, an input or a parameter."""
    dims = [dim.name for dim in op.dims]
    specs: list[Spec] = [sharding.output, *sharding.inputs.values(), *sharding.params.values()]
    for spec in specs:
        for name, axes in zip(spec.dims, spec.axes, strict=True):
            if axis in axes and name in dims:
                return dims.index(name)
    return NONE
