"""The fitted constants of a device: how near its data sheet matmuls, attention and memory traffic come.

`calibration/compute.json` holds them, written by `benchmarks/fit_compute.py` from measured kernels. A device that was
measured has its own figures; any other takes the `generic` fit (pooled over the measured devices) for what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

GENERIC = "generic"


@dataclass(frozen=True)
class Gemm:
    """Constants of the tile model of a matmul (see `compute.matmul_time`)."""

    launch: float  # seconds a kernel takes to start and end
    efficiency: float  # fraction of the peak that a full wave of the best tiles reaches at infinite depth
    small: float  # efficiency of 128×64 tiles relative to 128×128 (and again, squared, of 64×64)
    large: float  # efficiency of 256×128 tiles relative to 128×128
    depth: float  # prologue and epilogue of a tile, in elements of k
    quantisation: float  # 1: a last, partial wave costs a whole one; 0: nothing
    memory: float  # fraction of the memory bandwidth that operands stream at
    sharpness: float  # p of the p-norm that joins compute and memory time (∞ is a plain maximum)
    cast: float  # bytes moved per element of A to convert it to the operand dtype (fp8 only)


@dataclass(frozen=True)
class Attention:
    """Constants of fused attention (see `compute.flash_time`)."""

    launch: float  # seconds
    efficiency: float  # fraction of the peak at infinite head_dim
    softmax: float  # cost of the exponential of a score, in elements of head_dim
    depth: float  # start-up and masked part of a block of queries, in keys
    tail: float  # part of the longest block that is not hidden behind other blocks
    backward: float  # efficiency of the backward pass relative to the forward pass
    memory: float  # fraction of the memory bandwidth

    @property
    def generation(self) -> int:
        """Which FlashAttention the constants describe: `softmax` is read off the figures of the third or the second."""
        return 3 if self.softmax > 40.0 else 2


@dataclass(frozen=True)
class Decode:
    """Constants of attention from a few queries to many keys (see `compute.decode_time`)."""

    launch: float  # seconds
    fraction: float  # of the memory bandwidth at which keys and values stream
    per_head: float  # seconds a query head of a sequence costs besides


@dataclass(frozen=True)
class Memory:
    """Constants of a kind of memory-bound kernel."""

    launch: float  # seconds
    fraction: float  # of the memory bandwidth
    work: float  # seconds one multiprocessor spends on a byte besides


@dataclass(frozen=True)
class Kernels:
    """All fitted constants of one device."""

    key: str  # name in the calibration file
    units: int  # streaming multiprocessors (compute units on AMD): the width of a wave
    sustained: float  # clock in a long run relative to the boost clock that matmuls were measured at
    gemm: Gemm
    gemm_fp8: Gemm  # of training frameworks (cuBLASLt)
    gemm_fp8_engine: Gemm  # of inference engines (CUTLASS), which convert A in each matmul
    attention: Attention
    decode: Decode
    memory: Mapping[str, Memory]  # by kind: what each operator family says, and mixed for what is none or all of them


@cache
def load(name: str) -> dict[str, Any]:
    """Return the calibration file `name`.json that ships with the package."""
    text = resources.files("autoplan.cost.calibration").joinpath(f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def find(device_name: str, patterns: dict[str, list[str]]) -> str | None:
    """Return the key whose pattern is the longest one inside `device_name` (letters and digits only, upper case)."""
    plain = "".join(c for c in device_name.upper() if c.isalnum())
    hits = [(len(p), key) for key, names in patterns.items() for p in names if p in plain]
    return max(hits)[1] if hits else None


def _section(kind: type[Any], entry: dict[str, Any], base: dict[str, Any], section: str) -> Any:
    values = {**base[section], **entry.get(section, {})}
    return kind(**{f.name: values[f.name] for f in fields(kind)})


@cache
def kernels(device_name: str) -> Kernels:
    """Return the constants for a device name such as "A100-SXM4-80GB"; what wasn't measured is the generic fit's."""
    devices = load("compute")["devices"]
    key = find(device_name, {k: d["names"] for k, d in devices.items()}) or GENERIC
    entry, base = devices[key], devices[GENERIC]
    if "like" in entry:
        entry = {**devices[entry["like"]], **entry}
    gemm, training = _section(Gemm, entry, base, "gemm"), load("compute")["fp8_training"]
    return Kernels(
        key=key, units=entry["units"], sustained=entry.get("sustained", load("compute")["sustained"]["value"]),
        gemm=gemm, gemm_fp8_engine=_section(Gemm, entry, base, "gemm_fp8"),
        gemm_fp8=replace(gemm, efficiency=gemm.efficiency * training["efficiency"],
                         depth=gemm.depth * training["depth"], cast=training["cast"]),
        attention=_section(Attention, entry, base, "attention"),
        decode=_section(Decode, entry, base, "decode"),
        memory={kind: Memory(**values) for kind, values in {**base["memory"], **entry.get("memory", {})}.items()},
    )
