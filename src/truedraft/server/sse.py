"""Server-sent events: the format, and a response that stops when the client leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from truedraft.server.disconnect import ClientGoneError, until_disconnect
from truedraft.server.generation import Deltas
from truedraft.server.http_errors import error_body

log = logging.getLogger("truedraft.server")
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One event with `data` as compact JSON."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends `events`. An error among them becomes a last event in OpenAI's error shape.

    Owns `deltas`, which the events are made of: whatever happens, both are closed before it returns.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], deltas: Deltas) -> None:
        self.status_code = 200
        self.background = None
        # No `body`: the base class would declare its length.
        self._events = events
        self._deltas = deltas
        # The second header keeps nginx from collecting the stream.
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientGoneError:
            log.debug("the client left in mid-stream")
        finally:
            await self._events.aclose()
            await self._deltas.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (data := await self._next_event()) is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next_event(self) -> bytes | None:
        """→ the next event; None after the last. A generator that raised has no further ones."""
        try:
            return await anext(self._events, None)
        except Exception as error:
            return event(error_body(error))
