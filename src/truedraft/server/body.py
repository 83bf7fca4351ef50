"""Reads a request's body as strict JSON, within limits, and refuses with a reason."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from truedraft.errors import RequestError
from truedraft.server.http_errors import BodyTimeoutError, BodyTooLargeError, MediaTypeError

MAX_DEPTH = 64
READ_TIMEOUT_S = 60.0
_DISCARD_FACTOR = 4  # an oversized body is read, and dropped, up to this many times the limit


async def read_json(request: Request, *, max_body_bytes: int) -> dict[str, Any]:
    """→ the JSON object of the body. Raises RequestError or a class of it for anything else."""
    _check_media_type(request)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            data = await _read(request, max_body_bytes)
    except TimeoutError:
        raise BodyTimeoutError(f"The body did not arrive within {READ_TIMEOUT_S:g} s") from None
    return parse_json(data)


def parse_json(data: bytes) -> dict[str, Any]:
    """Bytes → object. No NaN or Infinity, no lone surrogates, no key twice, at most MAX_DEPTH levels."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not valid UTF-8: byte {error.start} cannot be read") from None
    if not text.strip():
        raise RequestError("The body is empty", allowed="a JSON object")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise RequestError("The body is nested too deeply", allowed=f"at most {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:
        raise RequestError("The body has a number with too many digits") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object", seen=type(value).__name__)
    _check_values(value, check_text="\\u" in text)
    return value


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            "The body must be JSON, and say so",
            seen=media_type or "no Content-Type",
            allowed="Content-Type: application/json",
        )
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise MediaTypeError("Compressed bodies are not read", seen=encoding, allowed="no Content-Encoding")


async def _read(request: Request, max_body_bytes: int) -> bytes:
    """Keeps at most `max_body_bytes`; of a larger body it drops what comes.

    The rest is read and dropped so that the client, busy sending, gets to see the answer; but no
    more than a few times the limit, and not at all where the client waits for a go-ahead.
    """
    declared = request.headers.get("content-length", "")
    announced = int(declared) if declared.isdecimal() else None
    if announced is not None and announced > max_body_bytes:
        waits = "expect" in request.headers
        if waits or announced > _DISCARD_FACTOR * max_body_bytes:
            _refuse_size(announced, max_body_bytes)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_body_bytes:
                chunks.append(chunk)
            elif size > _DISCARD_FACTOR * max_body_bytes:
                break
            else:
                chunks.clear()
    except ClientDisconnect:
        raise RequestError("The client left before its body was complete") from None
    if size > max_body_bytes:
        _refuse_size(announced or size, max_body_bytes)
    return b"".join(chunks)


def _refuse_size(size: int, max_body_bytes: int) -> NoReturn:
    raise BodyTooLargeError(
        f"The body has {size} bytes or more, but this server takes at most {max_body_bytes} bytes"
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key given twice: readers differ in which one counts, a gateway's check and ours too."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        # It may hold half a surrogate pair, which the answer could not carry.
        shown = twice.encode("utf-8", errors="replace").decode("utf-8")
        raise RequestError("The body has an object with one key twice", seen=shown, allowed="each key once")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"The body has the number {name}", allowed="finite numbers")


def _check_values(value: dict[str, Any], *, check_text: bool) -> None:
    """Walks without recursion: depth, and strings that UTF-8 cannot carry."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        following: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                following.extend(item.values())
                if check_text:
                    following.extend(item.keys())
            elif isinstance(item, list):
                following.extend(item)
            elif check_text and isinstance(item, str):
                _check_text(item)
        if not following:
            return
        level = following
    raise RequestError("The body is nested too deeply", allowed=f"at most {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError("The body has half of a surrogate pair, which is not text") from None
