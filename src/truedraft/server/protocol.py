"""uvicorn's HTTP protocol with an end to its patience: a connection has to bring a request.

uvicorn closes connections that idle after an answer, and `body.read_json` those whose body does not
come; one that never completes its first head would stay, and hold a file handle, for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_TIMEOUT_S = 30.0


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection whose first request's head is not complete after HEAD_TIMEOUT_S."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.scope is None and not self.transport.is_closing():
            self.transport.close()
