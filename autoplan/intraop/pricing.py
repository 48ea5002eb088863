"""Seconds and bytes of one operator's strategies, of one parameter's ways of being stored, of conversions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Axis, Device, Mesh
from autoplan.cost.memory import state_bytes, update_bytes
from autoplan.cost.model import CostModel
from autoplan.intraop.strategies import REPEATED, Ints, OpStrategies
from autoplan.intraop.terms import NUM_TERMS, Term
from autoplan.model import ops
from autoplan.model.graph import BATCH, KV_SEQ, SEQ, Op, Param
from autoplan.model.ops.loss import EXCHANGED_BYTES
from autoplan.model.ops.work import AttentionCore, Gemm, Kernel, Numerics
from autoplan.runtimes import Runtime, TensorOverlap
from autoplan.sharding import PARTIAL, Collective, Conversions
from autoplan.workload import Attention, Workload

Array = NDArray[np.float64]

Among = Literal["all", "shards", "replicas"]

_OF_GRADIENTS = [Term.GRADIENTS, Term.STATES, Term.OPTIMIZER, Term.SYNC, Term.REDUCE, Term.GATHER_STEP]

STREAM_BYTES = float(2**30)  # a stream long enough for its launch not to count


def attention_kernel(workload: Workload, device: Device) -> Attention:
    """Return the kernel of attention: what is asked, else the fused one where the device has it."""
    return workload.attention or (Attention.FLASH if device.flash_attention else Attention.FUSED_SOFTMAX)


@dataclass(frozen=True)
class Setting:
    """Where a layer runs and on what: everything its price depends on besides the layer.

    micro_batch: sequences of one micro-batch, over all devices of the mesh. shard: ranks of the data axis over which
    ZeRO splits, those beyond being replicas (hybrid sharding); None: all.
    """

    mesh: Mesh
    costs: CostModel
    runtime: Runtime
    workload: Workload
    micro_batch: int
    shard: int | None = None

    @cached_property
    def numerics(self) -> Numerics:
        """Element size, and whether attention is fused."""
        return Numerics(self.workload.precision.bytes, self.attention.fused, self.workload.dropout,
                        self.runtime.loss, self.workload.frozen)

    @property
    def attention(self) -> Attention:
        """The kernel of attention."""
        return attention_kernel(self.workload, self.costs.cluster.device)

    @property
    def accumulates(self) -> bool:
        """Whether a weight's gradient is added to an fp32 one."""
        return self.workload.grad_bytes > self.workload.precision.bytes

    @property
    def chunks(self) -> int:
        """Parts into which a layer's products are cut along tokens, to run beside their collectives."""
        return self.tensor_ranks if self.runtime.overlap.tensor is TensorOverlap.CHUNKED else 1

    @property
    def tensor_ranks(self) -> int:
        """Devices that share a layer's products where a named recipe runs: the last mesh axis."""
        return self.mesh.shape[-1]

    def sizes(self, op: Op) -> dict[str, int]:
        """Return the size of every loop dim of `op`, unsplit."""
        seq = self.workload.seq_len
        return {BATCH: self.micro_batch, SEQ: seq, KV_SEQ: seq} | op.static_sizes

    def group(self, axes: Sequence[int]) -> Axis:
        """Return the group of devices spanned by some mesh axes together."""
        chosen = [self.mesh.axes[axis] for axis in axes]
        intra = int(np.prod([axis.intra for axis in chosen], dtype=np.int64))
        nodes = int(np.prod([axis.nodes for axis in chosen], dtype=np.int64))
        on_node = max((axis.intra * axis.sharing for axis in self.mesh.axes), default=1)
        return Axis(size=intra * nodes, intra=intra, nodes=nodes, sharing=max(1, on_node // intra))

    def collective(self, kind: Collective, nbytes: Array, axes: tuple[int, ...]) -> Array:
        """Return the seconds of one conversion step over some mesh axes together (see `autoplan.sharding.Price`)."""
        group = self.group(axes)
        if kind is Collective.PERMUTE:
            return np.asarray(self.costs.p2p(nbytes, group))
        return np.asarray(getattr(self.costs, kind.value)(nbytes, group))

    def conversions(self, shape: tuple[float, ...]) -> Conversions:
        """Return the seconds between layouts of an activation of `shape`; kept for reuse."""
        if shape not in self._conversions:
            self._conversions[shape] = Conversions(
                shape, self.workload.precision.bytes, self.mesh.shape, self.collective)
        return self._conversions[shape]

    @cached_property
    def _conversions(self) -> dict[tuple[float, ...], Conversions]:
        return {}

    @cached_property
    def _bucket_rates(self) -> dict[tuple[str, tuple[int, ...], Among], float]:
        return {}

    def bucketed(self, kind: str, axes: tuple[int, ...], among: Among = "all") -> float:
        """Return the seconds a byte of a gradient or parameter collective, which travels in buckets.

        among: all ranks of these mesh axes, those that ZeRO splits over, or those that hold the same part.
        """
        key = (kind, axes, among)
        if key not in self._bucket_rates:
            bucket = float(self.runtime.bucket_bytes)
            self._bucket_rates[key] = float(getattr(self.costs, kind)(bucket, self._among(axes, among))) / bucket
        return self._bucket_rates[key]

    def replicas(self, data: NDArray[np.bool_]) -> Array:
        """Return how many ranks hold the same part of what ZeRO splits over the data axes [K, A], [K]."""
        return np.where(data[:, 0], float(self.mesh.shape[0] // (self.shard or self.mesh.shape[0])), 1.0)

    def _among(self, axes: tuple[int, ...], among: Among) -> Axis:
        whole = self.group(axes)
        copies = int(self.replicas(np.array([[0 in axes]]))[0])
        size = whole.size // copies
        intra = math.gcd(size, whole.intra)  # neighbours share the parts
        on_node = whole.sharing * whole.intra
        return {"all": whole, "shards": Axis(size, intra, size // intra, on_node // intra),
                "replicas": Axis(copies, whole.intra // intra, copies * intra // whole.intra, whole.sharing * intra),
                }[among]

    def copies_rate(self, copies: int) -> float:
        """Return the seconds a byte of an all-reduce between `copies` neighbours, 0 for one.

        Neighbours are on the last mesh axis; on all axes where that has fewer devices.
        """
        if copies == 1:
            return 0.0
        last = self.mesh.axes[-1]
        if copies > last.size:
            last = self.group(range(len(self.mesh.axes)))
        intra = math.gcd(copies, last.intra)
        group = Axis(size=copies, intra=intra, nodes=copies // intra, sharing=last.intra * last.sharing // intra)
        bucket = float(self.runtime.bucket_bytes)
        return float(self.costs.all_reduce(bucket, group)) / bucket

    @cached_property
    def stream_rate(self) -> float:
        """Seconds a byte of a long plain stream, as a fused optimizer's update is."""
        return float(self.costs.memory_bound(STREAM_BYTES, "elementwise")) / STREAM_BYTES

    def seconds(self, kernel: Kernel, *, backward: bool = False, low_precision: bool = True) -> Array:
        """Return the seconds of a kernel, [K]. low_precision: whether products may run in fp8."""
        dtype = self.workload.precision.unquantised.value
        if isinstance(kernel, Gemm):
            products = self.workload.precision.value if low_precision else dtype
            parts = 1 if kernel.gradient or not low_precision else self.chunks
            return parts * np.asarray(self.costs.matmul(
                kernel.m / parts, kernel.n, kernel.k, batch=kernel.batch, dtype=products,
                accumulate=kernel.gradient and self.accumulates))
        if isinstance(kernel, AttentionCore):
            return np.asarray(self.costs.attention(
                batch=kernel.batch, heads=kernel.heads, kv_heads=kernel.kv_heads, q_len=kernel.q_len,
                kv_len=kernel.kv_len, head_dim=kernel.head_dim, causal=kernel.causal, dtype=dtype,
                flash=self.attention.fused, generation=self.attention.generation,
                fused_softmax=self.attention is not Attention.UNFUSED, dropout=self.workload.dropout,
                backward=backward))
        return np.asarray(self.costs.memory_bound(kernel.nbytes, kernel.kind))


def op_terms(chosen: OpStrategies, setting: Setting) -> Array:
    """Return the cost vectors [K, NUM_TERMS] of an operator's strategies, without its parameters and operands."""
    work = ops.work(chosen.op, chosen.local, setting.numerics)
    terms = np.zeros((chosen.count, NUM_TERMS))
    low = not any(dim.name == "vocab" for dim in chosen.op.dims)  # Transformer Engine leaves the head in bf16
    for kernel in work.forward:
        terms[:, Term.FORWARD] += setting.seconds(kernel, low_precision=low)
    for kernel in work.backward:
        of_weights = not isinstance(kernel, AttentionCore) and kernel.gradient
        if of_weights and setting.workload.frozen:
            continue
        seconds = setting.seconds(kernel, backward=True, low_precision=low)
        terms[:, Term.BACKWARD] += seconds
        if of_weights:
            terms[:, Term.WEIGHT_GRADIENT] += seconds
    if chosen.op.kind == "attention":
        terms[:, Term.CORE] = terms[:, Term.FORWARD]
    terms[:, Term.HOST_FORWARD] = setting.runtime.operation_seconds * len(work.forward)
    terms[:, Term.HOST_BACKWARD] = setting.runtime.operation_seconds * len(work.backward)
    terms[:, Term.SAVED] = work.extra_saved
    terms[:, Term.SCORES] = work.scores
    terms[:, Term.WORKSPACE] = work.workspace
    if work.keeps_output:
        shape = tensor_shape(chosen.op, chosen.op.output.dims, setting)
        terms[:, Term.SAVED] += local_bytes(chosen.output, shape, setting)
    if chosen.op.kind == "loss":
        terms[:, Term.CONVERT_FORWARD] = _exchange(chosen, setting)
    return terms


def _exchange(chosen: OpStrategies, setting: Setting) -> Array:
    """Return the seconds of a loss's exchange of statistics over the axes that split the vocabulary."""
    vocab = [dim.name for dim in chosen.op.dims].index("vocab")
    tokens = chosen.local[BATCH] * chosen.local[SEQ]
    seconds = np.zeros(chosen.count)
    splits = chosen.assign == vocab
    for split in np.unique(splits, axis=0):
        over = (splits == split).all(axis=1)
        axes = tuple(int(axis) for axis in np.flatnonzero(split))
        if axes:
            seconds[over] = setting.collective(Collective.ALL_REDUCE, tokens[over] * EXCHANGED_BYTES, axes)
    return seconds


def tensor_shape(op: Op, dims: tuple[str, ...], setting: Setting) -> tuple[float, ...]:
    """Return the unsplit shape of one of the operator's tensors."""
    sizes = setting.sizes(op) | {inner: int(op.attr(inner) or 1) for inner, _ in op.grouped}
    return tuple(float(sizes[name]) for name in dims)


def local_bytes(layout: Ints, shape: tuple[float, ...], setting: Setting) -> Array:
    """Return the bytes one device holds of an activation of `shape` under the layouts [K, A]."""
    held = np.full(len(layout), float(setting.workload.precision.bytes))
    for position, size in enumerate(shape):
        split = np.where(layout == position, np.array(setting.mesh.shape), 1).prod(axis=1)
        held = held * np.ceil(size / split)
    return held


def local_numel(op: Op, param: Param, layouts: Ints, setting: Setting) -> Array:
    """Return the elements of a parameter that one device computes with under the layouts [K, A]."""
    numel = np.ones(len(layouts))
    for position, name in enumerate(param.dims):
        split = np.where(layouts == position, np.array(setting.mesh.shape), 1).prod(axis=1)
        numel = numel * np.ceil(op.static_sizes[name] / split)
    return numel


def copies(op: Op, param: Param, layouts: Ints, setting: Setting) -> Ints:
    """Return on how many devices each part of a split parameter is repeated (key/value heads), [K]."""
    result = np.ones(len(layouts), np.int64)
    for position, name in enumerate(param.dims):
        if name in REPEATED:
            split = np.where(layouts == position, np.array(setting.mesh.shape), 1).prod(axis=1)
            result = result * np.maximum(1, split // op.static_sizes[name])
    return result


@dataclass(frozen=True)
class Stored:
    """What the price of storing parameters depends on, a row a layout, [K]; many parameters can be priced at once.

    numel: elements one device computes with. data [K, A]: mesh axes over which the gradient is a partial sum. copies:
    devices that hold each part of a split parameter. shared: the storage is another operator's.
    """

    numel: Array
    data: NDArray[np.bool_]
    copies: Ints
    shared: NDArray[np.bool_]


def stored(op: Op, param: Param, layouts: Ints, setting: Setting, *, shared: bool = False) -> Stored:
    """Describe a parameter in the layouts [K, A].

    shared: its storage belongs to another operator of the stage (tied embeddings), so nothing is paid for it here.
    """
    data = (layouts == PARTIAL) & (np.array(setting.mesh.shape) > 1)
    return Stored(local_numel(op, param, layouts, setting), data, copies(op, param, layouts, setting),
                  np.full(len(layouts), shared))


def together(parts: Sequence[Stored]) -> Stored:
    """Return the rows of all parts, one after the other."""
    return Stored(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Stored)))


def param_terms(rows: Stored, zeros: Sequence[int], setting: Setting) -> Array:
    """Return the cost vectors [Z, K, NUM_TERMS] of storing parameters at Z ZeRO stages."""
    workload = setting.workload
    numel = np.where(rows.shared, 0.0, rows.numel)
    terms = np.zeros((len(zeros), len(numel), NUM_TERMS))
    shards = np.where(rows.data, np.array(setting.mesh.shape), 1).prod(axis=1) / setting.replicas(rows.data)
    zero = np.array(zeros)[:, None]
    held = state_bytes(numel, workload, zero, shards, setting.runtime)
    gradient, weight = numel * workload.reduce_bytes, numel * workload.weight_bytes
    all_reduce, reduce_scatter, all_gather, among_replicas = _rates(rows.data, setting)
    scattered = reduce_scatter + among_replicas / shards
    once = zero <= 1
    terms[..., Term.WEIGHTS], terms[..., Term.GRADIENTS] = held.weights, held.gradients
    terms[..., Term.STATES] = held.states
    terms[..., Term.OPTIMIZER] = setting.stream_rate * update_bytes(numel, workload, zero, shards)
    terms[..., Term.SYNC] = np.where(once, gradient * np.where(zero == 0, all_reduce, scattered), 0.0)
    terms[..., Term.REDUCE] = np.where(once, 0.0, gradient * scattered)
    terms[..., Term.GATHER_STEP] = np.where((zero == 1) | (zero == 2), weight * all_gather, 0.0)
    terms[..., Term.GATHER] = np.where(zero == 3, 2.0 * weight * all_gather, 0.0)  # forward and backward
    repeated = np.array([setting.copies_rate(int(n)) for n in rows.copies])
    terms[..., Term.SYNC] += gradient / np.where(zero >= 1, shards, 1.0) * repeated
    gathered = np.where(zero == 3, setting.runtime.gathered_layers * weight, 0.0)
    scattering = np.where(once, 0.0, numel * workload.grad_bytes)
    if workload.frozen:
        terms[..., _OF_GRADIENTS] = 0.0
        scattering = np.zeros(1)
    terms[..., Term.TRANSIENT] = np.where(shards > 1, gathered + scattering, 0.0)
    return terms


def _rates(data: NDArray[np.bool_], setting: Setting) -> tuple[Array, Array, Array, Array]:
    """Return seconds a byte of an all-reduce over each row's data axes, of reduce-scatter and all-gather over the ranks
    that ZeRO splits over, and of an all-reduce between replicas; 0 without any."""
    rates = np.zeros((4, len(data)))
    for row, mask in enumerate(data):
        axes = tuple(int(axis) for axis in np.flatnonzero(mask))
        if axes:
            rates[:, row] = [setting.bucketed("all_reduce", axes), setting.bucketed("reduce_scatter", axes, "shards"),
                             setting.bucketed("all_gather", axes, "shards"),
                             setting.bucketed("all_reduce", axes, "replicas")]
    return rates[0], rates[1], rates[2], rates[3]
