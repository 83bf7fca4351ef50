"""Finds tool calls in an answer, piece by piece as it comes.

Two families: Hermes and Qwen write `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, Llama 3
writes bare objects `{"name": …, "parameters": {…}}`, alone or after its python tag, several with a
semicolon between. What looks like a call and turns out to be none stays text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Text:
    """Part of the answer's content."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or a further part of its arguments (then `name` and `call_id` are None)."""

    index: int
    arguments: str
    name: str | None = None
    call_id: str | None = None


Piece = Text | Call


class ToolParser(Protocol):
    """Text in, pieces out; `finish` gives what was held back."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]: ...


class AutoParser:
    """For `tool_choice` auto: either family, told apart by how a call begins."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._num_calls = 0
        self._space = ""
        self._in_text = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            at = self._held.find(_OPEN)
            if at < 0:
                break
            end = self._held.find(_CLOSE, at)
            if end < 0:
                self._say(self._held[:at], pieces)
                self._held = self._held[at:]
                return pieces
            self._say(self._held[:at], pieces)
            raw = self._held[at : end + len(_CLOSE)]
            self._held = self._held[end + len(_CLOSE) :]
            self._call_or_text(raw, raw[len(_OPEN) : -len(_CLOSE)], pieces)
        if not self._may_be_bare():
            cut = len(self._held) - _overlap(self._held, _OPEN)
            self._say(self._held[:cut], pieces)
            self._held = self._held[cut:]
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        raw, self._held = self._held, ""
        if raw.startswith(_OPEN):
            # The end of a call is often a stop token away: an object that is whole is a call.
            self._call_or_text(raw, raw[len(_OPEN) :], pieces)
        elif self._in_text or self._num_calls or not self._bare_calls(raw, pieces):
            self._say(raw, pieces)
        if not self._num_calls and self._space:
            pieces.append(Text(self._space))
        return pieces

    def _may_be_bare(self) -> bool:
        """Whether all of the answer so far could be a Llama call: then it waits for the end."""
        if self._in_text or self._num_calls:
            return False
        text = self._held.lstrip()
        return text.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(text)

    def _bare_calls(self, raw: str, pieces: list[Piece]) -> bool:
        rest = raw.strip().removeprefix(_PYTHON_TAG)
        found: list[tuple[str, str]] = []
        while rest.strip(" \n;"):
            rest = rest.lstrip(" \n;")
            try:
                value, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                return False
            call = _as_call(value, self._names)
            if call is None:
                return False
            found.append(call)
            rest = rest[end:]
        for name, arguments in found:
            pieces.append(self._new_call(name, arguments))
        return bool(found)

    def _call_or_text(self, raw: str, body: str, pieces: list[Piece]) -> None:
        try:
            call = _as_call(json.loads(body), self._names)
        except (ValueError, RecursionError):
            call = None
        if call is None:
            self._say(raw, pieces)
        else:
            pieces.append(self._new_call(*call))

    def _new_call(self, name: str, arguments: str) -> Call:
        self._space, self._in_text = "", False
        self._num_calls += 1
        return Call(self._num_calls - 1, arguments, name, new_call_id())

    def _say(self, text: str, pieces: list[Piece]) -> None:
        # White space before and between calls is layout: it counts only once text follows.
        if not self._in_text and not text.strip():
            self._space += text
            return
        if text:
            pieces.append(Text(self._space + text))
            self._space, self._in_text = "", True


class RequiredParser:
    """For `tool_choice` required: the grammar makes the answer a JSON array of calls."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._raw = ""
        self._num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        self._raw += text
        pieces: list[Piece] = []
        while True:
            rest = self._held.lstrip(" \n\r\t[,")
            try:
                value, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                return pieces
            call = _as_call(value, self._names)
            if call is None:
                return pieces
            pieces.append(Call(self._num_calls, call[1], call[0], new_call_id()))
            self._num_calls += 1
            self._held = rest[end:]

    def finish(self) -> list[Piece]:
        # Cut off before the first call was whole: the reader gets what there is.
        return [Text(self._raw)] if not self._num_calls and self._raw.strip() else []


class NamedParser:
    """For one named function: the whole answer is its arguments."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._begun:
            return [Call(0, text)]
        self._begun = True
        return [Call(0, text, self._name, new_call_id())]

    def finish(self) -> list[Piece]:
        return []


def new_call_id() -> str:
    """A fresh id in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


def _as_call(value: Any, names: Collection[str]) -> tuple[str, str] | None:
    """→ (name, arguments as JSON text) where `value` calls a tool that was offered."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return name, arguments
    return (name, text) if (text := _as_json(arguments)) is not None else None


def _as_json(arguments: Any) -> str | None:
    """→ compact text of an object; None where it is none, or has numbers that JSON lacks."""
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only its escape can carry
        return json.dumps(arguments, allow_nan=False)
    except ValueError:
        return None
    return text


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
