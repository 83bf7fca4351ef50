"""Checks that config records share: each returns nothing and raises ConfigError."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

from truedraft.errors import ConfigError


def check_int(name: str, value: object, *, low: int, high: int | None = None) -> None:
    """Raise ConfigError unless `value` is a whole number (no bool) in [low, high]."""
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else " up")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"`{name}` must be a whole number", seen=value, allowed=allowed)
    if value < low or (high is not None and value > high):
        raise ConfigError(f"`{name}` is out of range", seen=value, allowed=allowed)


def check_optional_int(name: str, value: object, *, low: int, high: int | None = None) -> None:
    """As `check_int`; None is allowed."""
    if value is not None:
        check_int(name, value, low=low, high=high)


def check_seconds(name: str, value: object, *, low: float = 0.0, high: float = 86_400.0) -> None:
    """Raise ConfigError unless `value` is a finite number of seconds in [low, high]."""
    allowed = f"{low:g} to {high:g} seconds"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"`{name}` must be a number of seconds", seen=value, allowed=allowed)
    if not low <= value <= high:
        raise ConfigError(f"`{name}` is out of range", seen=value, allowed=allowed)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ConfigError unless `value` is one of `choices`; suggests a near one."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        raise ConfigError(
            f"`{name}` is not a known choice",
            seen=value,
            allowed=", ".join(choices),
            remedy=f"Perhaps `{near[0]}` is meant" if near else None,
        )


def check_bool(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be true or false", seen=value)


def check_known_keys(where: str, keys: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for the first key that is not known; suggests a near one."""
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(
                f"Unknown key in {where}",
                seen=key,
                allowed=", ".join(sorted(known)),
                remedy=f"Perhaps `{near[0]}` is meant" if near else None,
            )
