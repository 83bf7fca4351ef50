"""Chat against a running server, over its OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx

from truedraft.cli.chat_origins import OriginMarks
from truedraft.cli.chat_turn import Message, Origin, Piece, TurnStats
from truedraft.contract.request import SamplingParams, Speculation
from truedraft.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeoutError,
    ConfigError,
    RequestError,
)

_TIMEOUT = httpx.Timeout(10.0, read=600.0)  # seconds; a queue may be long


class RemoteSource:
    """A ChatSource on a server. Make it with `connect`."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    @classmethod
    async def connect(cls, url: str, api_key: str | None) -> RemoteSource:
        """Ask the server which model it has. Raises ConfigError for a URL that is none, RequestError for
        a wrong key, BackendError where nothing answers."""
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise ConfigError("`--url` is not a URL", seen=url, allowed="http://HOST:PORT or https://HOST")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        client = httpx.AsyncClient(base_url=base, headers=headers, timeout=_TIMEOUT)
        try:
            answer = await client.get("/v1/models")
            _raise_for(answer.status_code, answer.content)
            name = answer.json()["data"][0]["id"]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            await client.aclose()
            raise BackendError(
                "No server answers", seen=f"{url} ({error})", remedy="Start `truedraft serve`"
            ) from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            await client.aclose()
            raise BackendProtocolError("The server lists no model", seen=answer.text[:100]) from error
        except BaseException:
            await client.aclose()
            raise
        return cls(client, str(name))

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams, speculation: Speculation
    ) -> AsyncGenerator[Piece | TurnStats, None]:
        """See ChatSource. Raises RequestError and BackendError."""
        answer = _Answer()
        body = {"model": self.name, "messages": list(messages), **_body_of(sampling, speculation)}
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    _raise_for(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    for piece in answer.take(line):
                        yield piece
        except httpx.TimeoutException as error:
            raise BackendTimeoutError("The server did not answer in time") from error
        except httpx.HTTPError as error:
            raise BackendError("The connection to the server broke", seen=str(error)) from error
        yield answer.stats()

    async def close(self) -> None:
        await self._client.aclose()


class _Answer:
    """One answer as it arrives."""

    def __init__(self) -> None:
        self._marks = OriginMarks()
        self._started_s = time.perf_counter()
        self._num_drafted_kept = 0
        self._usage: dict[str, Any] = {}
        self._finish_reason = ""
        self._done = False

    def take(self, line: str) -> list[Piece]:
        """One line of the event stream → the text in it. Raises BackendError for an error event."""
        if not line.startswith("data:"):
            return []
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self._done = True
            return []
        try:
            chunk = json.loads(data)
            if "error" in chunk:
                raise BackendError("The server failed during the answer", seen=chunk["error"].get("message"))
            self._usage = chunk.get("usage") or self._usage
            return [piece for choice in chunk.get("choices", ()) for piece in self._choice(choice)]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise BackendProtocolError("The server sent an event that cannot be read", seen=data) from error

    def _choice(self, choice: dict[str, Any]) -> list[Piece]:
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        trace = choice.get("speculation") or {}
        own = Origin.OWN if trace.get("draft_ids") else Origin.PLAIN
        runs = []
        for text, position in zip(trace.get("tokens", ()), trace.get("origins", ()), strict=True):
            self._num_drafted_kept += position > 0
            runs.append((len(text.strip("\ufffd")), Origin.DRAFTED if position else own))
        return self._marks.push(runs, choice.get("delta", {}).get("content") or "")

    def stats(self) -> TurnStats:
        """Figures of the finished answer. Raises BackendProtocolError where the stream broke off."""
        if not self._done or not self._finish_reason:
            raise BackendProtocolError("The server's answer broke off")
        rounds = self._usage.get("speculation") or {}
        return TurnStats(
            num_tokens=self._usage.get("completion_tokens", 0),
            num_drafted_kept=self._num_drafted_kept,
            num_rounds=rounds.get("rounds", 0),
            num_committed=rounds.get("committed", 0),
            total_s=time.perf_counter() - self._started_s,
            finish_reason=self._finish_reason,
        )


def _body_of(sampling: SamplingParams, speculation: Speculation) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": speculation,
        "speculation_trace": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if sampling.max_tokens is not None:
        body["max_tokens"] = sampling.max_tokens
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body


def _raise_for(status: int, content: bytes) -> None:
    """Raise for an HTTP status that is an error, with the server's own words."""
    if status < 400:
        return
    try:
        said = json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = content[:200].decode("utf-8", errors="replace") or f"HTTP status {status}"
    if status in (401, 403):
        raise RequestError(
            "The server refused the key", seen=said, remedy="Give --api-key or TRUEDRAFT_API_KEY"
        )
    if status < 500:
        raise RequestError(f"The server refused the request. It says: {said}")
    raise BackendError("The server failed", seen=said)
