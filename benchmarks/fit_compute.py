"""Fit autoplan/cost/calibration/compute.json from measured kernels and print how well the fits hold.

    python benchmarks/fit_compute.py [DIR]

DIR holds kernels/ and hardware/ as their READMEs describe; default: ../shared/reference next to the repository. What
is fitted: matmul at the boost clock (aiconfigurator, kernels that end within BOOST), attention, decode attention and
memory-bound operators; each per device, and pooled over devices for those that are known by their data sheet only.
`sustained`, the speed of matmuls in a long run relative to that, is read off other sets (see `sustained`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from kernel_tables import A40, KINDS, REFERENCE, ROOT, SYSTEMS, System, decode, gemms, layer_gemms, prefill, streams
from scipy.optimize import least_squares

from autoplan.cost.compute import decode_time, flash_time, matmul_time, memory_time
from autoplan.cost.kernels import Attention, Decode, Gemm, Memory

OUT = ROOT / "autoplan/cost/calibration/compute.json"
BOOST = 5e-4  # seconds; kernels measured in a loop keep the boost clock up to about here, and lose it by 1 ms
LARGE = 1e8  # bytes; operators whose tensors hardly stay in the L2 cache (40 and 50 MB on A100 and H100)
POOLED = ("a100", "h100", "h200", "b200", "gb200", "l40s")  # what devices without a table are priced by

NAMES = {"a100": ["A100", "A800"], "h100": ["H100", "H800"], "h200": ["H200"], "b200": ["B200"], "b300": ["B300"],
         "gb200": ["GB200"], "gb300": ["GB300"], "l40s": ["L40S"], "rtx-pro-6000": ["RTXPRO6000"]}
UNITS_SOURCE = (
    "multiprocessors: NVIDIA architecture white papers and data sheets (V100 80, A100 108, H100 SXM 132, H100 PCIe "
    "114, H200 132, L40S 142, L4 58, RTX 4090 128, A10G 80, A40 84, T4 40, P40 30, Titan X 28, RTX PRO 6000 188); B200 "
    "148 and GB200 152 as CUDA reports them, their Ultra parts taken as equal; AMD white papers: MI250X 220 compute "
    "units, MI300X and MI325X 304, MI355X 256; a TPU has no such quantisation: 1 (its systolic arrays pad to 128)")
SHEET_ONLY = {  # known by data sheet: names, units
    "v100": (["V100"], 80), "rtx4090": (["RTX4090", "4090"], 128), "a10g": (["A10G"], 80), "l4": (["L4"], 58),
    "p40": (["P40"], 30), "titanx": (["TITANX"], 28),
    "mi355x": (["MI355X"], 256), "tpu": (["TPU"], 1),
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
FP8_TRAINING = {
    "efficiency": round(1402.6 / 1979 / (794.5 / 989), 3), "depth": 2.0, "cast": round(8 / 3, 3),
    "source": (
        "fp8 matmuls of cuBLASLt, which training uses, are priced as bf16's at the fp8 peak; efficiency: times what "
        "the best fp8 and bf16 matmuls of an H100 reach of their peaks (1402.6 of 1979, 794.5 of 989 TFLOP/s, stas00/"
        "ml-engineering); depth: twice, since a tile's prologue doesn't get faster; cast: bytes an element of A and "
        "matmul: TransformerEngine converts and transposes in one kernel (reads 2 bytes, writes 1 twice), x and the "
        "gradient of y once each, for three matmuls. gemm_fp8 below is vLLM's CUTLASS kernel with its own conversion")}
PREDICTABLE = 257 / 295  # matmul of 8,192³ on A100, normally distributed operands against zeros (thonking.ai)

GEMM_START = {"launch": (4e-6, 1e-6, 3e-5), "efficiency": (0.85, 0.3, 1.0), "small": (0.8, 0.4, 1.0),
              "large": (1.0, 0.8, 1.1), "depth": (100, 0, 2000), "quantisation": (0.6, 0, 1), "memory": (0.8, 0.3, 1.3),
              "sharpness": (4, 1.5, 12), "cast": (3, 0, 12)}
ATTENTION_START = {"launch": (8e-6, 1e-6, 5e-5), "efficiency": (0.9, 0.2, 1.6), "tail": (0.3, 0, 1),
                   "around": (1.0, 0.0, 10.0)}
DECODE_START = {"launch": (1e-5, 1e-6, 5e-5), "fraction": (0.8, 0.1, 1.0), "per_head": (1e-9, 0.0, 1e-7)}
# At most 0.93 of a data sheet's bandwidth (assumed): H100's adds show 0.96 to 1.0, part of which is its L2.
MEMORY_START = {"launch": (3e-6, 5e-7, 3e-5), "fraction": (0.6, 0.05, 0.93), "work": (5e-11, 0.0, 1e-9)}

Params = dict[str, float]
Parts = list[tuple[System, np.ndarray]]


def fit(start: Mapping[str, tuple[float, float, float]], fixed: Params, model: Callable[[Params], np.ndarray],
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


def constants(kind: type[Any], params: Params) -> Any:
    """The constants of one kind of kernel, of what was fitted."""
    return kind(**{f.name: params[f.name] for f in fields(kind)})


def price_gemms(params: Params, parts: Parts, fp8: bool) -> np.ndarray:
    """Seconds of the matmuls of several systems at the boost clock."""
    one = constants(Gemm, params)
    return np.concatenate([
        matmul_time(one, s.units, s.peak8 if fp8 else s.peak, s.bandwidth, a[:, 0], a[:, 1], a[:, 2],
                    itemsize=1 if fp8 else 2, result_bytes=2) for s, a in parts])


def fit_gemm(label: str, parts: Parts, fp8: bool) -> tuple[Params, dict[str, float]]:
    """Fit kernels that keep the boost clock; rows of 2,048 tokens and more weigh most. Prints and returns the error."""
    parts = [(s, a[a[:, 3] < BOOST]) for s, a in parts]
    rows = np.concatenate([a for _, a in parts])
    start = {k: v for k, v in GEMM_START.items() if fp8 or k != "cast"}
    weight = np.where(rows[:, 0] >= 2048, 1.0, np.where(rows[:, 0] >= 256, 0.5, 0.25))
    params = fit(start, {} if fp8 else {"cast": 0.0}, lambda p: price_gemms(p, parts, fp8), rows[:, 3], weight)
    priced, big = price_gemms(params, parts, fp8), rows[:, 0] >= 1024
    error = errors(f"{label}, m ≥ 1024", priced[big], rows[big, 3])
    errors(f"{label}, m < 1024", priced[~big], rows[~big, 3])
    return params, error


def sustained(devices: dict[str, Any], tables: dict[tuple[str, str], np.ndarray],
              layers: dict[str, np.ndarray]) -> dict[str, Any]:
    """Speed of matmuls in a long run relative to the boost clock: medians of what several sets say.

    In a loop of one kernel that the tables come from, short kernels keep the boost clock; those of 1 ms and more are
    held down by the power limit. The operators of whole layers (vidur), one after the other on random data, run at the
    lower clock whatever their size, as those of a training step do. Blackwell data-centre parts lose less.
    """
    def ratio(key: str, rows: np.ndarray) -> float:
        system = next(s for s in SYSTEMS if s.key == key)
        return float(np.median(price_gemms(devices[key]["gemm"], [(system, rows)], False) / rows[:, 3]))

    def slow(key: str) -> np.ndarray:
        return tables[key, "bf16"][tables[key, "bf16"][:, 3] >= 1e-3]

    long, whole = "kernels of 1 ms and more", "operators of whole layers (vidur)"
    most = {"a100, random against zero operands (thonking.ai)": PREDICTABLE,  # aiconfigurator's reach that of zeros
            f"a100, {whole}": ratio("a100", layers["a100"]), f"h100, {whole}": ratio("h100", layers["h100"]),
            **{f"{key}, {long}": ratio(key, slow(key)) for key in ("h100", "h200", "l40s")}}
    blackwell = {f"{key}, {long}": ratio(key, slow(key)) for key in ("b200", "b300", "gb300")}  # gb200's are erratic
    found = {}
    for name, sets in (("value", most), ("blackwell", blackwell)):
        found[name] = round(float(np.median(list(sets.values()))), 3)
        for label, one in sets.items():
            print(f"sustained clock: {label:<60}{one:.3f}")
    for key in ("b200", "b300", "gb200", "gb300"):
        devices[key]["sustained"] = found["blackwell"]
    return {"value": found["value"], "meaning": "clock of matmuls in a long run relative to the boost clock",
            "source": "median of: " + "; ".join(f"{label} {one:.3f}" for label, one in most.items()),
            "blackwell": "median of: " + "; ".join(f"{label} {one:.3f}" for label, one in blackwell.items())}


def fit_attention(label: str, parts: Parts) -> tuple[Params, dict[str, float]]:
    """Fit prefill; FA2's constants on A100, L40S and for the pooled fit, else FA3's."""
    measured = np.concatenate([a[:, 4] for _, a in parts])
    length = np.concatenate([a[:, 3] for _, a in parts])

    def price(params: Params) -> np.ndarray:
        times = []
        for s, a in parts:
            one = constants(Attention, {**params, **kernel(s)})
            batch, heads, kv, n, _ = a.T
            around = 2 * batch * 128 * n * (2 * heads + 2 * kv) * params["around"] / s.bandwidth
            times.append(around + flash_time(one, s.units, s.peak, s.bandwidth, batch, heads, kv, n, n, 128))
        return np.concatenate(times)

    fixed = {**(kernel(parts[0][0]) if len(parts) == 1 else FA2), "backward": BACKWARD, "memory": 0.8}
    params = fit(ATTENTION_START, fixed, price, measured, np.where(length >= 1024, 1.0, 0.3))
    long = length >= 1024
    return params, errors(f"{label} attention, length ≥ 1024", price(params)[long], measured[long])


def kernel(system: System) -> Params:
    """The published constants of the attention kernel that a system's table was measured with."""
    return FA2 if system.key in ("a100", "l40s") else FA3


def fit_decode(label: str, parts: Parts) -> tuple[Params, dict[str, float]]:
    """Fit decode attention. Rows above the memory's own bandwidth (they lie in L2: L40S) are left out."""
    kept = [(s, a[4 * a[:, 0] * a[:, 2] * a[:, 3] * 128 / s.bandwidth < 0.95 * a[:, 4]]) for s, a in parts]
    measured = np.concatenate([a[:, 4] for _, a in kept])

    def price(params: Params) -> np.ndarray:
        one = constants(Decode, params)
        return np.concatenate([decode_time(one, s.bandwidth, *a[:, :4].T, 128) for s, a in kept])

    params = fit(DECODE_START, {}, price, measured, np.ones_like(measured))
    return params, errors(f"{label} decode", price(params), measured)


def fit_memory(label: str, parts: list[tuple[System, Mapping[str, np.ndarray]]]) -> tuple[Params, dict[str, Any]]:
    """Fit each kind of memory-bound operator, and `mixed`: norms, adds and activations by one set of constants.

    One device can't tell what the memory takes from what its multiprocessors take: there all is the memory's. Over
    several devices the memory takes what plain adds need, and the multiprocessors the rest.
    """
    fits: dict[str, Any] = {}
    error: dict[str, Any] = {}
    for kind in ("elementwise", *(k for k in KINDS if k != "elementwise"), "mixed"):
        kinds = ("norm", "elementwise", "activation") if kind == "mixed" else (kind,)
        tables = [(np.concatenate([rows[k] for k in kinds]), s) for s, rows in parts]
        nbytes, measured = np.concatenate([a for a, _ in tables]).T

        def price(params: Params, tables: list[tuple[np.ndarray, System]] = tables) -> np.ndarray:
            return np.concatenate([memory_time(Memory(**params), s.units, s.bandwidth, a[:, 0]) for a, s in tables])

        if len(parts) == 1 or kind == "elementwise":
            fixed = {"work": 0.0}
        else:
            fixed = {"fraction": fits["elementwise"]["fraction"]}
        large = nbytes >= LARGE
        fits[kind] = fit({k: v for k, v in MEMORY_START.items() if k not in fixed}, fixed, price, measured,
                         np.where(large, 1.0, 0.1))
        error[kind] = errors(f"{label} {kind}, ≥ 100 MB", price(fits[kind])[large], measured[large])
    return fits, error


def main(reference: Path) -> None:
    if not (reference / "kernels").is_dir():
        print(f"{reference}/kernels is absent: nothing to fit")
        return
    tables, layers, streamed = gemms(reference), layer_gemms(reference), streams(reference)
    prefilled, decoded = prefill(reference), decode(reference)
    devices: dict[str, dict[str, Any]] = {}
    for system in SYSTEMS:
        key = system.key
        entry = devices[key] = {"names": NAMES[key], "units": system.units, "error": {}}
        for dtype, section in (("bf16", "gemm"), ("fp8", "gemm_fp8")):
            if (key, dtype) in tables:
                entry[section], entry["error"][section] = fit_gemm(
                    f"{key} {section}", [(system, tables[key, dtype])], dtype == "fp8")
        if key in prefilled:
            entry["attention"], entry["error"]["attention"] = fit_attention(key, [(system, prefilled[key])])
        if key in decoded:
            entry["decode"], entry["error"]["decode"] = fit_decode(key, [(system, decoded[key])])
            entry["attention"]["memory"] = entry["decode"]["fraction"]
        if key in streamed:
            entry["memory"], error = fit_memory(key, [(system, streamed[key])])
            entry["error"].update(error)
    devices["a40"] = a40(layers["a40"], streamed["a40"])
    share(devices)
    devices["generic"] = generic(tables, prefilled, decoded, streamed)
    clock = sustained(devices, tables, layers)
    for key, (names, units) in SHEET_ONLY.items():
        devices[key] = {"names": names, "units": units}
    scale_known_fractions(devices, clock["value"])
    held_out(devices, layers, clock["value"])
    text = {"about": "Fitted constants of compute kernels; meaning: autoplan/cost/kernels.py, formulas: compute.py",
            "program": "benchmarks/fit_compute.py",
            "data": "NVIDIA aiconfigurator GEMM and attention tables (Apache-2.0); vidur linear operators (MIT)",
            "units": UNITS_SOURCE, "attention": ATTENTION_SOURCE, "sustained": clock, "fp8_training": FP8_TRAINING,
            "error": "absolute relative error of the fit on its own rows", "devices": devices}
    OUT.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}, {OUT.stat().st_size} bytes")


def a40(layers: np.ndarray, streamed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A40, of which vidur alone measured matmuls, in whole layers: what is fitted holds the sustained clock already."""
    entry: dict[str, Any] = {"names": ["A40"], "units": A40.units, "sustained": 1.0, "error": {}}
    rows = layers[layers[:, 3] >= BOOST]
    params = fit({k: v for k, v in GEMM_START.items() if k != "cast"}, {"cast": 0.0},
                 lambda p: price_gemms(p, [(A40, rows)], False), rows[:, 3], np.ones(len(rows)))
    entry["gemm"] = params
    entry["error"]["gemm_vidur"] = errors("a40 gemm (vidur), m ≥ 1024", price_gemms(params, [(A40, rows)], False),
                                          rows[:, 3])
    entry["memory"], error = fit_memory("a40", [(A40, streamed)])
    entry["error"].update(error)
    return entry


def share(devices: dict[str, dict[str, Any]]) -> None:
    """Let devices without a table of attention or memory-bound operators take that of their nearest kin."""
    for key, like in (("b300", "b200"), ("gb300", "gb200"), ("rtx-pro-6000", "l40s")):
        devices[key].update({section: devices[like][section] for section in ("attention", "decode")})
    for key in ("h200", "b200", "b300", "gb200", "gb300"):  # the youngest part whose operators were measured
        devices[key]["memory"] = devices["h100"]["memory"]


def generic(tables: dict[tuple[str, str], np.ndarray], prefilled: dict[str, np.ndarray], decoded: dict[str, np.ndarray],
            streamed: dict[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """The pooled fit; 108 units (an A100's) stand for a device of which nothing is known."""
    entry: dict[str, Any] = {"names": [], "units": 108, "error": {}}
    pool = [s for s in SYSTEMS if s.key in POOLED]
    for dtype, section in (("bf16", "gemm"), ("fp8", "gemm_fp8")):
        entry[section], entry["error"][section] = fit_gemm(
            f"generic {section}", [(s, tables[s.key, dtype]) for s in pool if (s.key, dtype) in tables], dtype == "fp8")
    entry["attention"], entry["error"]["attention"] = fit_attention("generic", [(s, prefilled[s.key]) for s in pool])
    entry["decode"], entry["error"]["decode"] = fit_decode("generic", [(s, decoded[s.key]) for s in pool])
    measured = [(s, streamed[s.key]) for s in (*SYSTEMS, A40) if s.key in streamed]
    entry["memory"], error = fit_memory("generic (A100, H100, A40)", measured)
    entry["error"].update(error)
    return entry


def scale_known_fractions(devices: dict[str, Any], clock: float) -> None:
    """Devices without tables whose best matmul is known (maximum achievable FLOP/s, stas00/ml-engineering)."""
    base = devices["generic"]["gemm"]
    best = clock * max(1.0, base["large"]) / (1 + base["depth"] / 8192)
    ml_engineering = "stas00/ml-engineering, compute/accelerator/README.md"
    capped = "fp16, 4096³, held down by its 70 W: forums.developer.nvidia.com/t/264462"
    for key, names, units, most, peak, where in (("mi300x", ["MI300X"], 304, 668.4, 1307.4, ml_engineering),
                                                 ("mi325x", ["MI325X"], 304, 784.9, 1307.4, ml_engineering),
                                                 ("mi250x", ["MI250X"], 220, 2 * 147.0, 383.0, ml_engineering),
                                                 ("t4", ["T4"], 40, 24.0, 65.0, capped)):
        devices[key] = {"names": names, "units": units, "gemm": {"efficiency": round(most / peak / best, 4)},
                        "gemm_fp8": {"efficiency": round(min(devices["generic"]["gemm_fp8"]["efficiency"],
                                                             most / peak / clock), 4)},
                        "source": f"{most:g} of {peak:g} TFLOP/s, {where}"}
    devices["mi250x-gcd"] = {**devices["mi250x"], "names": ["MI250XGCD"], "units": 110}
    a100 = devices["a100"]["gemm"]
    devices["a100-pcie"] = {"names": ["A100PCIE"], "units": 108, "like": "a100",
                            "gemm": {**a100, "efficiency": round(a100["efficiency"] * 252.9 / 271.2, 4)},
                            "source": "252.9 against 271.2 TFLOP/s of the SXM part, stas00/ml-engineering"}
    devices["h100-pcie"] = {"names": ["H100PCIE", "H100NVL"], "units": 114, "like": "h100"}


def held_out(devices: dict[str, Any], layers: dict[str, np.ndarray], clock: float) -> None:
    """Price the matmuls of whole layers, which no fit saw, at the sustained clock; A40's by the generic fit."""
    for system in (*SYSTEMS, A40):
        if system.key in layers:
            name = system.key if system.key in NAMES else "generic"  # A40's own constants were fitted to these rows
            rows = layers[system.key]
            at = System(system.key, "", "", system.units, system.peak * clock, 0, system.bandwidth)
            errors(f"held out: {system.key} layers (vidur) by {name}", price_gemms(devices[name]["gemm"], [(at, rows)],
                                                                                   False), rows[:, 3])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE)
