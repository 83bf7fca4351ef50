"""Looks values up in a config, remembering where each came from and what contradicts it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from truedraft.contract.reading import Conflict
from truedraft.contract.specs import Origin
from truedraft.errors import CheckpointError

MAX_SIZE = 2**31 - 1

T = TypeVar("T")


class Values:
    """Collects one checkpoint's values.

    `scopes` are (prefix, mapping) pairs of one config file, the first wins: for a drafter
    `dflash_config.` comes before the top level. Setters return what they stored, or None.
    """

    def __init__(self, file: str, scopes: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.file = file
        self.scopes = [(prefix, scope) for prefix, scope in scopes if isinstance(scope, Mapping)]
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.conflicts: list[Conflict] = []

    def find(self, *keys: str) -> tuple[Any, Origin] | None:
        """→ the first value that is not null under any of `keys`, with its origin."""
        for prefix, scope in self.scopes:
            for key in keys:
                if scope.get(key) is not None:
                    return scope[key], Origin("key", f"{self.file}: {prefix}{key}")
        return None

    def everywhere(self, *keys: str) -> list[tuple[Any, Origin]]:
        """→ all values under `keys` in all scopes, in order of precedence."""
        return [
            (scope[key], Origin("key", f"{self.file}: {prefix}{key}"))
            for prefix, scope in self.scopes
            for key in keys
            if scope.get(key) is not None
        ]

    def put(self, name: str, value: T, origin: Origin) -> T:
        self.values[name], self.origins[name] = value, origin
        return value

    def default(self, name: str, value: Any, why: str) -> Any:
        """Store a default unless the name has a value."""
        if name not in self.values:
            self.put(name, value, Origin("default", why))
        return self.values[name]

    def integer(self, name: str, *keys: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """Store a whole number. Raises CheckpointError for another type or one out of range."""
        found = self.everywhere(*keys)
        for value, origin in found:
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise CheckpointError(
                    f"{origin.where} is impossible",
                    seen=value,
                    allowed=f"a whole number from {low} to {high}",
                )
        return self._first(name, [(int(value), origin) for value, origin in found])

    def number(self, name: str, *keys: str, low: float = 0.0, high: float = 1e12) -> float | None:
        """Store a finite number. Raises CheckpointError for another type or one out of range."""
        found = self.everywhere(*keys)
        for value, origin in found:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not low <= value <= high:
                raise CheckpointError(
                    f"{origin.where} is impossible", seen=value, allowed=f"a number from {low:g} to {high:g}"
                )
        return self._first(name, [(float(value), origin) for value, origin in found])

    def flag(self, name: str, *keys: str) -> bool | None:
        """Store true or false. Raises CheckpointError for another type."""
        found = self.everywhere(*keys)
        for value, origin in found:
            if not isinstance(value, bool):
                raise CheckpointError(f"{origin.where} must be true or false", seen=value)
        return self._first(name, found)

    def text(self, name: str, *keys: str) -> str | None:
        """Store a text. Raises CheckpointError for another type."""
        found = self.everywhere(*keys)
        for value, origin in found:
            if not isinstance(value, str):
                raise CheckpointError(f"{origin.where} must be a text", seen=value)
        return self._first(name, found)

    def integers(self, name: str, *keys: str, low: int, high: int = MAX_SIZE) -> tuple[int, ...] | None:
        """Store a list of whole numbers. Raises CheckpointError for another type or range."""
        found = []
        for value, origin in self.everywhere(*keys):
            if not isinstance(value, list) or not all(
                type(item) is int and low <= item <= high for item in value
            ):
                raise CheckpointError(
                    f"{origin.where} is impossible",
                    seen=value,
                    allowed=f"a list of whole numbers from {low} up",
                )
            found.append((tuple(value), origin))
        return self._first(name, found)

    def _first(self, name: str, found: Sequence[tuple[T, Origin]]) -> T | None:
        if not found:
            return None
        for value, origin in found[1:]:
            if value != found[0][0]:
                self.conflicts.append(Conflict(name, *found[0], value, origin, hard=False))
        self.put(name, *found[0])
        return found[0][0]

    def compare(self, name: str, value: Any, origin: Origin, *, hard: bool = True) -> None:
        """Take `value` where the config has none; else note a conflict where they differ."""
        if name not in self.values or self.origins[name].kind == "default":
            self.put(name, value, origin)
        elif self.values[name] != value:
            self.conflicts.append(Conflict(name, self.values[name], self.origins[name], value, origin, hard))
