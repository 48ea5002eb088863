"""Typed reading of a JSON mapping that came from outside: a wrong value is one InputError naming file and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.errors import InputError, kind_of
from autoplan.model.spec import MAX_SIZE
from autoplan.specs import unparsed


@dataclass(frozen=True)
class Notes:
    """What a reader tells of what it read: what it assumed, and what the model has beside. Collected while reading."""

    assumed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Keys:
    """The keys of one configuration. A key that is null reads as absent unless a method says otherwise.

    data: the mapping. where: the file. path: before the keys' names in errors, where the mapping is nested in another.
    defaults: what stands in for keys that are absent, where leaving them out is usual. notes: shared by all mappings of
    a file.
    """

    def __init__(self, data: Mapping[str, object], where: str, *, path: str = "",
                 defaults: Mapping[str, int] | None = None, notes: Notes | None = None) -> None:
        self.data, self.where, self.path = data, where, path
        self.defaults = defaults or {}
        self.notes = notes or Notes()

    @classmethod
    def of_json(cls, path: Path) -> Keys:
        """Read a JSON file that holds an object. Raises InputError with line and column if it's malformed."""
        where = str(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8-sig"))
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise InputError(f"malformed JSON at {place}: {error.msg}", where=where) from None
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text at byte {error.start}", where=where) from None
        except OSError as error:
            raise InputError(f"can't be read: {error.strerror}", where=where) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"malformed JSON: {unparsed(error)}", where=where) from None
        if not isinstance(data, dict):
            raise InputError("holds no JSON object", where=where, found=kind_of(data), allowed="a mapping")
        return cls(data, where)

    def nested(self, key: str, defaults: Mapping[str, int] | None = None) -> Keys:
        """Return the mapping under `key`, empty if there is none; see the class for `defaults`."""
        value = self.data.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error("not a mapping", key)
        return Keys(value, self.where, path=f"{self.path}{key}.", defaults=defaults, notes=self.notes)

    def typed(self, model_type: str) -> Keys:
        """Return the same keys with this `model_type`."""
        return Keys({**self.data, "model_type": model_type}, self.where, path=self.path, defaults=self.defaults,
                    notes=self.notes)

    def assume(self, what: str) -> None:
        """Note what the file doesn't say and the reading rests on."""
        if what not in self.notes.assumed:
            self.notes.assumed.append(what)

    def leave_out(self, what: str) -> None:
        """Note what the model has and the spec hasn't."""
        if what not in self.notes.left_out:
            self.notes.left_out.append(what)

    def has(self, key: str) -> bool:
        """Whether `key` has a value."""
        return self.data.get(key) is not None

    def error(self, what: str, key: str, allowed: str | None = None) -> InputError:
        """Return the error that `key` has a value that can't be used, or that it's missing."""
        return InputError(what, where=self.where, key=self.path + key, found=self.data.get(key), allowed=allowed)

    def size(self, *names: str, absent: int | None = None) -> int:
        """Return the positive integer under one of `names`, which mean the same.

        absent: what holds if there is none; without it, and without a default of the first name, it may not be missing.
        """
        found = [(name, value) for name in names if (value := self.optional_size(name)) is not None]
        if not found:
            if absent is not None:
                return absent
            if names[0] in self.defaults:
                self.assume(f"{self.path}{names[0]} {self.defaults[names[0]]}, its class's default")
                return self.defaults[names[0]]
            what = "is null" if any(name in self.data for name in names) else "missing"
            raise InputError(what, where=self.where, key=" or ".join(self.path + name for name in names),
                             allowed="a positive integer")
        (first, value), *others = found
        for name, other in others:
            if other != value:
                raise self.error(f"disagrees with {first} {value}", name)
        return value

    def optional_size(self, key: str, absent: int | None = None, null: int | None = None) -> int | None:
        """Return the positive integer under `key`; or what holds if the key is absent, or null."""
        value = self.data.get(key)
        if value is None:
            return null if key in self.data else absent
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.error("not a size", key, f"a positive integer, at most {MAX_SIZE}")
        return value

    def count(self, key: str, absent: int = 0) -> int:
        """Return the number under `key`, which may be 0."""
        value = self.data.get(key)
        if value is None:
            return absent
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
            raise self.error("not a count", key, f"0 or a positive integer, at most {MAX_SIZE}")
        return value

    def counts(self, key: str) -> list[int] | None:
        """Return the list of numbers under `key`."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error("not a list of counts", key)
        return value

    def number(self, key: str, absent: float) -> float:
        """Return the positive number under `key`."""
        value = self.data.get(key)
        if value is None:
            return absent
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SIZE:
            raise self.error("not a number", key, "a positive number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return the truth value under `key`."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error("not a truth value", key, "true, false")
        return value

    def text(self, key: str, allowed: str | None = None) -> str | None:
        """Return the string under `key`. allowed: what to say is allowed where it's none."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error("not a string", key, allowed)
        return value

    def texts(self, key: str) -> list[str] | None:
        """Return the list of strings under `key`."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error("not a list of strings", key)
        return value
