"""The two ways a question can fail: bad input (exit code 2) and nothing that fits (exit code 1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutoplanError(Exception):
    """Base of every error that autoplan raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 2


class InputError(AutoplanError):
    """What the user gave can't be used.

    The message is one line: where it was found (a file or an option), the key, what was found and what is allowed.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, key: str | None = None,
                 found: object = None, allowed: str | None = None) -> None:
        self.where, self.key, self.found, self.allowed = where, key, found, allowed
        head = ": ".join(part for part in (where, key) if part)
        text = f"{head}: {what}" if head else what
        if found is not None:
            text += f" (found {found!r})"
        if allowed:
            text += f"; allowed: {allowed}"
        super().__init__(text)


    def at(self, where: str) -> InputError:
        """Return the error as one of the place `where`, said before what it names itself, and once."""
        return self if self.where == where else InputError(str(self), where=where)


class NoPlanError(AutoplanError):
    """No plan fits. The message is the diagnosis; `diagnosis` holds its parts for `--json`."""

    exit_code = 1

    def __init__(self, message: str, diagnosis: dict[str, object] | None = None) -> None:
        self.diagnosis = diagnosis or {}
        super().__init__(message)


class Words(str):
    """What was found in words of ours: a message shows them without quotes."""

    def __repr__(self) -> str:
        return str(self)


def kind_of(data: object) -> Words:
    """Return what a value of a JSON or YAML file is."""
    words = {type(None): "nothing", bool: "true or false", int: "a number", float: "a number", str: "text",
             list: "a list", dict: "a mapping"}
    return Words(words.get(type(data), type(data).__name__))


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return a phrase that suggests the known names nearest to `name`, or an empty string; names it begins go first."""
    names, start = list(known), name.lower()
    begun = sorted((other for other in names if start and other.lower().startswith(start)), key=len)
    close = list(dict.fromkeys((*begun, *difflib.get_close_matches(name, names, n=limit, cutoff=0.4))))[:limit]
    return f"did you mean {' or '.join(close)}?" if close else ""
