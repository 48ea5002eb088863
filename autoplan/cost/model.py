"""`CostModel`: what a kernel or a collective costs on one cluster, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan.cluster.mesh import group as group_of
from autoplan.cluster.types import Axis
from autoplan.cost import collectives, compute
from autoplan.cost.kernels import Gemm, kernels
from autoplan.errors import InputError

if TYPE_CHECKING:
    from autoplan.cluster.types import Cluster
    from autoplan.cost.collectives import Curve, Operation
    from autoplan.runtimes import Runtime

Seconds = float | NDArray[np.float64]
Group = Axis | int | Sequence[int]

_ITEMSIZE = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


class CostModel:
    """Prices of one cluster under one runtime.

    Sizes are numbers or arrays that broadcast; results are floats for scalar input, else arrays. All in SI units. Every
    price is non-decreasing in every size and non-increasing in the device's and the links' speed.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime | None = None) -> None:
        self.cluster = cluster
        self.runtime = runtime
        self.kernels = kernels(cluster.device.name)
        self._curves: dict[tuple[Operation, Axis], Curve] = {}

    # ------------------------------------------------------------ compute

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s at `dtype`. InputError if the device doesn't support it."""
        flops = self.cluster.device.peak_flops
        if dtype not in flops:
            raise InputError("the device doesn't support this dtype", where=self.cluster.device.name, key="dtype",
                             found=dtype, allowed=", ".join(flops))
        return flops[dtype]

    def matmul(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, batch: ArrayLike = 1, dtype: str = "bf16") -> Seconds:
        """Seconds of `batch` products C[m,n] = A[m,k]·B[k,n] (see `compute.matmul_time`)."""
        device = self.cluster.device
        return _out(compute.matmul_time(self._gemm(dtype), self.kernels.units, self.peak(dtype), device.hbm_bandwidth,
                                        m, n, k, batch, _ITEMSIZE[dtype]))

    def attention(self, *, batch: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, q_len: ArrayLike, kv_len: ArrayLike,
                  head_dim: ArrayLike, causal: bool = True, dtype: str = "bf16", flash: bool | None = None,
                  backward: bool = False) -> Seconds:
        """Seconds of the attention core, from q, k and v to its output, or of its backward pass.

        flash: fused (None: if the device has such kernels); otherwise two batched matmuls and passes over the scores.
        """
        device, fits = self.cluster.device, self.kernels
        peak, itemsize = self.peak(dtype), _ITEMSIZE[dtype]
        if device.flash_attention if flash is None else flash:
            return _out(compute.flash_time(
                fits.attention, fits.units, peak, device.hbm_bandwidth, batch, heads, kv_heads, q_len, kv_len,
                head_dim, causal=causal, backward=backward, itemsize=itemsize))
        return _out(compute.unfused_time(
            self._gemm(dtype), fits.memory["elementwise"], fits.units, peak, device.hbm_bandwidth, batch, heads, q_len,
            kv_len, head_dim, backward=backward, itemsize=itemsize))

    def memory_bound(self, nbytes: ArrayLike, kind: str = "mixed") -> Seconds:
        """Seconds of an operator that reads and writes `nbytes` of device memory in all; zero bytes are free.

        kind: "norm", "activation", "elementwise" (adds, softmax passes, optimizer), or "mixed", the fit over all three.
        """
        size = np.asarray(nbytes, dtype=np.float64)
        time = compute.memory_time(self.kernels.memory[kind], self.cluster.device.hbm_bandwidth, size)
        return _out(np.where(size > 0, time, 0.0))

    def _gemm(self, dtype: str) -> Gemm:
        return self.kernels.gemm_fp8 if dtype == "fp8" else self.kernels.gemm

    # ------------------------------------------------------------ communication

    def all_reduce(self, nbytes: ArrayLike, group: Group) -> Seconds:
        """Seconds to sum a tensor of `nbytes` that each rank of `group` holds, the result on all of them."""
        return self._collective("all_reduce", nbytes, group)

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

    def _collective(self, op: Operation, nbytes: ArrayLike, group: Group) -> Seconds:
        axis = group if isinstance(group, Axis) else group_of(self.cluster, group)
        found = self._curves.get((op, axis))
        if found is None:
            found = self._curves[op, axis] = collectives.curve(self.cluster, op, axis)
        return _out(found(nbytes))


def _out(time: NDArray[np.float64]) -> Seconds:
    return float(time) if time.ndim == 0 else time
