"""What the commands' options accept, and the options that commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from autoplan.errors import InputError, nearest
from autoplan.workload import OPTIMIZER_STATE_BYTES, Attention, Precision, Recompute, Schedule

if TYPE_CHECKING:
    _Whole = click.ParamType[int | None]
    _Real = click.ParamType[float]
else:  # generic only since click 8.4, and only for type checkers
    _Whole = _Real = click.ParamType

PRECISIONS = tuple(precision.value for precision in Precision)
GRADIENTS = tuple(precision.value for precision in Precision if precision is precision.stored)
ATTENTIONS = tuple(attention.value for attention in Attention)
RECOMPUTES = tuple(recompute.value for recompute in Recompute)
SCHEDULES = tuple(schedule.value for schedule in Schedule)
MOST = 10**9

ALIASES = {"mbs": "micro_batch_size", "sp": "sequence_parallel", "vpp": "virtual_stages"}
FIXABLE = ("tp", "pp", "dp", "cp", "ep", "etp", "zero", "micro_batch_size", "num_micro_batches", "recompute",
           "sequence_parallel", "schedule", "virtual_stages", "layers", "shard")
_SHORT = {key: alias for alias, key in ALIASES.items()}
_KEYS = tuple(f"{key} ({_SHORT[key]})" if key in _SHORT else key for key in FIXABLE)  # as errors list them
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class WholeNumber(_Whole):
    """A whole number between two bounds, both included; with `auto`, the word auto too (None)."""

    def __init__(self, least: int = 1, most: int = MOST, *, auto: bool = False) -> None:
        self.least, self.most, self.auto = least, most, auto
        self.name = "auto|N" if auto else "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, None for auto. Raises click.BadParameter."""
        if self.auto and value in (None, "auto"):
            return None
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if not self.least <= number <= self.most:
            word = "auto or " if self.auto else ""
            self.fail(f"must be {word}a whole number from {self.least} to {self.most:,} (found {value!r})", param, ctx)
        return number


class Real(_Real):
    """A finite number above `least` (or equal to it, with `closed`) and below `most`."""

    def __init__(self, name: str, least: float = 0.0, most: float = math.inf, *, closed: bool = False) -> None:
        self.name, self.least, self.most, self.closed = name, least, most, closed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises click.BadParameter."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        low = number >= self.least if self.closed else number > self.least
        if not (low and number < self.most and math.isfinite(number)):
            above = f"{'at least' if self.closed else 'more than'} {self.least:g}"
            below = f" and less than {self.most:g}" if math.isfinite(self.most) else ""
            self.fail(f"must be a number of {above}{below} (found {value!r})", param, ctx)
        return number


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is asked, but for the batch sizes."""
    for option in (
        click.option("--target", "--runtime", "runtime", default="plain", show_default=True, metavar="NAME",
                     help="The runtime that will execute the plan: what it overlaps, allows and reserves."),
        click.option("--profile", metavar="FILE", help="Your own measurements, as `autoplan calibrate` wrote them."),
        click.option("--frozen", is_flag=True, help="Train adapters (LoRA, not counted) beside frozen weights."),
        click.option("--dropout", is_flag=True, help="Train with dropout: its masks are kept and applied."),
        click.option("--attention", type=click.Choice(ATTENTIONS),
                     help="The kernel of attention.  [default: flash where the device has it]"),
        click.option("--reduce-dtype", type=click.Choice(GRADIENTS),
                     help="Of gradients as they travel.  [default: the runtime's, else as they accumulate]"),
        click.option("--grad-dtype", type=click.Choice(GRADIENTS),
                     help="Of accumulated gradients.  [default: the runtime's, else the precision]"),
        click.option("--optimizer", type=click.Choice(sorted(OPTIMIZER_STATE_BYTES)), default="adam", show_default=True,
                     help="Its state is priced in time and memory."),
        click.option("--precision", type=click.Choice(PRECISIONS),
                     help="Of weights and activations.  [default: bf16, or what the device has]"),
        click.option("--seq-len", type=WholeNumber(), help="Tokens of a sequence.  [default: the model's]"),
    ):
        command = option(command)
    return command


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `-o`."""
    for option in (
        click.option("-o", "--output", metavar="FILE", help="Write the plan to FILE (JSON)."),
        click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON."),
    ):
        command = option(command)
    return command


def model_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add MODEL."""
    return click.argument("model")(command)


def cluster_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add CLUSTER."""
    return click.argument("cluster")(command)


def parse_fixes(items: Iterable[str]) -> dict[str, object]:
    """Return `key=value` items as a mapping with full key names and typed values.

    Raises InputError for an unknown key, a bad value, or a key that is given two values.
    """
    fixes: dict[str, object] = {}
    for item in items:
        name, equals, text = (part.strip() for part in item.partition("="))
        if not equals:
            raise InputError("needs KEY=VALUE", where="--fix", found=item)
        key = ALIASES.get(name, name.replace("-", "_"))
        if key not in FIXABLE:
            hint = nearest(key, [*FIXABLE, *ALIASES])
            raise InputError("unknown key" + (f", {hint}" if hint else ""), where="--fix", found=name,
                             allowed=", ".join(_KEYS))
        value = _value(key, text)
        if fixes.setdefault(key, value) != value:
            raise InputError(f"is fixed to two values, {fixes[key]} and {value}", where="--fix", key=key)
    return fixes


def _value(key: str, text: str) -> object:
    """Return the value of a fix. Raises InputError."""
    if key == "layers":
        return parse_layers(text)
    if key == "sequence_parallel":
        if text.lower() not in _WORDS:
            raise InputError("not a truth value", where="--fix", key=key, found=text, allowed="true, false")
        return _WORDS[text.lower()]
    words = {"recompute": RECOMPUTES, "schedule": SCHEDULES}.get(key)
    if words:
        if text not in words:
            raise InputError("unknown value", where="--fix", key=key, found=text, allowed=", ".join(words))
        return text
    return _whole(key, text, 0, 3) if key == "zero" else _whole(key, text)


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return a list of whole numbers. Raises InputError."""
    return None if text is None else tuple(_whole("layers", one, 0) for one in text.split(","))


def _whole(key: str, text: str, least: int = 1, most: int = MOST) -> int:
    """Return a whole number of a fix. Raises InputError."""
    try:
        number = WholeNumber(least, most).convert(text, None, None)
        assert number is not None
        return number
    except click.BadParameter as error:
        raise InputError(error.message, key=key) from None


def reject_conflicts(fixes: dict[str, object], **options: object) -> None:
    """Raise InputError where an option that was given says another value than `--fix`."""
    for key, value in options.items():
        if value is not None and fixes.get(key, value) != value:
            raise InputError(f"--fix says {fixes[key]}, --{key.replace('_', '-')} says {value}", where="--fix", key=key)
