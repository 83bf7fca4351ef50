"""What the exit status of `truedraft` means: one table for the code, the help and the docs."""

from __future__ import annotations

from truedraft.errors import (
    BackendError,
    CapacityError,
    CheckpointError,
    ConfigError,
    RequestError,
    TruedraftError,
)

OK = 0
UNEXPECTED = 1
WRONG_USE = 2
UNPROFITABLE = 3
BROKEN = 4
CHECKPOINT = 5
ENGINE = 6
INTERRUPTED = 130
READER_GONE = 141

MEANINGS: dict[int, str] = {
    OK: "done",
    UNEXPECTED: "a bug; the message names the file with the traceback",
    WRONG_USE: "wrong use: a flag, a value or a request cannot be used",
    UNPROFITABLE: "right, but not faster than plain decoding",
    BROKEN: "the self-check failed: answers are wrong or not lossless",
    CHECKPOINT: "a checkpoint cannot be used, or target and drafter do not fit",
    ENGINE: "out of capacity, or the engine failed",
    INTERRUPTED: "interrupted (Ctrl-C)",
    READER_GONE: "the reader of our output went away (a closed pipe)",
}

BY_ERROR: dict[type[TruedraftError], int] = {
    ConfigError: WRONG_USE,
    RequestError: WRONG_USE,
    CheckpointError: CHECKPOINT,
    CapacityError: ENGINE,
    BackendError: ENGINE,
}


def exit_code_of(error: BaseException) -> int:
    """The exit code for `error`, by the nearest class in the table; UNEXPECTED where there is none."""
    for cls in type(error).__mro__:
        if cls in BY_ERROR:
            return BY_ERROR[cls]
    return UNEXPECTED


def help_lines() -> str:
    """The table as lines for `truedraft --help`."""
    return "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
