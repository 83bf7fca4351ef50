"""Notices at once when the client has gone, and stops the work done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

Value = TypeVar("Value")


class ClientGoneError(Exception):
    """Nobody is there to read the answer."""


async def until_disconnect(receive: Receive, work: Awaitable[Value]) -> Value:
    """→ what `work` gives. Cancels it, waits for its clean-up and raises ClientGoneError where the
    client closes the connection first. The body must have been read."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
