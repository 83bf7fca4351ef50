"""Cuts a scripted answer into rounds of draft and verify, with statistics that add up."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from truedraft.backends.byte_tokenizer import EOS_ID, SPECIALS, VOCAB_SIZE, Utf8Stream
from truedraft.contract.acceptance import merge_speculation
from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    RoundTrace,
    SpeculationStats,
    TokenDelta,
    TokenLogprob,
)

_SPECIAL_TEXTS = {token_id: text for text, token_id in SPECIALS.items()}


class RoundMaker:
    """One request's answer, a delta at a time.

    The first token comes alone, as from a prefill. Then every round drafts `speculation` tokens (or
    `num_drafted`), keeps a number of them that depends on the position and on `salt`, and adds one.
    """

    def __init__(
        self,
        request: GenerateRequest,
        *,
        answer_ids: Sequence[int],
        num_drafted: int,
        max_tokens: int,
        salt: int,
    ) -> None:
        self._request = request
        self._sampling = request.sampling
        self._answer_ids = _shaped(answer_ids, request)
        asked = self._sampling.max_tokens
        self._max_tokens = max_tokens if asked is None else min(asked, max_tokens)
        self._draft_len = _draft_len(request, num_drafted)
        self._salt = salt
        self._pos = 0
        self._stream = Utf8Stream()
        self._held = ""  # text that may be the start of a stop string
        self.stats = SpeculationStats()

    def next_delta(self, *, first: bool) -> TokenDelta:
        """The next round's delta. The last has a `finish_reason` (and no usage yet)."""
        draft_len = 0 if first else self._draft_len
        accepted = min(self._num_agreeing(draft_len), draft_len)
        ids: list[int] = []
        text, reason, stop_reason = "", None, None
        while len(ids) <= accepted and reason is None:
            ids.append(self._id_at(self._pos))
            self._pos += 1
            piece, reason, stop_reason = self._consume(ids[-1])
            text += piece
        trace = self._record(ids, draft_len, accepted)
        with_logprobs = self._sampling.logprobs is not None
        return TokenDelta(
            self._request.request_id,
            token_ids=tuple(ids),
            text=text,
            logprobs=tuple(self._logprobs(i, self._sampling.logprobs or 0) for i in ids)
            if with_logprobs
            else None,
            prompt_logprobs=self._prompt_logprobs() if first else None,
            trace=trace,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _id_at(self, pos: int) -> int:
        if self._sampling.ignore_eos or pos < self._sampling.min_tokens:
            # Never ends by itself: says the answer again, without its end.
            body = [i for i in self._answer_ids if i != EOS_ID] or [ord(".")]
            return body[pos % len(body)]
        return self._answer_ids[pos] if pos < len(self._answer_ids) else EOS_ID

    def _consume(self, token_id: int) -> tuple[str, FinishReason | None, str | int | None]:
        """→ text that may be shown, and whether (and why) the answer ends with this token."""
        enough = self._pos >= self._sampling.min_tokens
        is_stop_id = enough and token_id in self._sampling.stop_token_ids
        is_eos = token_id == EOS_ID and not self._sampling.ignore_eos
        if not is_stop_id and not is_eos:
            self._held += self._text_of(token_id)
        found = self._find_stop() if enough else None
        if found is not None:
            stop, at = found
            end = at + (len(stop) if self._sampling.include_stop_str_in_output else 0)
            return self._held[:end], FinishReason.STOP, stop
        if is_eos or is_stop_id:
            self._held += self._stream.feed(b"", final=True)
            return self._held, FinishReason.STOP, token_id if is_stop_id else None
        if self._pos >= self._max_tokens:
            self._held += self._stream.feed(b"", final=True)
            return self._held, FinishReason.LENGTH, None
        return self._release(), None, None

    def _text_of(self, token_id: int) -> str:
        if token_id in _SPECIAL_TEXTS:
            return "" if self._sampling.skip_special_tokens else _SPECIAL_TEXTS[token_id]
        return self._stream.feed(bytes([token_id]))

    def _find_stop(self) -> tuple[str, int] | None:
        found = [(self._held.find(stop), stop) for stop in self._sampling.stop]
        at, stop = min(((at, stop) for at, stop in found if at >= 0), default=(-1, ""))
        return (stop, at) if at >= 0 else None

    def _release(self) -> str:
        """Text that cannot become part of a stop string any more."""
        keep = 0
        for stop in self._sampling.stop:
            for size in range(1, len(stop)):
                if self._held.endswith(stop[:size]):
                    keep = max(keep, size)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _num_agreeing(self, draft_len: int) -> int:
        if not draft_len:
            return 0
        return zlib.crc32(f"{self._salt}:{self._pos}".encode()) % (draft_len + 1)

    def _record(self, ids: Sequence[int], draft_len: int, accepted: int) -> RoundTrace:
        kept = min(accepted, len(ids))
        if not draft_len:
            round_stats = SpeculationStats(num_plain_steps=1)
        else:
            round_stats = SpeculationStats(
                num_rounds=1,
                num_drafted=draft_len,
                num_accepted=kept,
                num_committed=len(ids),
                accepted_by_position=tuple(int(i < kept) for i in range(draft_len)),
                drafted_by_position=(1,) * draft_len,
            )
        self.stats = merge_speculation((self.stats, round_stats))
        wrong = ((ids[kept] if kept < len(ids) else 0) + 1) % VOCAB_SIZE
        draft_ids = (*ids[:kept], *(wrong for _ in range(draft_len - kept)))
        return RoundTrace(draft_ids=draft_ids[:draft_len], num_accepted=kept)

    def _logprobs(self, token_id: int, num_top: int) -> PositionLogprobs:
        """Made-up figures: the chosen token is the likeliest, its neighbours follow."""
        top = tuple(
            TokenLogprob(token_id=(token_id + i) % VOCAB_SIZE, logprob=-0.25 - 1.5 * i, rank=i + 1)
            for i in range(num_top)
        )
        return PositionLogprobs(chosen=TokenLogprob(token_id, -0.25, 1), top=top)

    def _prompt_logprobs(self) -> tuple[PositionLogprobs | None, ...] | None:
        num_top = self._sampling.prompt_logprobs
        if num_top is None:
            return None
        scored = (self._logprobs(token_id, num_top) for token_id in self._request.prompt_token_ids[1:])
        return (None, *scored)


def _draft_len(request: GenerateRequest, num_drafted: int) -> int:
    asked = request.speculation
    if asked == "off":
        return 0
    return num_drafted if asked is None or asked == "auto" else asked


def _shaped(answer_ids: Sequence[int], request: GenerateRequest) -> tuple[int, ...]:
    """The answer without tokens that `logit_bias` forbids (a bias of -100)."""
    banned = {token_id for token_id, bias in request.sampling.logit_bias if bias <= -100}
    return tuple(token_id for token_id in answer_ids if token_id not in banned)
