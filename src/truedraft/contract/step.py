"""What the scheduler hands to the step and gets back: integers only, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from truedraft.contract.request import PositionLogprobs, SamplingParams


class RowConstraint(Protocol):
    """A grammar's state for one sequence; the step asks it for one token mask a verified row."""

    def masks(self, draft_ids: Sequence[int]) -> Any:
        """int32 bit masks [1 + len(draft_ids), ceil(vocab/32)] (numpy): row i allows what may
        follow the committed text and the first i drafts. Leaves the state where it was."""
        ...


@dataclass(frozen=True, slots=True)
class Extend:
    """One sequence's share of a step: run `token_ids` at `start`, then up to `num_drafted` drafts.

    In prefill `token_ids` is a chunk of the prompt and `num_drafted` is 0; in decoding it is the
    anchor alone. `samples`: the last of `token_ids`, and every draft, yields a row of logits.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    start: int
    num_drafted: int
    samples: bool
    pages: tuple[int, ...]
    captures: bool  # whether the drafter's context K/V is kept up
    sampling: SamplingParams
    seed: int
    num_prompt_tokens: int
    history: Sequence[int]  # prompt and answer so far, anchor included; read, never kept
    constraint: RowConstraint | None = None

    @property
    def num_rows(self) -> int:
        return len(self.token_ids) + self.num_drafted


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of the engine: decoding sequences first, then prefill chunks."""

    step_id: int
    extends: tuple[Extend, ...]

    @property
    def num_rows(self) -> int:
        return sum(extend.num_rows for extend in self.extends)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one Extend gave. `token_ids` (num_accepted + 1 of them) is empty where it did not sample.

    `error`: the sequence cannot go on (no token to choose); the others of the step can.
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    draft_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    logprobs: tuple[PositionLogprobs, ...] | None = None
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcomes in the order of the plan's extends, and the time that each part took."""

    step_id: int
    outcomes: tuple[Outcome, ...]
    draft_s: float = 0.0
    verify_s: float = 0.0
