"""`CostModel`: what a kernel or a collective costs on one cluster in seconds, and what a stage holds in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan import runtimes
from autoplan.cluster.mesh import group as group_of
from autoplan.cluster.types import Axis
from autoplan.cost import collectives, compute, memory
from autoplan.cost.kernels import Gemm, kernels
from autoplan.errors import InputError

if TYPE_CHECKING:
    from autoplan.cluster.types import Cluster
    from autoplan.cost.collectives import Operation
    from autoplan.cost.memory import StageBytes
    from autoplan.cost.profile import Profile
    from autoplan.runtimes import Runtime
    from autoplan.workload import Workload

Array = NDArray[np.float64]
Seconds = float | Array
GroupName = Literal["node", "cluster"]
Group = Axis | int | Sequence[int] | GroupName

_ITEMSIZE = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


class CostModel:
    """Prices of one cluster under one runtime (None: `plain`), corrected by a profile of measurements if there is one.

    Sizes are numbers or arrays that broadcast; results are floats for scalar input, else float64 arrays of the
    broadcast shape. Seconds, bytes, FLOP, bytes/s; counts and lengths in elements. Every price is non-decreasing in
    every size and non-increasing in the device's and the links' speed. A size of zero is no work and takes no time;
    InputError for a size that is negative, NaN, infinite or no number.

    A group of devices is one of: "node" (all GPUs of one node); "cluster" (all devices); a number n of consecutive
    devices from device 0; a sequence of device ids, the same number on each node it touches; or an `Axis`, the only
    form that says how many groups like it are active at once. InputError for a group that is empty, uneven, repeats a
    device or isn't inside the cluster, and for an unknown name.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime | None = None, profile: Profile | None = None) -> None:
        self.cluster = cluster
        self.runtime = runtime
        self.profile = profile
        self.kernels = kernels(cluster.device.name)
        self._refinement = profile.of(cluster) if profile else None
        self._curves: dict[tuple[Operation, Axis, bool], Callable[[ArrayLike], Array]] = {}

    # ------------------------------------------------------------ compute

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s at `dtype`. InputError if the device doesn't support it."""
        flops = self.cluster.device.peak_flops
        if dtype not in flops:
            raise InputError("the device doesn't support this dtype", where=self.cluster.device.name, key="dtype",
                             found=dtype, allowed=", ".join(flops))
        return flops[dtype]

    def matmul(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, batch: ArrayLike = 1, dtype: str = "bf16",
               accumulate: bool = False, own_cast: bool = False) -> Seconds:
        """Seconds of `batch` products C[m,n] = A[m,k]·B[k,n] in a long run (see `compute.matmul_time`).

        dtype: of operands and result (of operands alone: fp8's result is bf16). accumulate: the result is added to an
        fp32 tensor instead (a main gradient). own_cast: each fp8 matmul converts A by a kernel of its own, as inference
        engines do; otherwise forward and backward share conversions. InputError if the device doesn't support `dtype`.
        """
        fit, peak = self._gemm(dtype, own_cast), self.peak(dtype) * self.kernels.sustained
        m, n, k, batch = sizes = _checked(m=m, n=n, k=k, batch=batch)
        result = 8.0 if accumulate else 2.0 if dtype == "fp8" else None
        time = compute.matmul_time(fit, self.kernels.units, peak, self.cluster.device.hbm_bandwidth, m, n, k, batch,
                                   _ITEMSIZE[dtype], result)
        return _priced(self._refined("gemm", dtype, time), *sizes)

    def attention(self, *, batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, q_len: ArrayLike, kv_len: ArrayLike,
                  head_dim: ArrayLike, causal: bool = True, dtype: str = "bf16", flash: bool | None = None,
                  backward: bool = False, fused_softmax: bool = True, dropout: bool = False,
                  kv_dtype: str | None = None, generation: int | None = None) -> Seconds:
        """Seconds of the attention core, from q, k and v to its output, or of its backward pass.

        batch: sequences. heads, kv_heads: of queries, and of keys and values. q_len, kv_len: positions of a sequence.
        causal: the last query sees every key, each earlier one a key less. flash: fused (None: if the device has such
        kernels); otherwise two batched matmuls and passes over the scores, masked or not. backward: the backward pass
        alone. generation: of FlashAttention (None: the device's newest). fused_softmax, dropout: where attention isn't
        fused, whether scaling, mask and softmax are one kernel, and whether probabilities are dropped. kv_dtype: of the
        keys and values that a few queries read from a cache (None: `dtype`). InputError if the device doesn't support
        `dtype`, or for an unknown `kv_dtype`.
        """
        device, fits = self.cluster.device, self.kernels
        peak, itemsize = self.peak(dtype), _ITEMSIZE[dtype]
        sizes = _checked(batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, head_dim=head_dim)
        b, h, g, q, kv, d = sizes
        if device.flash_attention if flash is None else flash:
            time = compute.flash_time(
                fits.attention, fits.units, peak, device.hbm_bandwidth, b, h, g, q, kv, d, causal=causal,
                backward=backward, itemsize=itemsize)
            newest = fits.attention.generation
            time = time * compute.generations_behind(newest, min(generation or newest, newest))
            if not backward:
                time = np.maximum(time, compute.decode_time(fits.decode, device.hbm_bandwidth, b, h, g, kv, d,
                                                            _itemsize("kv_dtype", kv_dtype or dtype)))
            phase = "backward" if backward else "decode" if (q <= 1).all() else "forward"
            return _priced(self._refined("attention", phase, time), *sizes)
        time = compute.unfused_time(
            self._gemm(dtype), fits.memory["elementwise"], fits.units, peak * fits.sustained, device.hbm_bandwidth,
            b, h, q, kv, d, backward=backward, itemsize=itemsize, fused_softmax=fused_softmax, dropout=dropout)
        return _priced(self._refined("attention", "unfused", time), *sizes)

    def memory_bound(self, nbytes: ArrayLike, kind: str = "mixed") -> Seconds:
        """Seconds of an operator that reads and writes `nbytes` of device memory in all.

        kind: "norm", "activation", "elementwise" (adds, softmax passes, fused optimizer updates: plain streams),
        "rotary", "embedding", or "mixed", one fit over the first three. InputError for another kind.
        """
        if kind not in self.kernels.memory:
            raise InputError("unknown kind of memory-bound operator", key="kind", found=kind,
                             allowed=", ".join(self.kernels.memory))
        (size,) = _checked(nbytes=nbytes)
        fit, device = self.kernels.memory[kind], self.cluster.device
        time = compute.memory_time(fit, self.kernels.units, device.hbm_bandwidth, size)
        return _priced(self._refined("memory", kind, time), size)

    def launch(self, kind: str, group: str) -> float:
        """Seconds of a kernel that don't depend on its size, before any profile.

        kind and group: "gemm" and a dtype, "attention" and a phase (forward, backward, decode, unfused), "memory" and
        a kind of operator.
        """
        fits = self.kernels
        if kind == "gemm":
            return self._gemm(group).launch
        if kind == "memory":
            return fits.memory[group].launch
        parts = {"decode": fits.decode.launch, "unfused": 2 * fits.gemm.launch + fits.memory["elementwise"].launch}
        return parts.get(group, fits.attention.launch)

    def _refined(self, kind: str, group: str, time: Array) -> Array:
        """Return a kernel's time as the profile corrects it."""
        if self._refinement is None:
            return time
        return self._refinement.kernel(kind, group, time, self.launch(kind, group))

    def _gemm(self, dtype: str, own_cast: bool = False) -> Gemm:
        if dtype != "fp8":
            return self.kernels.gemm
        return self.kernels.gemm_fp8_engine if own_cast else self.kernels.gemm_fp8

    # ------------------------------------------------------------ memory

    def stage_bytes(self, num_params: float, *, workload: Workload, zero: int = 0, shards: int = 1,
                    saved_bytes: float = 0.0, in_flight: float = 1.0, transient_bytes: float = 0.0,
                    runtime: Runtime | None = None) -> StageBytes:
        """Bytes that one device of a pipeline stage holds at its peak, by cause (see `memory.peak_bytes`).

        num_params: parameters that the device computes with (after tensor parallelism, before ZeRO splits them).
        workload: gives the bytes of a weight, a gradient and the optimizer state of a parameter. zero: ZeRO stage
        0 to 3 over `shards` data-parallel devices. saved_bytes: activations that one micro-batch saves for its backward
        pass, on this device. in_flight: micro-batches whose activations are held at once (`schedules.in_flight`; a
        fraction under interleaving). transient_bytes: alive only while a layer runs. runtime: default the model's own.
        InputError for a negative, NaN or infinite figure, a ZeRO stage that doesn't exist or less than one shard.
        """
        if zero not in (0, 1, 2, 3):
            raise InputError("unknown ZeRO stage", key="zero", found=zero, allowed="0, 1, 2, 3")
        if not isinstance(shards, int) or shards < 1:
            raise InputError("the state of a parameter lies on at least one device", key="shards", found=shards,
                             allowed="whole numbers from 1")
        params, saved, held, transient = (float(size) for size in _checked(
            num_params=num_params, saved_bytes=saved_bytes, in_flight=in_flight, transient_bytes=transient_bytes))
        rules = runtime or self.runtime or runtimes.load("plain")
        state = memory.state_bytes(params, workload, zero, float(shards), rules)
        return memory.itemised(state, saved, transient, held, rules)

    # ------------------------------------------------------------ communication

    def all_reduce(self, nbytes: ArrayLike, group: Group, *, custom: bool = False) -> Seconds:
        """Seconds to sum a tensor of `nbytes` that each rank of `group` holds, the result on all of them.

        custom: inside a node, an inference engine's own kernel where it was measured and is faster than NCCL.
        """
        return self._collective("all_reduce", nbytes, group, custom)

    def all_gather(self, nbytes: ArrayLike, group: Group) -> Seconds:
        """Seconds until each rank of `group` holds the whole tensor of `nbytes`, of which each had a part."""
        return self._collective("all_gather", nbytes, group)

    def reduce_scatter(self, nbytes: ArrayLike, group: Group) -> Seconds:
        """Seconds to sum a tensor of `nbytes` that each rank of `group` holds, each keeping its part of the result."""
        return self._collective("reduce_scatter", nbytes, group)

    def all_to_all(self, nbytes: ArrayLike, group: Group) -> Seconds:
        """Seconds until each rank has sent an equal part of its `nbytes` to each rank of `group`."""
        return self._collective("all_to_all", nbytes, group)

    def p2p(self, nbytes: ArrayLike, group: Group) -> Seconds:
        """Seconds to send `nbytes` from one rank of `group` to the next."""
        return self._collective("p2p", nbytes, group)

    def _collective(self, op: Operation, nbytes: ArrayLike, group: Group, custom: bool = False) -> Seconds:
        axis = group if isinstance(group, Axis) else self._axis(group)
        found: Callable[[ArrayLike], Array] | None = self._curves.get((op, axis, custom))
        if found is None:
            _inside(self.cluster, axis)
            found = collectives.curve(self.cluster, op, axis, custom)
            if self._refinement is not None:
                found = self._refinement.collective(op, axis, found)
            self._curves[op, axis, custom] = found
        return _out(found(*_checked(nbytes=nbytes)))

    def _axis(self, group: int | Sequence[int] | GroupName) -> Axis:
        """Return what a number of devices, their ids or a name stands for."""
        if isinstance(group, str):
            if group not in get_args(GroupName):
                raise InputError("unknown group of devices", where=self.cluster.name, key="group", found=group,
                                 allowed='"node", "cluster", a number of devices, device ids or an Axis')
            return group_of(self.cluster, self.cluster.gpus_per_node if group == "node" else self.cluster.num_devices)
        try:
            return group_of(self.cluster, group)
        except (TypeError, ValueError) as error:
            raise InputError(f"no group of devices that can be priced: {error}", where=self.cluster.name, key="group",
                             allowed="devices of the cluster, each once, equally many on each node") from error


def _inside(cluster: Cluster, axis: Axis) -> None:
    """Raise InputError unless the cluster has the nodes, and each node the devices, that a group spans."""
    if axis.intra > cluster.gpus_per_node or axis.nodes > cluster.num_nodes:
        raise InputError("the group is larger than the cluster", where=cluster.name, key="group", found=axis,
                         allowed=f"intra ≤ {cluster.gpus_per_node}, nodes ≤ {cluster.num_nodes}")


def _checked(**sizes: ArrayLike) -> tuple[Array, ...]:
    """Return sizes as arrays. InputError, naming the argument, unless every element is a number from 0 to below ∞."""
    checked = []
    for name, value in sizes.items():
        try:
            size = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            size = np.array(np.nan)
        good = 0 <= float(size) < math.inf if size.ndim == 0 else ((size >= 0) & (size < np.inf)).all()
        if not good:
            raise InputError("a size can't be negative, infinite or no number", key=name, found=value, allowed="≥ 0")
        checked.append(size)
    return tuple(checked)


def _itemsize(key: str, dtype: str) -> float:
    """Bytes of an element. InputError for an unknown dtype."""
    if dtype not in _ITEMSIZE:
        raise InputError("unknown dtype", key=key, found=dtype, allowed=", ".join(_ITEMSIZE))
    return _ITEMSIZE[dtype]


def _priced(time: Array, *sizes: Array) -> Seconds:
    """Return the time of work of `sizes`, which is no work, and free, where any of them is zero."""
    if all(bool(size) if size.ndim == 0 else size.all() for size in sizes):
        return _out(time)
    work = np.asarray(math.prod(size > 0 for size in sizes))
    return _out(np.where(work, time, 0.0))


def _out(time: Array) -> Seconds:
    return float(time) if time.ndim == 0 else time
