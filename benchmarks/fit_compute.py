"""Fit autoplan/cost/calibration/compute.json from measured kernels and print how well the fits hold.

    python benchmarks/fit_compute.py [DIR]

DIR holds kernels/ and hardware/ as their READMEs describe; default: ../shared/reference next to the repository. What
is fitted: matmul (rows of 2,048 tokens and more weigh most), fused attention, memory-bound operators; each per
device, and pooled over the devices for those that are known by their data sheet only. Two sources measured matmuls on
A100 and H100 (aiconfigurator and vidur, which differ by 12 %): their fits weigh both alike. Held out: vidur's matmuls
on three devices against the generic fit.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from autoplan.cost.compute import flash_time, matmul_time, memory_time
from autoplan.cost.kernels import Attention, Gemm, Memory

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "autoplan/cost/calibration/compute.json"

# Streaming multiprocessors (compute units) and, for the fits, data-sheet peaks in TFLOP/s (bf16, fp8) and GB/s.
MEASURED = {
    "a100": ("a100_sxm", 108, 312, None, 2039), "h100": ("h100_sxm", 132, 989, 1979, 3350),
    "h200": ("h200_sxm", 132, 989, 1979, 4800), "b200": ("b200_sxm", 148, 2250, 4500, 8000),
    "gb200": ("gb200", 152, 2500, 5000, 8000), "l40s": ("l40s", 142, 362, 733, 864),
}
NAMES = {"a100": ["A100"], "h100": ["H100"], "h200": ["H200"], "b200": ["B200"], "gb200": ["GB200"], "l40s": ["L40S"]}
UNITS_SOURCE = (
    "multiprocessors: NVIDIA architecture white papers and data sheets (V100 80, A100 108, H100 SXM 132, H100 PCIe "
    "114, H200 132, L40S 142, L4 58, RTX 4090 128, A10G 80, A40 84, T4 40); B200 148 and GB200 152 as CUDA reports "
    "them; MI300X 304 compute units (AMD CDNA 3 white paper)")
SHEET_ONLY = {  # known by data sheet: names, units
    "v100": (["V100"], 80), "rtx4090": (["RTX4090", "4090"], 128), "a10g": (["A10G"], 80), "l4": (["L4"], 58),
    "a40": (["A40"], 84), "t4": (["T4"], 40), "mi300x": (["MI300X"], 304),
}
FA2, FA3 = {"softmax": 21.0, "depth": 150.0}, {"softmax": 56.0, "depth": 200.0}  # see ATTENTION_SOURCE
BACKWARD = 0.87
ATTENTION_SOURCE = (
    "softmax: FlashAttention-3 (arXiv:2407.08608, figure 5, H100, 16k, not causal): head_dim 64 and 128 reach 497 and "
    "648 TFLOP/s with FA3, 324 and 370 with FA2; (1 + x/64)/(1 + x/128) of those ratios gives x = 56 and 21. depth: "
    "the speeds of figure 5, head_dim 128, at 512 to 4,096 keys against 16,384: 1/(1 + depth/keys) with 76 to 284 keys "
    "for FA3, causal or not, 59 to 193 for FA2. backward: figure 6, head_dim 128: 561 of 648 (FA3) and 322 of 370 "
    "(FA2) = 0.87. The tables have only head_dim 128, forward; they also hold memory-bound work around the kernel "
    "(cache writes), which is fitted as passes over Q, K, V and O (`around`) and left out of the price.")

GEMM_START = {"launch": (4e-6, 1e-6, 3e-5), "efficiency": (0.8, 0.3, 1.0), "small": (0.8, 0.4, 1.0),
              "large": (1.0, 0.8, 1.3), "depth": (100, 0, 2000), "quantisation": (0.6, 0, 1), "memory": (0.8, 0.3, 1.3),
              "sharpness": (4, 1.5, 12), "cast": (3, 0, 12)}
ATTENTION_START = {"launch": (8e-6, 1e-6, 5e-5), "efficiency": (0.9, 0.2, 1.6), "tail": (0.3, 0, 1),
                   "around": (1.0, 0.0, 10.0)}
MEMORY_START = {"launch": (3e-6, 5e-7, 3e-5), "fraction": (0.6, 0.05, 1.2)}

Params = dict[str, float]
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Rows of a CSV, gzipped or not."""
    with (gzip.open(path, "rt") if path.suffix == ".gz" else path.open()) as file:
        return list(csv.DictReader(file))


def fit(start: dict[str, tuple[float, float, float]], fixed: Params, model: Callable[[Params], np.ndarray],
        measured: np.ndarray, weight: np.ndarray) -> Params:
    """Minimise the weighted log error of model(params), robustly; start: name → (first guess, least, most)."""
    names = list(start)
    first, least, most = (np.array([start[n][i] for n in names], dtype=float) for i in range(3))

    def residual(x: np.ndarray) -> np.ndarray:
        return weight * np.log(model({**fixed, **dict(zip(names, x, strict=True))}) / measured)

    best = None
    for shift in (0.7, 1.0, 1.3):
        guess = np.clip(first * shift, least + 1e-3 * (most - least), most - 1e-3 * (most - least))
        found = least_squares(residual, guess, bounds=(least, most), x_scale=np.abs(first), loss="soft_l1", f_scale=0.1,
                              diff_step=1e-3)
        if best is None or found.cost < best.cost - 1e-9:
            best = found
    assert best is not None
    return {**fixed, **{n: float(f"{v:.4g}") for n, v in zip(names, best.x, strict=True)}}


def errors(label: str, predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """Print and return the median and 90th percentile of the absolute error and the median signed error."""
    e = predicted / measured - 1
    out = {"rows": len(e), "median": float(np.median(abs(e))), "p90": float(np.quantile(abs(e), 0.9)),
           "bias": float(np.median(e))}
    print(f"{label:<44}{len(e):>6} rows  median {out['median']:6.1%}  p90 {out['p90']:6.1%}  bias {out['bias']:+6.1%}")
    return {k: round(v, 4) for k, v in out.items()}


class Gemms:
    """Measured matmuls of several devices or sources, priced in one go."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, int, float, float, float]] = []
        self.scales: list[float] = []

    def add(self, rows: list[tuple[float, ...]], units: int, peak: float, bandwidth: float, itemsize: float,
            scale: float = 1.0) -> None:
        """Add rows of (m, n, k, seconds); scale multiplies their weight."""
        self.parts.append((np.array(rows, dtype=float), units, peak, bandwidth, itemsize))
        self.scales.append(scale)

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([p[0] for p in self.parts])

    @property
    def weight(self) -> np.ndarray:
        return np.concatenate([scale * np.where(p[0][:, 0] >= 2048, 1.0, np.where(p[0][:, 0] >= 256, 0.5, 0.25))
                               for p, scale in zip(self.parts, self.scales, strict=True)])

    def price(self, params: Params) -> np.ndarray:
        constants = Gemm(**{f.name: params[f.name] for f in fields(Gemm)})
        return np.concatenate([matmul_time(constants, u, p, b, a[:, 0], a[:, 1], a[:, 2], 1, i)
                               for a, u, p, b, i in self.parts])


def fit_gemm(data: Gemms, fp8: bool) -> Params:
    start = dict(GEMM_START)
    fixed: Params = {}
    if not fp8:
        del start["cast"]
        fixed["cast"] = 0.0
    return fit(start, fixed, data.price, data.rows[:, 3], data.weight)


def gemm_rows(rows: list[Row], system: str, dtype: str) -> list[tuple[float, ...]]:
    return [(float(r["m"]), float(r["n"]), float(r["k"]), float(r["latency_ms"]) * 1e-3) for r in rows
            if r["system"] == system and r["gemm_dtype"] == dtype]


def vidur_gemms(rows: list[Row], gpu: str) -> list[tuple[float, ...]]:
    """Matmuls of vidur's per-layer operators with at least 1,024 tokens: (m, n, k, seconds)."""
    out = []
    for r in rows:
        if r["gpu"] != gpu or int(r["num_tokens"]) < 1024:
            continue
        tp, m, hidden, ffn = (float(r[c]) for c in ("num_tensor_parallel_workers", "num_tokens", "n_embd",
                                                     "n_expanded_embd"))
        heads, kv = float(r["n_head"]), float(r["n_kv_head"])
        up = (2 if float(r["use_gated_mlp"]) else 1) * ffn / tp
        shapes = {"attn_pre_proj_ms": (hidden * (heads + 2 * kv) / heads / tp, hidden),
                  "attn_post_proj_ms": (hidden, hidden / tp), "mlp_up_proj_ms": (up, hidden),
                  "mlp_down_proj_ms": (hidden, ffn / tp)}
        out += [(m, n, k, float(r[c]) * 1e-3) for c, (n, k) in shapes.items() if r[c]]
    return out


def fit_attention(parts: list[tuple[np.ndarray, int, float, float, Params]]) -> tuple[Params, np.ndarray, np.ndarray]:
    """parts: (rows of batch, heads, kv_heads, length, seconds; units; peak; bandwidth; FA2 or FA3) → fit and times."""
    measured = np.concatenate([p[0][:, 4] for p in parts])
    length = np.concatenate([p[0][:, 3] for p in parts])

    def price(params: Params) -> np.ndarray:
        times = []
        for a, units, peak, bandwidth, kernel in parts:
            constants = Attention(**{f.name: {**params, **kernel}[f.name] for f in fields(Attention)})
            batch, heads, kv, length, _ = a.T
            around = 2 * batch * 128 * length * (2 * heads + 2 * kv) * params["around"] / bandwidth
            times.append(around + flash_time(constants, units, peak, bandwidth, batch, heads, kv, length, length, 128))
        return np.concatenate(times)

    fixed = {**(parts[0][4] if len(parts) == 1 else FA2), "backward": BACKWARD, "memory": 0.8}
    params = fit(ATTENTION_START, fixed, price, measured, np.where(length >= 1024, 1.0, 0.3))
    return params, price(params), measured


def memory_rows(rows: list[Row], gpu: str) -> dict[str, list[tuple[float, float]]]:
    """By kind, (bytes, seconds) of norms (2 passes), residual adds (3) and activations (2, gated 3), in bf16."""
    out: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ("norm", "elementwise", "activation")}
    for r in rows:
        if r["gpu"] != gpu:
            continue
        tokens, tp = float(r["num_tokens"]), float(r["num_tensor_parallel_workers"])
        hidden, ffn = 2 * tokens * float(r["n_embd"]), 2 * tokens * float(r["n_expanded_embd"]) / tp
        for kind, column, nbytes in (("norm", "input_layernorm_ms", 2 * hidden), ("elementwise", "add_ms", 3 * hidden),
                                     ("activation", "mlp_act_ms", (3 if float(r["use_gated_mlp"]) else 2) * ffn)):
            if r[column] and float(r[column]) > 0:
                out[kind].append((nbytes, float(r[column]) * 1e-3))
    return {**out, "mixed": [row for kind in out.values() for row in kind]}


def fit_memory(label: str, parts: list[tuple[dict[str, list[tuple[float, float]]], float]]) -> dict[str, Any]:
    """parts: (rows by kind; bandwidth in bytes/s). Returns the fits of the kinds and their errors, which it prints."""
    fits, error = {}, {}
    for kind in parts[0][0]:
        tables = [(np.array(rows[kind]), bandwidth) for rows, bandwidth in parts]
        nbytes, measured = np.concatenate([a for a, _ in tables]).T

        def price(params: Params, tables: list[tuple[np.ndarray, float]] = tables) -> np.ndarray:
            return np.concatenate([memory_time(Memory(**params), bandwidth, a[:, 0]) for a, bandwidth in tables])

        large = nbytes >= 8e6
        fits[kind] = fit(MEMORY_START, {}, price, measured, np.where(large, 1.0, 0.3))
        error[kind] = errors(f"{label} {kind}, ≥ 8 MB", price(fits[kind])[large], measured[large])
    return {"memory": fits, "error": error}


def main(reference: Path) -> None:
    if not (reference / "kernels").is_dir():
        print(f"{reference}/kernels is absent: nothing to fit")
        return
    gemm_table = read(reference / "kernels/aic_gemm_compact.csv.gz")
    attention_table = read(reference / "kernels/aic_context_attention_compact.csv.gz")
    linear = read(reference / "kernels/vidur_linear_ops_compact.csv.gz")
    devices: dict[str, dict[str, Any]] = {}
    pooled = {"bfloat16": Gemms(), "fp8": Gemms()}
    attention_parts, memory_parts = [], []
    for key, (system, units, peak, peak8, bandwidth) in MEASURED.items():
        entry: dict[str, Any] = {"names": NAMES[key], "units": units, "error": {}}
        for dtype, section, flops, size in (("bfloat16", "gemm", peak, 2), ("fp8", "gemm_fp8", peak8, 1)):
            rows = gemm_rows(gemm_table, system, dtype)
            if not rows or flops is None:
                continue
            data = Gemms()
            for target in (data, pooled[dtype]):
                target.add(rows, units, flops * 1e12, bandwidth * 1e9, size)
            both = Gemms()
            both.add(rows, units, flops * 1e12, bandwidth * 1e9, size)
            if section == "gemm" and key in ("a100", "h100"):  # a second source, of equal weight
                other = Gemms()
                other.add(vidur_gemms(linear, key), units, flops * 1e12, bandwidth * 1e9, size)
                both.add(vidur_gemms(linear, key), units, flops * 1e12, bandwidth * 1e9, size,
                         (data.weight**2).sum() ** 0.5 / (other.weight**2).sum() ** 0.5)
            entry[section] = fit_gemm(both, dtype == "fp8")
            priced, big = data.price(entry[section]), data.rows[:, 0] >= 2048
            entry["error"][section] = errors(f"{key} {section}, m ≥ 2048", priced[big], data.rows[big, 3])
            errors(f"{key} {section}, m < 2048", priced[~big], data.rows[~big, 3])
            if len(both.parts) > 1:
                entry["error"][f"{section}_vidur"] = errors(
                    f"{key} {section}, vidur, m ≥ 1024", other.price(entry[section]), other.rows[:, 3])
        rows = [tuple(float(r[c]) for c in ("batch_size", "num_heads", "num_key_value_heads", "isl", "latency_ms"))
                for r in attention_table if r["system"] == system]
        table = np.array(rows) * [1, 1, 1, 1, 1e-3]
        kernel = FA2 if key in ("a100", "l40s") else FA3
        part = (table, units, peak * 1e12, bandwidth * 1e9, kernel)
        attention_parts.append(part)
        entry["attention"], priced, measured = fit_attention([part])
        long = table[:, 3] >= 1024
        entry["error"]["attention"] = errors(f"{key} attention, length ≥ 1024", priced[long], measured[long])
        if key in ("a100", "h100"):
            memory_parts.append((memory_rows(linear, key), bandwidth * 1e9))
            found = fit_memory(key, memory_parts[-1:])
            entry["memory"] = found["memory"]
            entry["error"].update(found["error"])
        devices[key] = entry
    devices["generic"] = generic(pooled, attention_parts, memory_parts, linear)
    for key, (names, units) in SHEET_ONLY.items():
        devices[key] = {"names": names, "units": units}
    scale_known_fractions(devices)
    held_out(devices, linear)
    text = {"about": "Fitted constants of compute kernels; meaning: autoplan/cost/kernels.py, formulas: compute.py",
            "program": "benchmarks/fit_compute.py",
            "data": "NVIDIA aiconfigurator GEMM and attention tables (Apache-2.0); vidur linear operators (MIT)",
            "units": UNITS_SOURCE, "attention": ATTENTION_SOURCE,
            "error": "absolute relative error of the fit on its own rows", "devices": devices}
    OUT.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}, {OUT.stat().st_size} bytes")


def generic(pooled: dict[str, Gemms], attention_parts: list[Any], memory_parts: list[Any],
            linear: list[Row]) -> dict[str, Any]:
    """The pooled fit; 108 units (an A100's) stand for a device of which nothing is known."""
    entry: dict[str, Any] = {"names": [], "units": 108, "error": {}}
    for dtype, section in (("bfloat16", "gemm"), ("fp8", "gemm_fp8")):
        data = pooled[dtype]
        entry[section] = fit_gemm(data, dtype == "fp8")
        big = data.rows[:, 0] >= 2048
        entry["error"][section] = errors(f"generic {section}, m ≥ 2048", data.price(entry[section])[big],
                                         data.rows[big, 3])
    entry["attention"], priced, measured = fit_attention(attention_parts)
    long = np.concatenate([p[0][:, 3] for p in attention_parts]) >= 1024
    entry["error"]["attention"] = errors("generic attention, length ≥ 1024", priced[long], measured[long])
    found = fit_memory("generic (and A40)", [*memory_parts, (memory_rows(linear, "a40"), 696e9)])
    entry["memory"] = found["memory"]
    entry["error"].update(found["error"])
    return entry


def scale_known_fractions(devices: dict[str, Any]) -> None:
    """Devices without tables whose best matmul is known (maximum achievable FLOP/s, stas00/ml-engineering)."""
    base = devices["generic"]["gemm"]
    best = max(1.0, base["large"]) / (1 + base["depth"] / 8192)
    devices["mi300x"]["gemm"] = {"efficiency": round(668 / 1307 / best, 4)}
    devices["mi300x"]["gemm_fp8"] = {"efficiency": round(
        min(devices["generic"]["gemm_fp8"]["efficiency"], 668 / 1307), 4)}
    devices["mi300x"]["source"] = "668 of 1307 TFLOP/s, stas00/ml-engineering, compute/accelerator/README.md"
    a100 = devices["a100"]["gemm"]
    devices["a100-pcie"] = {"names": ["A100PCIE"], "units": 108, "like": "a100",
                            "gemm": {**a100, "efficiency": round(a100["efficiency"] * 253 / 271, 4)},
                            "source": "253 against 271 TFLOP/s of the SXM part, stas00/ml-engineering"}
    devices["h100-pcie"] = {"names": ["H100PCIE", "H100NVL"], "units": 114, "like": "h100"}


def held_out(devices: dict[str, Any], linear: list[Row]) -> None:
    """Price another source's matmuls (vidur, ≥ 1,024 tokens) by the generic fit, which saw none of them."""
    for gpu, units, peak, bandwidth in (("a100", 108, 312e12, 2039e9), ("h100", 132, 989e12, 3350e9),
                                        ("a40", 84, 149.7e12, 696e9)):
        data = Gemms()
        data.add(vidur_gemms(linear, gpu), units, peak, bandwidth, 2)
        errors(f"held out: vidur {gpu} matmuls by generic", data.price(devices["generic"]["gemm"]), data.rows[:, 3])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/reference")
