"""What is searched: the uniform candidates (every stage the same submesh, mesh and micro-batch), enumerated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain as chained
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Cluster, Mesh, mesh, meshes, submesh_sizes
from autoplan.cluster.mesh import divisors
from autoplan.cost.schedules import V_CHUNKS, legal
from autoplan.errors import InputError
from autoplan.model.graph import EXPERTS, LayerClass, ModelGraph
from autoplan.runtimes import Runtime
from autoplan.search.recipes import degrees_of, recipes, replicas
from autoplan.workload import Recompute, Schedule, Workload

LARGEST_MICRO_BATCH = 64  # sequences a replica; larger ones only add memory
LARGEST_FREE_MICRO_BATCH = 8  # where the ILP chooses the shardings; larger ones are searched with recipes
MOST_VIRTUAL_STAGES = 8


@dataclass(frozen=True)
class Chain:
    """A model as the search sees it: a first layer, layers in between of one or more kinds, a last layer.

    layers: one of each kind. kinds: the kind of each layer in between, in order.
    """

    model: ModelGraph
    first: LayerClass
    layers: tuple[LayerClass, ...]
    last: LayerClass
    kinds: tuple[int, ...]
    tied: tuple[str, str] | None

    @property
    def uniform(self) -> bool:
        """Whether all layers in between are equal."""
        return len(self.layers) == 1

    @property
    def count(self) -> int:
        """Layers in between."""
        return len(self.kinds)

    @cached_property
    def before(self) -> NDArray[np.int64]:
        """For each position in between, how many layers of each kind come before it, [count + 1, kinds]."""
        ones = np.array(self.kinds)[:, None] == np.arange(len(self.layers))
        return np.concatenate([np.zeros((1, len(self.layers)), np.int64), ones.cumsum(axis=0)])

    def held(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Return the layers in between, by kind, that chunks of the chain hold (first and last layer, inclusive)."""
        ends = np.clip(np.array(chunks), [1, 0], [self.count + 1, self.count])
        counts = (self.before[ends[:, 1]] - self.before[ends[:, 0] - 1]).clip(0).sum(axis=0)
        return tuple(int(count) for count in counts)

    @property
    def experts(self) -> int:
        """Experts of a layer, 0 where there are none."""
        return max((op.static_sizes[EXPERTS] for layer in self.layers for op in layer.ops if op.kind == "experts"),
                   default=0)

    @property
    def length(self) -> int:
        """Layers of the chain, both ends included."""
        return self.count + 2


def chain(model: ModelGraph) -> Chain:
    """Return the chain of a model. Raises InputError for a model that is no such chain."""
    between = model.layers[1:-1]
    inner = sorted(set(between), key=between.index)
    if model.num_layers < 3 or model.layers[0] in inner or model.layers[-1] in inner:
        raise InputError("only models of an embedding, layers and a head can be planned", where=model.name)
    first, last = model.layer(0), model.layer(model.num_layers - 1)
    layers = tuple(model.classes[index] for index in inner)
    if len({layer.input and layer.input.dims for layer in layers}) != 1:
        raise InputError("its layers hand different tensors on: only one residual stream can be planned",
                         where=model.name)
    tied = None
    for op, param in last.params():
        owner = None if param.tied is None else _owner(first, param.tied.split(".", 1)[1])
        if owner is not None:
            tied = (owner, f"{op.name}.{param.name}")
    return Chain(model, first, layers, last, tuple(inner.index(index) for index in between), tied)


def _owner(layer: LayerClass, param_name: str) -> str | None:
    """Return `operator.parameter` of the parameter called `param_name` in `layer`.

    None if it has none: where an encoder or a vision tower stands first, the head's table is priced as its own.
    """
    return next((f"{op.name}.{param.name}" for op, param in layer.params() if param.name == param_name), None)


@dataclass(frozen=True)
class Pins:
    """What the user fixed; None is free. Degrees and sequence_parallel name a recipe: they fix the roles.

    ep: devices that the experts of a layer are spread over. etp: devices that share one expert, 1 or tp. layers: how
    many equal layers each of the pp stages holds. shard: ranks over which ZeRO splits (hybrid sharding), a part of dp.
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    micro_batch_size: int | None = None
    num_micro_batches: int | None = None
    recompute: Recompute | None = None
    zero: int | None = None
    sequence_parallel: bool | None = None
    schedule: Schedule | None = None
    virtual_stages: int | None = None
    layers: tuple[int, ...] | None = None
    shard: int | None = None

    @property
    def fixes_roles(self) -> bool:
        """Whether a pin demands a named recipe, so that the ILP isn't free to choose shardings."""
        fixed = (self.tp, self.dp, self.cp, self.ep, self.etp, self.sequence_parallel)
        return any(value is not None for value in fixed)


@dataclass(frozen=True)
class Candidate:
    """One uniform way to run: p equal submeshes with one logical mesh.

    micro_batch_size: sequences one data-parallel replica runs at a time. roles: a role of the runtime an
    axis, or None where the ILP chooses. layers: the equal layers of each stage, or None where that is free.
    """

    mesh: Mesh
    num_stages: int
    micro_batch_size: int
    num_micro_batches: int
    roles: tuple[str, ...] | None
    schedule: Schedule = Schedule.ONE_F_ONE_B
    virtual_stages: int = 1
    layers: tuple[int, ...] | None = None

    @property
    def micro_batch(self) -> int:
        """Sequences of one micro-batch over all replicas."""
        return self.micro_batch_size * replicas(self.mesh)

    @property
    def joined(self) -> bool:
        """Whether the first stage holds the chain's last layer, too."""
        return self.num_stages == 1 or self.schedule is Schedule.ZB_V


def candidates(chain_: Chain, cluster: Cluster, workload: Workload, runtime: Runtime, pins: Pins, *,
               named: bool) -> Iterator[Candidate]:
    """Yield the uniform candidates: named ones (every recipe and schedule of the runtime), or those whose shardings are
    the ILP's."""
    total = cluster.num_devices
    sizes = set(submesh_sizes(cluster))
    for p in divisors(total):
        if p > chain_.count or total // p not in sizes or pins.pp not in (None, p):
            continue
        shapes = _meshes(cluster, total // p, pins)
        if named:
            shapes = chained.from_iterable(_with_expert_axis(cluster, one, chain_, pins) for one in shapes)
        for shape in shapes:
            for size in _micro_batch_sizes(workload, shape, pins):
                m = workload.global_batch_size // (replicas(shape) * size)
                if pins.num_micro_batches not in (None, m):
                    continue
                if not named:
                    plain = pins.schedule in (None, Schedule.ONE_F_ONE_B) and pins.virtual_stages in (None, 1)
                    if plain and size <= LARGEST_FREE_MICRO_BATCH:
                        yield Candidate(shape, p, size, m, None, layers=pins.layers)
                    continue
                for roles in roles_of(shape, chain_, pins):
                    for schedule, v in _schedules(chain_, runtime, p, m, pins):
                        yield Candidate(shape, p, size, m, roles, schedule, v, pins.layers)


def _meshes(cluster: Cluster, num_devices: int, pins: Pins) -> Iterator[Mesh]:
    tp, cp = pins.tp or 1, pins.cp or 1
    if cp > 1:
        dp, rest = divmod(num_devices, tp * cp)
        if rest == 0 and pins.dp in (None, dp):
            yield mesh(cluster, (dp, cp, tp))
        return
    found = meshes(cluster, num_devices)
    if pins.tp is not None and num_devices % pins.tp == 0 and all(m.shape[1] != pins.tp for m in found):
        found = (mesh(cluster, (num_devices // pins.tp, pins.tp)),)
    for one in found:
        if pins.tp in (None, one.shape[1]) and pins.dp in (None, one.shape[0]):
            yield one


def _with_expert_axis(cluster: Cluster, one: Mesh, chain_: Chain, pins: Pins) -> Iterator[Mesh]:
    """Yield a mesh as it is, and with an axis of its own for experts, taken out of the data axis.

    Unless ep is fixed, experts are spread within a node, or as far as they and the data axis go.
    """
    yield one
    if not chain_.experts:
        return
    dp, *rest = one.shape
    largest = gcd(dp, chain_.experts)
    for size in divisors(largest)[1:]:
        within = size * prod(rest) <= cluster.gpus_per_node
        if not (within or size == largest if pins.ep is None else pins.ep in (size, size * rest[-1])):
            continue
        try:
            yield mesh(cluster, (dp // size, size, *rest), ("data", "expert", *one.names[1:]))
        except ValueError:  # spread unevenly over nodes
            continue


def _micro_batch_sizes(workload: Workload, shape: Mesh, pins: Pins) -> tuple[int, ...]:
    if workload.global_batch_size % replicas(shape):
        return ()
    sizes = divisors(workload.global_batch_size // replicas(shape))
    if pins.micro_batch_size is not None:
        return tuple(size for size in sizes if size == pins.micro_batch_size)
    return tuple(size for size in sizes if size <= LARGEST_MICRO_BATCH)


def roles_of(shape: Mesh, chain_: Chain, pins: Pins) -> tuple[tuple[str, ...], ...]:
    """Return the named recipes of a mesh that the pins leave: a role of the runtime for each axis.

    Where tensor parallelism and experts spread over devices meet, sequences are split too unless that is ruled out: all
    of a group's devices would send the same tokens (Megatron-LM demands it).
    """
    return tuple(roles for roles in recipes(shape, experts=chain_.experts > 0) if _allowed(shape, roles, chain_, pins))


def _allowed(shape: Mesh, roles: tuple[str, ...], chain_: Chain, pins: Pins) -> bool:
    found = degrees_of(shape, roles, experts=chain_.experts > 0)
    spread = found.ep > 1 and found.tp > 1
    sequence = pins.sequence_parallel if pins.sequence_parallel is not None else (True if spread else None)
    return (sequence in (None, found.sequence_parallel) and pins.ep in (None, found.ep)
            and (not chain_.experts or (pins.etp in (None, found.etp) and chain_.experts % found.ep == 0)))


def _schedules(chain_: Chain, runtime: Runtime, p: int, m: int, pins: Pins) -> Iterator[tuple[Schedule, int]]:
    if pins.schedule in (None, Schedule.ONE_F_ONE_B) and pins.virtual_stages in (None, 1):
        yield Schedule.ONE_F_ONE_B, 1
    asked = pins.schedule in (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2) and pins.schedule
    if asked and pins.virtual_stages in (None, 1):
        yield asked, 1
    if pins.schedule is Schedule.ZB_V:
        slots = interleaved_slots(chain_, p, V_CHUNKS)
        if slots and legal(Schedule.ZB_V, p, m, V_CHUNKS, slots * V_CHUNKS) is None:
            yield Schedule.ZB_V, V_CHUNKS
    if pins.schedule not in (None, Schedule.INTERLEAVED) or pins.layers is not None:
        return
    if Schedule.INTERLEAVED not in runtime.schedules:
        return
    for v in range(2, MOST_VIRTUAL_STAGES + 1) if pins.virtual_stages is None else (pins.virtual_stages,):
        slots = interleaved_slots(chain_, p, v) if v > 1 else 0
        if slots and legal(Schedule.INTERLEAVED, p, m, v, slots * v) is None:
            yield Schedule.INTERLEAVED, v


def interleaved_slots(chain_: Chain, num_stages: int, virtual_stages: int) -> int:
    """Return the layers of each of p · v equal chunks, or 0 where the chain doesn't divide.

    Either the equal layers divide, and the ends come on top, or the whole chain does, and each end takes a layer's slot
    (Megatron-LM's `account_for_embedding_in_pipeline_split` and its counterpart for the loss).
    """
    parts = num_stages * virtual_stages
    if chain_.count % parts == 0:
        return chain_.count // parts
    return chain_.length // parts if chain_.length % parts == 0 else 0


def chunked_layers(chain_: Chain, candidate: Candidate) -> tuple[int, ...]:
    """Return the number of equal layers that each stage holds under a schedule with chunks."""
    p, v = candidate.num_stages, candidate.virtual_stages
    each = interleaved_slots(chain_, p, v) * v
    ends = 0 if chain_.count == each * p else 1
    tail = 0 if candidate.joined else p - 1
    return tuple(each - ends * ((index == 0) + (index == tail)) for index in range(p))
