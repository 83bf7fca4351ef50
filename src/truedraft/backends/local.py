"""Our own engine behind the Backend protocol."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from truedraft.backends.grammars import LazyGrammars
from truedraft.backends.local_load import LoadedPair, load_pair
from truedraft.backends.local_stream import LocalStream
from truedraft.backends.self_check import not_checked, run_self_check
from truedraft.config.schema import EngineConfig
from truedraft.contract.backend import BackendStats, ModelInfo, ReadyReport
from truedraft.contract.limits import check_request
from truedraft.contract.request import GenerateRequest, TokenDelta
from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.loop import EngineLoop
from truedraft.engine.sequence import SeqEvent
from truedraft.engine.sequence import Sequence as EngineSequence
from truedraft.errors import BackendError, RequestError

STUCK_AFTER_S = 120.0  # an engine thread that has not turned for this long is not alive


class LocalBackend:
    """Serves one pair from this process. Make it with `load`; `close` stops the engine's thread."""

    def __init__(self, pair: LoadedPair, name: str) -> None:
        self._pair = pair
        self._info = pair.info(name)
        self._streams: dict[int, LocalStream] = {}
        self._seq_ids = itertools.count(1)
        self._acceptance = AcceptanceEstimate(pair.num_drafted)
        self._num_requests = 0
        self._num_finished = 0
        self._num_prompt_tokens = 0
        self._num_tokens = 0
        self._closed = False
        self._report = not_checked()
        self._grammars = LazyGrammars(pair.tokenizer, pair.target_spec)
        self._loop = EngineLoop(pair.scheduler, pair.runner, self._take_events)
        self._loop.start()

    @classmethod
    def load(
        cls,
        target_spec: TargetSpec,
        drafter_spec: DrafterSpec | None,
        config: EngineConfig,
        *,
        name: str,
        on_progress: Callable[[str], None] | None = None,
    ) -> LocalBackend:
        """Load weights, measure costs, start the engine. Heavy and blocking.

        `on_progress` gets one readable line a step. Raises CheckpointError, ConfigError and
        CapacityError.
        """
        return cls(load_pair(target_spec, drafter_spec, config, on_progress or (lambda line: None)), name)

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        """See contract.backend.Backend."""
        stream = await self._open(request)
        try:
            while not stream.ended:
                delta = await stream.next()
                self._num_tokens += len(delta.token_ids)
                yield delta
        finally:
            self._streams.pop(stream.seq.seq_id, None)
            self._loop.abort(stream.seq.seq_id)  # ignored where it has ended

    async def _open(self, request: GenerateRequest) -> LocalStream:
        seq = await self._sequence(request)
        if self._closed:
            raise BackendError("the engine is shutting down", remedy="Send the request elsewhere")
        if not self._loop.is_alive:
            raise BackendError("the engine has stopped", remedy="See its log, and start it again")
        tokenizer = self._pair.tokenizer
        skip = request.sampling.skip_special_tokens
        stream = LocalStream(
            seq,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=skip),
            asyncio.get_running_loop(),
        )
        self._streams[seq.seq_id] = stream
        self._num_requests += 1
        self._num_prompt_tokens += seq.num_prompt_tokens
        self._loop.submit(seq)
        return stream

    async def _sequence(self, request: GenerateRequest) -> EngineSequence:
        if request.speculation is None:
            request = replace(request, speculation=self._pair.speculation)
        check_request(request, self._info)
        sampling, limit = request.sampling, self._info.max_model_len
        max_tokens = sampling.max_tokens if sampling.max_tokens is not None else limit
        constraint = None
        if sampling.grammar is not None:
            if sampling.ignore_eos:
                raise RequestError("a grammar decides where the answer ends", param="ignore_eos", seen=True)
            # Compiling takes up to seconds; the loop serves others meanwhile.
            constraint = await asyncio.to_thread(self._grammars.compile, sampling.grammar)
        return EngineSequence(
            seq_id=next(self._seq_ids),
            request=request,
            seed=sampling.seed if sampling.seed is not None else self._pair.next_seed(),
            max_len=min(limit, len(request.prompt_token_ids) + max_tokens),
            eos_ids=self._pair.eos_ids,
            constraint=constraint,
            acceptance=AcceptanceEstimate(self._pair.num_drafted, self._acceptance),
            submitted_s=time.monotonic(),
        )

    def _take_events(self, events: Sequence[SeqEvent]) -> None:
        """Called on the engine's thread."""
        for event in events:
            if event.finish_reason is not None:
                self._num_finished += 1
            stream = self._streams.get(event.seq.seq_id)
            if stream is not None:
                stream.push(event)

    def stats(self) -> BackendStats:
        scheduler = self._pair.scheduler
        return BackendStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_requests=self._num_requests,
            num_finished=self._num_finished,
            num_preempted=scheduler.num_preempted,
            num_prompt_tokens=self._num_prompt_tokens,
            num_tokens=self._num_tokens,
            num_steps=self._loop.num_steps,
            kv_used_frac=self._pair.allocator.used_frac,
            mean_verify_len=scheduler.mean_verify_len,
            speculation=scheduler.totals.snapshot(),
        )

    def ready(self) -> ReadyReport:
        return self._report

    async def self_check(self) -> ReadyReport:
        """Run the start-up proof: alive, sane, lossless, effective, faster. Kept for `ready`."""
        self._report = await run_self_check(self, self._pair.dtype_name, self._pair.ops.row_invariant)
        return self._report

    def cost_curve(self) -> dict[int, float]:
        """Measured milliseconds of a verify pass by its rows."""
        if self._pair.costs is None:
            return {}
        return {rows: seconds * 1e3 for rows, seconds in self._pair.costs.verify.points}

    async def alive(self) -> bool:
        return self._loop.is_alive and time.monotonic() - self._loop.last_turn_s < STUCK_AFTER_S

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return self._pair.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._pair.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        return self._pair.tokenizer.encode_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    async def close(self, *, drain_s: float = 0.0) -> None:
        self._closed = True
        deadline = time.monotonic() + drain_s
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self._loop.close)
