"""Measured kernels as arrays, for the programs that fit constants to them and that judge the fits.

DIR holds kernels/ as its README describes. Sizes in elements, times in seconds.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Row = dict[str, str]
ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT.parent / "shared/reference"


@dataclass(frozen=True)
class System:
    """A measured device: its key in the calibration, its names in the tables, and its data sheet.

    units: multiprocessors. peak, peak8: bf16 and fp8 FLOP/s (fp8: 0 where it has none). bandwidth: bytes/s. device: its
    name in cluster_specs/devices.yaml.
    """

    key: str
    table: str
    device: str
    units: int
    peak: float
    peak8: float
    bandwidth: float


SYSTEMS = (
    System("a100", "a100_sxm", "a100-sxm4-80gb", 108, 312e12, 0, 2039e9),
    System("h100", "h100_sxm", "h100-sxm5-80gb", 132, 989e12, 1979e12, 3350e9),
    System("h200", "h200_sxm", "h200-sxm-141gb", 132, 989e12, 1979e12, 4800e9),
    System("b200", "b200_sxm", "b200-sxm-180gb", 148, 2250e12, 4500e12, 8000e9),
    System("b300", "b300_sxm", "b300-sxm-270gb", 148, 2250e12, 4500e12, 8000e9),
    System("gb200", "gb200", "gb200-186gb", 152, 2500e12, 5000e12, 8000e9),
    System("gb300", "gb300", "gb300-279gb", 152, 2500e12, 5000e12, 8000e9),
    System("l40s", "l40s", "l40s-48gb", 142, 362e12, 733e12, 864e9),
    System("rtx-pro-6000", "rtx_pro_6000_server", "rtx-pro-6000-96gb", 188, 503.8e12, 1007.6e12, 1597e9),
)
A40 = System("a40", "", "a40-48gb", 84, 149.7e12, 0, 696e9)
KINDS = ("norm", "elementwise", "activation", "rotary", "embedding")


def read(path: Path) -> list[Row]:
    """Rows of a CSV, gzipped or not."""
    with (gzip.open(path, "rt") if path.suffix == ".gz" else path.open()) as file:
        return list(csv.DictReader(file))


def _columns(rows: list[Row], system: str, names: tuple[str, ...]) -> np.ndarray:
    """[N, len(names) + 1]: the columns of a system's rows, and their seconds."""
    found = [[float(r[name]) for name in names] + [float(r["latency_ms"]) * 1e-3]
             for r in rows if r["system"] == system]
    return np.array(found, dtype=float).reshape(-1, len(names) + 1)


def gemms(reference: Path) -> dict[tuple[str, str], np.ndarray]:
    """By (key, "bf16" or "fp8"): [N, 4] of m, n, k, seconds, by aiconfigurator."""
    rows = read(reference / "kernels/aic_gemm_compact.csv.gz")
    out = {}
    for system in SYSTEMS:
        for dtype, name in (("bf16", "bfloat16"), ("fp8", "fp8")):
            found = _columns([r for r in rows if r["gemm_dtype"] == name], system.table, ("m", "n", "k"))
            if len(found) and (dtype == "bf16" or system.peak8):
                out[system.key, dtype] = found
    return out


def prefill(reference: Path) -> dict[str, np.ndarray]:
    """By key: [N, 5] of sequences, heads, key/value heads, length, seconds; causal, head_dim 128, bf16."""
    rows = read(reference / "kernels/aic_context_attention_compact.csv.gz")
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl")
    return {s.key: found for s in SYSTEMS if len(found := _columns(rows, s.table, names))}


def decode(reference: Path) -> dict[str, np.ndarray]:
    """By key: [N, 5] of sequences, heads, key/value heads, keys (the new one too), seconds; head_dim 128, bf16."""
    rows = read(reference / "kernels/aic_generation_attention_compact.csv.gz")
    names = ("batch_size", "num_heads", "num_key_value_heads", "past_kv_len")
    new = np.array([0, 0, 0, 1, 0])
    return {s.key: found + new for s in SYSTEMS if len(found := _columns(rows, s.table, names))}


def layer_gemms(reference: Path, least: int = 1024) -> dict[str, np.ndarray]:
    """By key: [N, 4] of m, n, k, seconds: matmuls of whole layers as vidur measured them, from `least` tokens on."""
    out: dict[str, list[tuple[float, ...]]] = {}
    for r in read(reference / "kernels/vidur_linear_ops_compact.csv.gz"):
        if int(r["num_tokens"]) < least:
            continue
        tp, m, hidden, ffn = (float(r[c]) for c in ("num_tensor_parallel_workers", "num_tokens", "n_embd",
                                                     "n_expanded_embd"))
        heads, kv = float(r["n_head"]), float(r["n_kv_head"])
        up = (2 if float(r["use_gated_mlp"]) else 1) * ffn / tp
        shapes = {"attn_pre_proj_ms": (hidden * (heads + 2 * kv) / heads / tp, hidden),
                  "attn_post_proj_ms": (hidden, hidden / tp), "mlp_up_proj_ms": (up, hidden),
                  "mlp_down_proj_ms": (hidden, ffn / tp)}
        out.setdefault(r["gpu"], []).extend(
            (m, n, k, float(r[c]) * 1e-3) for c, (n, k) in shapes.items() if r[c])
    return {key: np.array(rows) for key, rows in out.items()}


def streams(reference: Path) -> dict[str, Mapping[str, np.ndarray]]:
    """By key and kind: [N, 2] of bytes read and written, seconds: vidur's memory-bound operators, bf16.

    Passes over the tensor: norm 2, residual add 3, activation 2 (gated 3), rotary positions 2 over q and k, look-up 2.
    """
    out: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for r in read(reference / "kernels/vidur_linear_ops_compact.csv.gz"):
        kinds = out.setdefault(r["gpu"], {kind: [] for kind in KINDS})
        tokens, tp = float(r["num_tokens"]), float(r["num_tensor_parallel_workers"])
        hidden, ffn = 2 * tokens * float(r["n_embd"]), 2 * tokens * float(r["n_expanded_embd"]) / tp
        rotated = hidden / tp * (1 + float(r["n_kv_head"]) / float(r["n_head"]))
        for kind, column, nbytes in (
                ("norm", "input_layernorm_ms", 2 * hidden), ("elementwise", "add_ms", 3 * hidden),
                ("activation", "mlp_act_ms", (3 if float(r["use_gated_mlp"]) else 2) * ffn),
                ("rotary", "attn_rope_ms", 2 * rotated), ("embedding", "emb_ms", 2 * hidden)):
            if r[column] and float(r[column]) > 0:
                kinds[kind].append((nbytes, float(r[column]) * 1e-3))
    return {key: {kind: np.array(rows) for kind, rows in kinds.items()} for key, kinds in out.items()}
