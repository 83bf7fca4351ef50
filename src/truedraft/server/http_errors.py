"""Error class → HTTP status and OpenAI's type and code: the one table, and the body it makes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truedraft.errors import (
    BackendError,
    BackendProtocolError,
    BackendStartError,
    BackendTimeoutError,
    CapacityError,
    PromptTooLongError,
    RequestError,
    TruedraftError,
    UnsupportedError,
)

log = logging.getLogger("truedraft.server")


class AuthError(RequestError):
    """The API key is missing or wrong."""


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""


class BodyTooLargeError(RequestError):
    """The body has more bytes than the server takes."""


class MediaTypeError(RequestError):
    """The body is not declared as JSON."""


class BodyTimeoutError(RequestError):
    """The body did not arrive in time."""


class QueueFullError(CapacityError):
    """Too many requests wait already."""


class DrainingError(CapacityError):
    """The server is shutting down and takes no new requests."""


@dataclass(frozen=True, slots=True)
class HttpFault:
    """How one class of errors looks over HTTP."""

    status: int
    type: str
    code: str | None = None
    retry_after_s: int | None = None


FAULTS: Mapping[type[Exception], HttpFault] = {
    AuthError: HttpFault(401, "authentication_error", "invalid_api_key"),
    ModelNotFoundError: HttpFault(404, "invalid_request_error", "model_not_found"),
    BodyTooLargeError: HttpFault(413, "invalid_request_error", "body_too_large"),
    MediaTypeError: HttpFault(415, "invalid_request_error", "unsupported_media_type"),
    BodyTimeoutError: HttpFault(408, "invalid_request_error", "body_timeout"),
    PromptTooLongError: HttpFault(400, "invalid_request_error", "context_length_exceeded"),
    UnsupportedError: HttpFault(400, "invalid_request_error", "unsupported_parameter"),
    RequestError: HttpFault(400, "invalid_request_error", "invalid_value"),
    QueueFullError: HttpFault(429, "rate_limit_error", "queue_full", retry_after_s=1),
    DrainingError: HttpFault(503, "server_error", "shutting_down", retry_after_s=5),
    CapacityError: HttpFault(429, "rate_limit_error", "capacity", retry_after_s=1),
    BackendStartError: HttpFault(503, "server_error", "backend_not_started", retry_after_s=5),
    BackendTimeoutError: HttpFault(504, "server_error", "backend_timeout"),
    BackendProtocolError: HttpFault(502, "server_error", "backend_protocol"),
    BackendError: HttpFault(500, "server_error", "backend_error"),
    TruedraftError: HttpFault(500, "server_error", "internal_error"),
}
_UNKNOWN = HttpFault(500, "server_error", "internal_error")


def fault_of(error: BaseException) -> HttpFault:
    """The nearest entry along the error's own line of classes."""
    return next((FAULTS[cls] for cls in type(error).__mro__ if cls in FAULTS), _UNKNOWN)


def error_body(error: BaseException) -> dict[str, Any]:
    """OpenAI's error object. Errors that are not ours are logged and say nothing of the inside."""
    fault = fault_of(error)
    if isinstance(error, TruedraftError):
        message, param = str(error), getattr(error, "param", None)
    else:
        log.error("unexpected error in the server", exc_info=error)
        message, param = "Internal error. The server's log says more.", None
    return {"error": {"message": message, "type": fault.type, "param": param, "code": fault.code}}


def error_headers(error: BaseException) -> dict[str, str]:
    """Headers that go with the error: when to come again, or how to authenticate."""
    fault = fault_of(error)
    headers = {}
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(fault.retry_after_s)
    if fault.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
