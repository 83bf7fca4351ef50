"""Every exception that truedraft raises on purpose.

    TruedraftError
    ├── ConfigError            what the user said cannot be done
    ├── CheckpointError        a file or folder of weights cannot be used
    │   └── PairingError       target and drafter do not fit each other
    ├── CapacityError          memory, disk or a queue is full
    ├── RequestError           one request is wrong; the server goes on
    │   ├── PromptTooLongError
    │   └── UnsupportedError   a field with an effect that we do not have
    └── BackendError           an engine failed
        ├── BackendStartError
        ├── BackendTimeoutError
        └── BackendProtocolError

A message has up to four parts: what is wrong, the value seen, what is allowed, and what to do.
Foreign exceptions are mapped at the boundary that owns them, with `from`.
"""

from __future__ import annotations


class TruedraftError(Exception):
    """Base of all errors with a message for the user; never shown with a traceback."""

    def __init__(
        self, what: str, *, seen: object = None, allowed: str | None = None, remedy: str | None = None
    ) -> None:
        self.what = what
        self.seen = seen
        self.allowed = allowed
        self.remedy = remedy
        super().__init__(self._message())

    def _message(self) -> str:
        message = self.what.rstrip(".")
        if self.seen is not None:
            message += f": got {_shorten(self.seen)}"
        if self.allowed is not None:
            message += f"; allowed: {self.allowed.rstrip('.')}"
        message += "."
        if self.remedy is not None:
            message += f" {self.remedy.rstrip('.')}."
        return message


class ConfigError(TruedraftError):
    """A flag, config value or combination of them cannot be used."""


class CheckpointError(TruedraftError):
    """A checkpoint is missing, corrupt, or of a format or family that cannot be loaded."""


class PairingError(CheckpointError):
    """Target and drafter do not fit each other."""


class CapacityError(TruedraftError):
    """Not enough memory, disk, pages or queue places."""


class RequestError(TruedraftError):
    """One request cannot be served as asked. `param` names the field at fault."""

    def __init__(
        self,
        what: str,
        *,
        param: str | None = None,
        seen: object = None,
        allowed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.param = param
        super().__init__(what, seen=seen, allowed=allowed, remedy=remedy)


class PromptTooLongError(RequestError):
    """The prompt, or prompt and answer together, do not fit the context length."""


class UnsupportedError(RequestError):
    """The request has a field with an effect that this backend does not have."""


class BackendError(TruedraftError):
    """An engine failed while it was serving."""


class BackendStartError(BackendError):
    """An engine could not be started."""


class BackendTimeoutError(BackendError):
    """An engine did not answer within its deadline."""


class BackendProtocolError(BackendError):
    """An engine answered something that its protocol does not allow."""


def _shorten(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
