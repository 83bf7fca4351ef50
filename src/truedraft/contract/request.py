"""What a caller asks of a Backend, and what comes back, one TokenDelta a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class FinishReason(StrEnum):
    """Why a sequence ended. Exactly one terminal TokenDelta carries one."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the caller left, or asked for it
    ERROR = "error"  # the engine failed; TokenDelta.error says how


Speculation = Literal["auto", "off"] | int
"""`auto` adapts the verify length, `off` is plain decoding, n ≥ 1 drafts n tokens in every round."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the answer. `source` is a JSON schema, a regular expression, a JSON list of
    choices or a Lark grammar; for `json_object` it is empty."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark"]
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's rows become tokens. Ranges are checked by `contract.limits.check_sampling`.

    `temperature` 0 is greedy. `top_k` 0 and `min_p` 0.0 are off. `logprobs` n asks for the chosen
    token's log-probability and the n most likely ones (0: only the chosen one), taken from the raw
    logits, before any shaping. `prompt_logprobs` n scores the prompt the same way, position 0 apart.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None  # None: as far as the context goes
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate. `n` > 1 is several requests. `speculation` None: the backend's default."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability (natural log) and its rank (1 = most likely)."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position: of the token that stands there, and of the top n."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """What one round did: the draft as verified, and how much of it was kept.

    `draft_ids` is empty in plain decoding. The delta's first `num_accepted` tokens are drafted
    ones; the one after them is the target's own.
    """

    draft_ids: tuple[int, ...]
    num_accepted: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Acceptance over some rounds.

    `num_committed` counts tokens of speculative rounds only (accepted and bonus, as far as they
    were emitted). `accepted_by_position[i]` counts the rounds that kept draft i+1, and
    `drafted_by_position[i]` those that verified it.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_committed: int = 0
    num_plain_steps: int = 0
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()

    @property
    def tau(self) -> float | None:
        """Mean tokens committed a round, bonus included; None before the first round."""
        return self.num_committed / self.num_rounds if self.num_rounds else None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a finished request used. Times in seconds from submission; None when not reached."""

    num_prompt_tokens: int
    num_tokens: int
    speculation: SpeculationStats
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of one request. `text` is decoded as far as whole characters go.

    The last delta of a request is the only one with a `finish_reason`, and carries `usage`.
    `stop_reason` is the stop string or token id that ended it, None for the end-of-sequence token.
    `prompt_logprobs` comes with the first delta where asked for (entry 0 is None).
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    trace: RoundTrace | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    usage: Usage | None = None
