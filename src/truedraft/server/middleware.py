"""What every request passes: the API key, an id, and headers that keep browsers careful."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from truedraft.server.http_errors import AuthError, error_body, error_headers, fault_of

OPEN_PATHS = ("/health",)
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; object-src 'none';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class HeadersMiddleware:
    """Adds security headers and `X-Request-ID` (the client's own, where it sent a sane one)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers["X-Request-ID"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_headers)


class AuthMiddleware:
    """Asks for `Authorization: Bearer KEY` on all paths but OPEN_PATHS, where keys are set."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode("utf-8") for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        error = self._fault(Headers(scope=scope).get("authorization", ""))
        if error is None:
            await self._app(scope, receive, send)
            return
        response = JSONResponse(error_body(error), fault_of(error).status, headers=error_headers(error))
        await response(scope, receive, send)

    def _fault(self, header: str) -> AuthError | None:
        scheme, _, given = header.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return AuthError("This server asks for an API key", remedy="Send Authorization: Bearer KEY")
        # Headers arrive as latin-1; every key is compared, so that the time tells nothing.
        token = given.strip().encode("latin-1", errors="replace")
        matches = [hmac.compare_digest(token, key) for key in self._keys]
        return None if any(matches) else AuthError("The API key is not valid")


def _request_id(given: str | None) -> str:
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex
