"""A Backend without a model: scripted answers at byte level, for tests of servers and for examples.

It keeps every promise of the protocol (one terminal delta, stop strings, limits, abort on close,
statistics that add up) and can be told to be slow, to fail, to hang or to refuse. Log-probabilities
are made up, but consistent. It follows no grammar except choices and the empty JSON object.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from truedraft.backends.byte_tokenizer import EOS_ID, VOCAB_SIZE, ByteTokenizer
from truedraft.backends.scripted_rounds import RoundMaker
from truedraft.contract.acceptance import merge_speculation
from truedraft.contract.backend import BackendStats, ModelInfo, ReadyReport
from truedraft.contract.limits import check_request
from truedraft.contract.request import FinishReason, GenerateRequest, SpeculationStats, TokenDelta, Usage
from truedraft.errors import BackendError, RequestError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Answer:
    """What to say and how to misbehave. `fail_after` and `hang_after` count rounds."""

    text: str
    delay_s: float = 0.0  # before every round
    fail_after: int | None = None
    hang_after: int | None = None
    refuse: Exception | None = None  # raised before the first delta


Script = Callable[[str, GenerateRequest], Answer | str]
"""(prompt as text, request) → the answer."""


class ScriptedBackend:
    """Answers by script. `max_running` sequences run at once; the others wait in order."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        name: str = "scripted",
        max_model_len: int = 4096,
        num_drafted: int = 7,
        max_running: int = 64,
        delay_s: float = 0.0,
        ready: bool = True,
    ) -> None:
        self._info = ModelInfo(
            name=name,
            engine="scripted",
            created_s=int(time.time()),
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            target="scripted",
            drafter="scripted" if num_drafted else None,
            num_drafted=num_drafted,
            device="cpu",
            dtype="none",
        )
        self._script = script or default_script
        self._delay_s = delay_s
        self._max_running = max_running
        self._ready = ready
        self._tokenizer = ByteTokenizer()
        self._slots = asyncio.Semaphore(max_running)
        self._stopping = asyncio.Event()
        self._draws = itertools.count()
        self._stats = BackendStats()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def stats(self) -> BackendStats:
        used_frac = min(1.0, self._stats.num_running / self._max_running)
        return replace(self._stats, kv_used_frac=used_frac)

    def ready(self) -> ReadyReport:
        verdict = "proven" if self._ready else "broken"
        return ReadyReport(ready=self._ready, verdict=verdict, checks={"scripted": {"ok": self._ready}})

    async def alive(self) -> bool:
        return not self._stopping.is_set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        text = self._tokenizer.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self.encode(text)

    async def close(self, *, drain_s: float = 0.0) -> None:
        deadline = time.monotonic() + drain_s
        while self._stats.num_running + self._stats.num_waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self._stopping.set()
        while self._stats.num_running + self._stats.num_waiting and time.monotonic() < deadline + 1.0:
            await asyncio.sleep(0.005)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        answer = self._accept(request)
        submitted_s = time.monotonic()
        self._count(num_requests=1, num_waiting=1)
        place = "num_waiting"
        try:
            async with self._slots:
                self._count(num_waiting=-1, num_running=1)
                place = "num_running"
                rounds = self._rounds(request, answer, submitted_s)
                try:
                    async for delta in rounds:
                        if delta.finish_reason is not None:
                            self._finish(request, delta)
                            self._count(num_running=-1)
                            place = ""
                        yield delta
                finally:
                    await rounds.aclose()
        finally:
            if place:
                self._count(**{place: -1}, num_finished=1)

    def _accept(self, request: GenerateRequest) -> Answer:
        """→ the answer to give. Raises what the protocol lets a bad request raise."""
        if self._stopping.is_set():
            raise BackendError("The backend has stopped")
        check_request(request, self._info)
        prompt = self.decode(request.prompt_token_ids, skip_special_tokens=False)
        said = self._script(prompt, request)
        answer = Answer(said) if isinstance(said, str) else said
        if answer.refuse is not None:
            raise answer.refuse
        return answer if answer.delay_s else replace(answer, delay_s=self._delay_s)

    async def _rounds(
        self, request: GenerateRequest, answer: Answer, submitted_s: float
    ) -> AsyncGenerator[TokenDelta, None]:
        started_s = time.monotonic()
        seed = request.sampling.seed
        maker = RoundMaker(
            request,
            answer_ids=(*self.encode(answer.text, add_special_tokens=False), EOS_ID),
            num_drafted=self._info.num_drafted,
            max_tokens=self._info.max_model_len - len(request.prompt_token_ids),
            salt=seed if seed is not None else next(self._draws),
        )
        num_tokens, ttft_s = 0, None
        for index in itertools.count():
            stopped = await self._pause(answer.delay_s, hang=index == answer.hang_after)
            if stopped:
                delta = TokenDelta(request.request_id, finish_reason=FinishReason.ABORT)
            elif index == answer.fail_after:
                text = "The scripted backend was told to fail"
                delta = TokenDelta(request.request_id, finish_reason=FinishReason.ERROR, error=text)
            else:
                delta = maker.next_delta(first=index == 0)
                ttft_s = time.monotonic() - submitted_s if ttft_s is None else ttft_s
            num_tokens += len(delta.token_ids)
            if delta.finish_reason is None:
                yield delta
                continue
            usage = Usage(
                num_prompt_tokens=len(request.prompt_token_ids),
                num_tokens=num_tokens,
                speculation=maker.stats,
                queue_s=started_s - submitted_s,
                ttft_s=ttft_s,
                total_s=time.monotonic() - submitted_s,
            )
            yield replace(delta, usage=usage)
            return

    async def _pause(self, delay_s: float, *, hang: bool) -> bool:
        """Wait out the delay, or for ever → whether the backend is stopping."""
        if not hang and delay_s <= 0:
            await asyncio.sleep(0)
            return self._stopping.is_set()
        try:
            await asyncio.wait_for(self._stopping.wait(), timeout=None if hang else delay_s)
        except TimeoutError:
            return False
        return True

    def _finish(self, request: GenerateRequest, delta: TokenDelta) -> None:
        usage = delta.usage
        assert usage is not None
        self._count(
            num_finished=1,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_tokens=usage.num_tokens,
            num_steps=usage.speculation.num_rounds + usage.speculation.num_plain_steps,
        )
        total = merge_speculation((self._stats.speculation, usage.speculation))
        self._stats = replace(self._stats, speculation=total, mean_verify_len=_verify_len(total))

    def _count(self, **changes: int) -> None:
        values = {name: getattr(self._stats, name) + change for name, change in changes.items()}
        self._stats = replace(self._stats, **values)


def default_script(prompt: str, request: GenerateRequest) -> str:
    """A sentence that depends on the prompt, and on the seed where the temperature is not 0."""
    grammar = request.sampling.grammar
    if grammar is not None:
        if grammar.kind == "choice":
            return str(json.loads(grammar.source)[0])
        if grammar.kind == "json_object":
            return "{}"
        raise UnsupportedError(
            f"The scripted backend cannot follow a grammar of kind {grammar.kind}", param="response_format"
        )
    seed = request.sampling.seed if request.sampling.temperature > 0 else None
    digest = hashlib.sha256(f"{seed}:{prompt}".encode(errors="surrogatepass")).digest()
    words = [_WORDS[byte % len(_WORDS)] for byte in digest[:12]]
    return f"{' '.join(words).capitalize()}."


def raise_request_error(message: str) -> Answer:
    """An answer that refuses the request."""
    return Answer("", refuse=RequestError(message))


def _verify_len(stats: SpeculationStats) -> float:
    return 1.0 + stats.num_drafted / stats.num_rounds if stats.num_rounds else 0.0


_WORDS = (
    "the",
    "drafter",
    "guesses",
    "a",
    "block",
    "target",
    "checks",
    "and",
    "keeps",
    "what",
    "agrees",
    "ü",
)
