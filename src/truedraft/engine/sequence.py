"""One running sequence: few primitive lengths, the rest derived.

    token_ids:  [ prompt ............... | answer ............ anchor ]
    cached:     [ 0 ........................................ cached_len )
    reserved:   [ 0 ............................................... reserved by the page allocator )

`cached_len` positions have been through the target (and, where captured, have drafter context).
A sequence that waits for its next round has exactly one token that was not: the anchor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    RoundTrace,
    SpeculationStats,
)
from truedraft.contract.step import RowConstraint
from truedraft.engine.acceptance import AcceptanceEstimate


class Constraint(RowConstraint, Protocol):
    """A grammar's state that the scheduler moves on as tokens are committed."""

    def commit(self, token_ids: list[int]) -> None: ...


@dataclass(slots=True)
class Counters:
    """Acceptance of one sequence so far, mutable; `snapshot` gives the contract's record."""

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_committed: int = 0
    num_plain_steps: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)

    def count_round(self, num_drafted: int, num_accepted: int, num_committed: int) -> None:
        self.num_rounds += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.num_committed += num_committed
        missing = num_drafted - len(self.drafted_by_position)
        if missing > 0:
            self.drafted_by_position.extend([0] * missing)
            self.accepted_by_position.extend([0] * missing)
        for position in range(num_drafted):
            self.drafted_by_position[position] += 1
        for position in range(num_accepted):
            self.accepted_by_position[position] += 1

    def snapshot(self) -> SpeculationStats:
        return SpeculationStats(
            num_rounds=self.num_rounds,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            num_committed=self.num_committed,
            num_plain_steps=self.num_plain_steps,
            accepted_by_position=tuple(self.accepted_by_position),
            drafted_by_position=tuple(self.drafted_by_position),
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request in the engine. Only the scheduler changes it."""

    seq_id: int
    request: GenerateRequest
    seed: int
    max_len: int  # prompt and answer together; generation ends there
    eos_ids: frozenset[int]
    constraint: Constraint | None
    acceptance: AcceptanceEstimate
    token_ids: list[int] = field(default_factory=list)
    cached_len: int = 0
    counters: Counters = field(default_factory=Counters)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    submitted_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncached(self) -> int:
        return len(self.token_ids) - self.cached_len

    @property
    def is_decoding(self) -> bool:
        """Whether only the anchor is left to run: ready for a round."""
        return self.num_tokens > 0 and self.num_uncached == 1

    @property
    def room_len(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_len - len(self.token_ids)

    def stop_at(self, token_id: int) -> tuple[FinishReason, str | int | None] | None:
        """Whether the token just appended ends the answer, and why."""
        sampling = self.request.sampling
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
        if token_id in self.eos_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if self.room_len <= 0:
            return FinishReason.LENGTH, None
        return None


@dataclass(frozen=True, slots=True)
class SeqEvent:
    """News of one sequence for its caller: new tokens, or its end."""

    seq: Sequence
    token_ids: tuple[int, ...] = ()
    trace: RoundTrace | None = None
    logprobs: tuple[PositionLogprobs, ...] | None = None
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = None  # with the first tokens, where asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    stats: SpeculationStats | None = None  # as of this event; where it may be the caller's last
