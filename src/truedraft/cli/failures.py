"""Turns an exception into one message on stderr, one JSON object where asked for, and an exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from truedraft.cli.exit_codes import UNEXPECTED, WRONG_USE, exit_code_of
from truedraft.cli.output import printable
from truedraft.config.paths import cache_dir
from truedraft.errors import CapacityError, TruedraftError


def report_failure(error: BaseException, *, as_json: bool) -> int:
    """Print `error` once, without a traceback, and return the exit code.

    Anything that is not ours is a bug: its traceback goes to a file, and to stderr under
    TRUEDRAFT_DEBUG=1.
    """
    if isinstance(error, MemoryError):
        error = CapacityError("Not enough memory", remedy="Try a smaller --max-model-len or --max-num-seqs")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "where the output or the cache is written"
        error = CapacityError(f"No room left on the disk ({where})", remedy="Free some space")
    if os.environ.get("TRUEDRAFT_DEBUG") not in (None, "", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, TruedraftError):
        _print_error(error)
        code, body = exit_code_of(error), describe_error(error)
    else:
        written = _write_traceback(error)
        line = f"truedraft failed unexpectedly ({type(error).__name__}: {_one_line(error)})"
        where = f"the traceback is in {written}" if written else "TRUEDRAFT_DEBUG=1 shows the traceback"
        print(f"error: {line}. This is a bug; {where}.", file=sys.stderr)
        code, body = UNEXPECTED, {"type": "InternalError", "message": line, "traceback_file": written}
    if as_json:
        print(json.dumps({"error": {**body, "exit_code": code}}, ensure_ascii=False))
    return code


def report_usage(error: Any, *, as_json: bool) -> int:
    """As `report_failure`, for the command line's own errors (unknown option, missing value)."""
    message = str(error.format_message()).rstrip(".") or "No command was named"  # the list of them is shown
    message = re.sub(r"Input should be (a valid \w+), unable to parse .*", r"it should be \1", message)
    message += "" if message.endswith("?") else "."
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or "truedraft"
    print(f"error: {message} See `{path} --help`.", file=sys.stderr)
    if as_json:
        body = {"type": "UsageError", "message": message, "exit_code": WRONG_USE}
        print(json.dumps({"error": body}, ensure_ascii=False))
    return WRONG_USE


def describe_error(error: TruedraftError) -> dict[str, Any]:
    """`error` for JSON: its class, its message and the message's parts."""
    body: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "what": error.what}
    if error.seen is not None:
        body["seen"] = error.seen if isinstance(error.seen, str | int | float) else repr(error.seen)
    if error.allowed is not None:
        body["allowed"] = error.allowed
    if error.remedy is not None:
        body["remedy"] = error.remedy
    for key in ("param", "findings"):
        if (value := getattr(error, f"{key}_json" if key == "findings" else key, None)) is not None:
            body[key] = value
    return body


def _print_error(error: TruedraftError) -> None:
    """`error:` with what and what was seen, then one line each for what is allowed and what to do."""
    text = error.what.rstrip(".")
    if error.seen is not None:
        seen = error.seen if isinstance(error.seen, str) else repr(error.seen)
        text += f": got {seen if len(seen) <= 200 else seen[:199] + '…'}"
    lines = [f"error: {text}."]
    if error.allowed is not None:
        lines.append(f"  allowed: {error.allowed}")
    if error.remedy is not None:
        lines.append(f"  what to do: {error.remedy}")
    print(printable("\n".join(lines)), file=sys.stderr)


def _one_line(error: BaseException, limit: int = 160) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _write_traceback(error: BaseException) -> str | None:
    """Write the traceback to the cache folder, or the temporary one; None where neither takes it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    text = "".join(traceback.format_exception(error))
    for folder in (cache_dir() / "crashes", Path(tempfile.gettempdir()) / "truedraft-crashes"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return str(folder / name)
    return None
