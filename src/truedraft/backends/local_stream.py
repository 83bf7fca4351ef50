"""One request's way out of the engine: events of the engine's thread → TokenDeltas of the caller's loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from truedraft.backends.detokenize import Decode, Detokenizer, StopStrings
from truedraft.contract.request import FinishReason, RoundTrace, SpeculationStats, TokenDelta, Usage
from truedraft.engine.sequence import SeqEvent, Sequence


class LocalStream:
    """Decodes events into deltas and finds stop strings. `push` is called from the engine's thread."""

    def __init__(self, seq: Sequence, decode: Decode, loop: asyncio.AbstractEventLoop) -> None:
        self.seq = seq
        self.ended = False
        self._loop = loop
        self._queue: asyncio.Queue[SeqEvent] = asyncio.Queue()
        sampling = seq.request.sampling
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(sampling.stop, keep=sampling.include_stop_str_in_output)
        self._min_tokens = sampling.min_tokens
        self._num_emitted = 0

    def push(self, event: SeqEvent) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            self.ended = True  # the caller's loop is closed: nobody listens any more

    async def next(self) -> TokenDelta:
        """The next delta; the last one has a finish_reason."""
        return self.convert(await self._queue.get())

    def convert(self, event: SeqEvent) -> TokenDelta:
        """One event as a delta. A stop string inside it ends the answer early."""
        pieces: list[str] = []
        taken = 0
        stop: str | None = None
        for token_id in self._spoken(event):
            taken += 1
            text = self._detokenizer.push(token_id)
            if self._num_emitted + taken > self._min_tokens:  # before that, no text ends the answer
                text, stop = self._stops.push(text)
            pieces.append(text)
            if stop is not None:
                break
        finish, stop_reason = event.finish_reason, event.stop_reason
        token_ids = event.token_ids
        if stop is not None:
            token_ids = token_ids[:taken]
            finish, stop_reason = FinishReason.STOP, stop
        elif finish is not None:
            text, stop = self._stops.push(self._detokenizer.flush())
            pieces.append(text if stop is not None else text + self._stops.flush())
            if stop is not None and finish in (FinishReason.STOP, FinishReason.LENGTH):
                finish, stop_reason = FinishReason.STOP, stop
        self._num_emitted += len(token_ids)
        return self._delta(event, token_ids, "".join(pieces), finish, stop_reason)

    def _spoken(self, event: SeqEvent) -> tuple[int, ...]:
        """Tokens that become text: a token that ended the answer is not, unless asked for."""
        ended_by_token = event.finish_reason == FinishReason.STOP
        if ended_by_token and not self.seq.request.sampling.include_stop_str_in_output:
            return event.token_ids[:-1]
        return event.token_ids

    def _delta(
        self,
        event: SeqEvent,
        token_ids: tuple[int, ...],
        text: str,
        finish: FinishReason | None,
        stop_reason: str | int | None,
    ) -> TokenDelta:
        self.ended = finish is not None
        trace = event.trace
        if trace is not None and trace.num_accepted > len(token_ids):
            trace = RoundTrace(trace.draft_ids, len(token_ids))
        return TokenDelta(
            request_id=self.seq.request.request_id,
            token_ids=token_ids,
            text=text,
            logprobs=event.logprobs[: len(token_ids)] if event.logprobs is not None else None,
            prompt_logprobs=(None, *event.prompt_logprobs) if event.prompt_logprobs is not None else None,
            trace=trace,
            finish_reason=finish,
            stop_reason=stop_reason,
            error=event.error,
            usage=self._usage(event, len(token_ids)) if finish is not None else None,
        )

    def _usage(self, event: SeqEvent, num_kept: int) -> Usage:
        """What the request used; `num_kept` tokens of its last round stand before a stop string's end."""
        seq = self.seq
        stats = event.stats or SpeculationStats()
        if event.trace is not None and event.trace.draft_ids:
            stats = _cut_last_round(stats, event.trace, len(event.token_ids), num_kept)
        started, first = seq.started_s, seq.first_token_s
        return Usage(
            num_prompt_tokens=seq.num_prompt_tokens,
            num_tokens=self._num_emitted,
            speculation=stats,
            queue_s=started - seq.submitted_s if started is not None else None,
            ttft_s=first - seq.submitted_s if first is not None else None,
            total_s=time.monotonic() - seq.submitted_s,
        )


def _cut_last_round(
    stats: SpeculationStats, trace: RoundTrace, num_tokens: int, num_kept: int
) -> SpeculationStats:
    """Counts without those tokens of the last round that a stop string cut off."""
    accepted = list(stats.accepted_by_position)
    for position in range(min(num_kept, trace.num_accepted), trace.num_accepted):
        accepted[position] -= 1
    return replace(
        stats,
        num_committed=stats.num_committed - (num_tokens - num_kept),
        num_accepted=sum(accepted),
        accepted_by_position=tuple(accepted),
    )
