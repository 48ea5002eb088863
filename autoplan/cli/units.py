"""From SI units to what people read."""

from __future__ import annotations

from typing import Any

GIB = 2**30


def gib(nbytes: float, digits: int = 1) -> str:
    """Return bytes as GiB, without the unit."""
    return f"{nbytes / GIB:,.{digits}f}"


def seconds(value: float) -> str:
    """Return seconds with a fitting unit and three or four significant digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{_digits(value / 1e-6)} µs" if value else "0 s"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage of one digit; more where it is small but more than rounding."""
    if abs(fraction) < 1e-9:
        return "0.0 %"
    return f"{100 * fraction:.1f} %" if not 0 < fraction < 0.0005 else f"{100 * fraction:.1g} %"


def count(value: float) -> str:
    """Return a large number with a word for its power of a thousand, e.g. `70.6 B`."""
    for scale, word in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if value >= scale:
            return f"{_digits(value / scale)}{word}"
    return f"{value:,.0f}"


def fact(key: str, value: Any) -> str:
    """Return the value of a fact; its key, with those of what it is part of before it, tells the unit."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(fact(key, item) for item in value)
    if not isinstance(value, (int, float)):
        return str(value)
    exact = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if "bytes" in key and value >= GIB / 1024:
        return f"{value / GIB:,.4g} GiB" if value >= GIB else f"{value / 2**20:,.4g} MiB"
    if "bandwidth" in key:
        return f"{value / 1e9:,.4g} GB/s"
    if "latency" in key or key.endswith("_s"):
        return seconds(value)
    if "flops" in key and value >= 1e9:
        unit = "FLOP/s" if "peak" in key else "FLOP"
        return f"{value / 1e12:,.4g} T{unit}" if value >= 1e12 else f"{value / 1e9:,.4g} G{unit}"
    return f"{exact} ({count(value)})" if value >= 1e6 else exact


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
