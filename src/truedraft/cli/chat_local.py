"""Chat against a pair in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from truedraft.cli.chat_origins import OriginMarks
from truedraft.cli.chat_turn import Message, Origin, Piece, TurnStats
from truedraft.cli.requests import new_request_id
from truedraft.contract.backend import Backend
from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Speculation,
    TokenDelta,
)
from truedraft.errors import BackendError

_CONTEXT_TOKENS = 8  # enough before a token for the tokenizer to space it right


class OriginSplitter:
    """Cuts each delta's text where drafted tokens end and the target's own token begins."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ids: list[int] = []
        self._marks = OriginMarks()

    def push(self, delta: TokenDelta) -> list[Piece]:
        """→ the delta's text in pieces of one origin each."""
        trace = delta.trace
        num_kept = min(trace.num_accepted, len(delta.token_ids)) if trace else 0
        own = Origin.OWN if trace and trace.draft_ids else Origin.PLAIN
        runs = [
            (self._num_chars(token_ids), origin)
            for token_ids, origin in (
                (delta.token_ids[:num_kept], Origin.DRAFTED),
                (delta.token_ids[num_kept:], own),
            )
            if token_ids
        ]
        return self._marks.push(runs, delta.text)

    def _num_chars(self, token_ids: Sequence[int]) -> int:
        """Characters that these tokens add to the answer; halves of one do not count yet."""
        context = self._ids[-_CONTEXT_TOKENS:]
        num_chars = self._visible_len([*context, *token_ids]) - self._visible_len(context)
        self._ids.extend(token_ids)
        return num_chars

    def _visible_len(self, token_ids: Sequence[int]) -> int:
        return len(self._backend.decode(token_ids).rstrip("\ufffd")) if token_ids else 0


class LocalSource:
    """A ChatSource on a Backend of this process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.info.name

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams, speculation: Speculation
    ) -> AsyncGenerator[Piece | TurnStats, None]:
        """See ChatSource. Raises RequestError and BackendError."""
        request = GenerateRequest(
            new_request_id(), self._backend.encode_chat(messages), sampling, speculation
        )
        splitter = OriginSplitter(self._backend)
        num_drafted_kept = 0
        started_s = time.perf_counter()
        async for delta in self._backend.generate(request):
            if delta.trace is not None:
                num_drafted_kept += min(delta.trace.num_accepted, len(delta.token_ids))
            for piece in splitter.push(delta):
                yield piece
            if delta.finish_reason is FinishReason.ERROR:
                raise BackendError("The engine failed during the answer", seen=delta.error)
            if delta.finish_reason is not None and delta.usage is not None:
                speculation_stats = delta.usage.speculation
                yield TurnStats(
                    num_tokens=delta.usage.num_tokens,
                    num_drafted_kept=num_drafted_kept,
                    num_rounds=speculation_stats.num_rounds,
                    num_committed=speculation_stats.num_committed,
                    total_s=time.perf_counter() - started_s,
                    finish_reason=delta.finish_reason.value,
                )

    async def close(self) -> None:
        await self._backend.close()
