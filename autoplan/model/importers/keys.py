"""Typed reading of a JSON mapping that came from outside: a wrong value is one InputError naming file and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from autoplan.errors import InputError
from autoplan.model.spec import MAX_SIZE


class Keys:
    """The keys of one configuration file. A key that is null reads as absent unless a method says otherwise."""

    def __init__(self, data: Mapping[str, object], where: str) -> None:
        self.data, self.where = data, where

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
            raise InputError(f"malformed JSON: {error}", where=where) from None
        if not isinstance(data, dict):
            raise InputError("holds no JSON object", where=where, found=type(data).__name__)
        return cls(data, where)

    def error(self, what: str, key: str, allowed: str | None = None) -> InputError:
        """Return the error that `key` has a value that can't be used."""
        return InputError(what, where=self.where, key=key, found=self.data.get(key), allowed=allowed)

    def size(self, *names: str) -> int:
        """Return the positive integer under one of `names`, which mean the same; it may not be missing."""
        found = [(name, value) for name in names if (value := self.optional_size(name)) is not None]
        if not found:
            what = "is null" if any(name in self.data for name in names) else "missing"
            raise InputError(what, where=self.where, key=" or ".join(names), allowed="a positive integer")
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
