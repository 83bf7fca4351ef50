"""Where output goes: answers and JSON to stdout, everything said on the way to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]
"""Takes one line for a person to read."""

_ALLOWED_CONTROLS = "\n\t"


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout. NaN and infinities are refused: they are not JSON."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def speaker(*, quiet: bool) -> Say:
    """→ a function that prints a line on stderr, or does nothing where `quiet`."""
    if quiet:
        return lambda line: None

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return say


def printable(text: str) -> str:
    """`text` with control characters shown as �: a model's answer must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(ch if ch in _ALLOWED_CONTROLS or not _is_control(ch) else "\ufffd" for ch in text)


def _is_control(ch: str) -> bool:
    code = ord(ch)
    return code < 0x20 or 0x7F <= code < 0xA0


def counted(number: int, noun: str) -> str:
    """`no findings`, `1 finding`, `3 findings`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
