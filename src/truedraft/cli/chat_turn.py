"""One turn of a chat: where its text comes from, and what each piece of it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from truedraft.contract.request import SamplingParams, Speculation


class Origin(StrEnum):
    """Who wrote a piece of text."""

    DRAFTED = "drafted"  # guessed by the drafter, confirmed by the target
    OWN = "own"  # the target's own token at the end of a speculative round
    PLAIN = "plain"  # a step without drafts
    UNKNOWN = "unknown"  # the server does not say


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an answer, all of one origin."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Figures of one answer; `num_drafted_kept` counts tokens that came out of drafts."""

    num_tokens: int
    num_drafted_kept: int
    num_rounds: int
    num_committed: int
    total_s: float
    finish_reason: str

    @property
    def tau(self) -> float | None:
        return self.num_committed / self.num_rounds if self.num_rounds else None

    @property
    def tok_per_s(self) -> float:
        return self.num_tokens / self.total_s if self.total_s > 0 else 0.0

    @property
    def drafted_frac(self) -> float:
        return self.num_drafted_kept / self.num_tokens if self.num_tokens else 0.0


Message = Mapping[str, str]


class ChatSource(Protocol):
    """Answers conversations: in this process or over HTTP."""

    name: str

    def stream(
        self, messages: Sequence[Message], sampling: SamplingParams, speculation: Speculation
    ) -> AsyncGenerator[Piece | TurnStats, None]:
        """Pieces as they come, then exactly one TurnStats. Closing the iterator ends the answer."""
        ...

    async def close(self) -> None: ...
