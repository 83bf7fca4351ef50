"""The seam between the server (or bench, or proof) and whatever makes tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from truedraft.contract.request import GenerateRequest, SpeculationStats, TokenDelta


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a backend serves. `engine` is `local`, `vllm`, `sglang`, `openai` or `scripted`."""

    name: str
    engine: str
    created_s: int  # Unix time
    max_model_len: int  # prompt and answer together, in tokens
    vocab_size: int
    target: str
    drafter: str | None = None
    num_drafted: int = 0  # most drafted tokens a round; 0 without a drafter
    device: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class BackendStats:
    """Counters since start, and gauges of now, of one backend."""

    num_running: int = 0
    num_waiting: int = 0
    num_requests: int = 0  # accepted
    num_finished: int = 0  # any terminal delta
    num_preempted: int = 0
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    kv_used_frac: float = 0.0
    mean_verify_len: float = 0.0  # rows verified a sequence and round, lately
    speculation: SpeculationStats = field(default_factory=SpeculationStats)


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What the self-check found. `checks` maps a check's name to its figures and outcome."""

    ready: bool
    verdict: str
    checks: Mapping[str, Any]


class Backend(Protocol):
    """A source of tokens. All methods may be called from one asyncio loop, concurrently.

    `generate` yields deltas until exactly one with a `finish_reason`, whatever happens: bad
    requests raise RequestError before the first delta, engine failures end in `ERROR`. Closing the
    iterator (client gone) aborts the sequence at once and releases all it held.
    """

    @property
    def info(self) -> ModelInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]: ...

    def stats(self) -> BackendStats: ...

    def ready(self) -> ReadyReport: ...

    async def alive(self) -> bool:
        """Whether the engine's loop still turns (not: whether it is right)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of `text`. Special-token text is parsed only where the tokenizer does."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a conversation after the target's chat template.

        Raises RequestError where there is no template, or it refuses the messages or the tools.
        """
        ...

    async def close(self, *, drain_s: float = 0.0) -> None:
        """Stop: let running sequences finish for `drain_s` seconds, then abort the rest."""
        ...
