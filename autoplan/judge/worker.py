"""What runs in a process of its own, with as many virtual CPU devices as a mesh needs: compiling, and small runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autoplan.judge.hlo import Sent, sent

if TYPE_CHECKING:
    from autoplan.export.placement import Program

SEED = 0
# Code that never runs needn't be fast: an eighth of the time to compile, and the same collectives.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True,
         "xla_cpu_use_fusion_emitters": False}


@dataclass(frozen=True)
class Compiled:
    """What XLA made of a program: bytes sent by each device, bytes of its arguments, FLOPs."""

    sent: Sent
    argument_bytes: int
    flops: float


@contextmanager
def compiler(num_devices: int) -> Iterator[ProcessPoolExecutor]:
    """Give a process that has `num_devices` virtual devices, to submit `compiled` and `difference` to."""
    with ProcessPoolExecutor(1, get_context("spawn"), _virtual_devices, (num_devices,)) as pool:
        yield pool


def _virtual_devices(count: int) -> None:
    """Make this process have `count` devices. Must run before JAX is imported."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"


def compiled(program: Program) -> Compiled:
    """Compile a program for its mesh and read off what it does. No data is allocated."""
    from autoplan.judge.program import build, devices_mesh

    step = build(program, devices_mesh(program.layers[0]))
    return compile_step(step.run, step.arguments, step.shardings, step.results)


def compile_step(run: Callable[..., object], arguments: tuple[object, ...], shardings: object,
                 results: object) -> Compiled:
    """Compile a function for arguments and results of given shapes and shardings, and read off what it does."""
    import jax

    done = jax.jit(run, in_shardings=shardings, out_shardings=results,
                   keep_unused=True).lower(*arguments).compile(QUICK)
    cost = done.cost_analysis() or {}
    return Compiled(sent(done.as_text() or ""), done.memory_analysis().argument_size_in_bytes,
                    float(cost.get("flops", float("nan"))))


def difference(program: Program) -> float:
    """Run a program on its mesh and on one device; return the largest difference between their results.

    Relative to the largest number of each: output, gradients of inputs, of parameters, new parameters, moments. (The
    gradient of a key's bias is zero but for rounding, so that tensors by themselves can't be compared so.)
    """
    import jax

    from autoplan.judge.program import build, devices_mesh

    sharded, plain = build(program, devices_mesh(program.layers[0])), build(program, None)
    values = _values(program, plain.arguments)
    ours = jax.jit(sharded.run, in_shardings=sharded.shardings, out_shardings=sharded.results)(*values)
    theirs = jax.jit(plain.run)(*values)
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
        largest = max((float(np.abs(b).max()) for _, b in pairs), default=0.0)
        apart = max((float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs), default=0.0)
        worst = max(worst, apart / largest if largest else apart)
    return worst


def _values(program: Program, arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """Return arguments of those shapes: normal numbers, weights the smaller the more of them are summed, token ids."""
    import jax

    from autoplan.judge.program import vocabularies

    random = np.random.default_rng(SEED)
    params, moments, inputs, tokens, gradient = arguments

    def normal(of: jax.ShapeDtypeStruct) -> NDArray[np.float32]:
        numbers: NDArray[np.float32] = random.standard_normal(of.shape).astype(np.float32)
        return numbers

    vocab = vocabularies(program)
    weights = {name: normal(of) / np.float32(max(1, of.shape[0]) ** 0.5) for name, of in params.items()}
    ids = {name: random.integers(0, vocab[name], of.shape).astype(np.int32) for name, of in tokens.items()}
    return weights, jax.tree.map(normal, moments), jax.tree.map(normal, inputs), ids, normal(gradient)
