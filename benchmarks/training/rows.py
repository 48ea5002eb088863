"""The rows of a CSV of training measurements, typed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

REPEAT = "repeat_of_earlier_release"
_TEXT = {"row_id", "source_id", "framework", "task", "model", "arch_family", "gpu", "recompute", "precision",
         "attn_impl", "schedule", "plan_json", "mem_kind", "notes", "qc"}
_REAL = {"params_b", "gpu_mem_gb", "step_time_norm_s", "mem_gib", "oom"}


@dataclass(frozen=True)
class Row:
    """One measurement. None: not recorded. Times in seconds of an optimizer step; `mem_gib` as its source prints it."""

    row_id: str
    source_id: str
    framework: str
    task: str
    model: str
    arch_family: str
    params_b: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    glu: int | None
    tied_emb: int | None
    experts: int | None
    topk: int | None
    moe_ffn: int | None
    gpu: str
    gpu_mem_gb: float | None
    num_gpus: int | None
    gpus_per_node: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    dp: int | None
    vpp: int | None
    zero_stage: int | None
    fsdp_shard: int | None
    micro_batch: int | None
    grad_accum: int | None
    global_batch: int | None
    recompute: str
    seq_parallel: int | None
    precision: str
    attn_impl: str
    schedule: str
    plan_json: str
    step_time_norm_s: float | None
    mem_gib: float | None
    mem_kind: str
    oom: float | None
    notes: str
    qc: str

    @property
    def ran_out(self) -> bool:
        """Whether the run failed for lack of memory."""
        return self.oom == 1

    @property
    def ran(self) -> bool:
        """Whether the run is known to have fitted."""
        return not self.ran_out and (self.step_time_norm_s is not None or self.mem_gib is not None or self.oom == 0)

    @property
    def flags(self) -> frozenset[str]:
        """What the data set's own checks have against the row."""
        return frozenset(filter(None, self.qc.split(";")))

    @property
    def setting(self) -> tuple[object, ...]:
        """Everything recorded of what was run, without what was measured and where it was read."""
        return tuple(getattr(self, name) for name in _SETTING)


_NOT_SETTING = {"row_id", "params_b", "step_time_norm_s", "mem_gib", "mem_kind", "oom", "notes", "qc"}
_SETTING = tuple(one.name for one in fields(Row) if one.name not in _NOT_SETTING)


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV with the columns of `Row`; others are ignored, those that lack are not recorded."""
    with path.open(newline="", encoding="utf-8") as file:
        return [parsed(record) for record in csv.DictReader(file)]


def parsed(record: Mapping[str, str | None]) -> Row:
    """Return a record of text as a row; what is no number is not recorded."""
    values: dict[str, object] = {}
    for one in fields(Row):
        text = (record.get(one.name) or "").strip()
        if one.name in _TEXT:
            values[one.name] = text
        else:
            number = _number(text)
            whole = number is not None and one.name not in _REAL
            values[one.name] = int(number) if whole and number is not None else number
    return Row(**values)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def once(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Part rows into those that count and those that print an earlier release's table again.

    A row marked as a repeat counts where nothing earlier here has its setting and its measurements.
    """
    kept: list[Row] = []
    repeats: list[Row] = []
    marked = []
    seen = set()
    for row in rows:
        if REPEAT in row.flags:
            marked.append(row)
        else:
            kept.append(row)
            seen.add(_printed(row))
    for row in marked:
        (repeats if _printed(row) in seen else kept).append(row)
        seen.add(_printed(row))
    return kept, repeats


def _printed(row: Row) -> tuple[object, ...]:
    return (*row.setting, row.step_time_norm_s, row.mem_gib, row.oom)
