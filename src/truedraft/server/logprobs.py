"""Log-probabilities in the three shapes that clients know: chat, completions, and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from truedraft.contract.request import PositionLogprobs, TokenLogprob

TokenText = Callable[[int], str]
_LOWEST = -9999.0  # JSON has no -Infinity; OpenAI's API writes this


def chat_logprobs(positions: Iterable[PositionLogprobs], token_text: TokenText) -> dict[str, Any]:
    """The chat shape: a list under `content`."""
    content = []
    for position in positions:
        entry = _entry(position.chosen, token_text)
        entry["top_logprobs"] = [_entry(top, token_text) for top in position.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def prompt_logprobs(
    positions: Sequence[PositionLogprobs | None], token_text: TokenText
) -> list[dict[str, Any] | None]:
    """vLLM's shape: a position is a dict of token id (as text) → logprob, rank and decoded token."""
    shaped: list[dict[str, Any] | None] = []
    for position in positions:
        if position is None:
            shaped.append(None)
            continue
        shaped.append(
            {
                str(one.token_id): {
                    "logprob": _finite(one.logprob),
                    "rank": one.rank,
                    "decoded_token": token_text(one.token_id),
                }
                for one in (*position.top, position.chosen)
            }
        )
    return shaped


@dataclass
class CompletionLogprobs:
    """The completions shape: parallel lists. `offset` is where the next token's text begins."""

    token_text: TokenText
    offset: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, token_id: int, position: PositionLogprobs | None) -> None:
        """One more token; None where nothing was scored (the first of a prompt)."""
        text = self.token_text(token_id)
        self.tokens.append(text)
        self.text_offset.append(self.offset)
        self.offset += len(text)
        if position is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        self.token_logprobs.append(_finite(position.chosen.logprob))
        ranked = (*position.top, position.chosen)
        self.top_logprobs.append({self.token_text(one.token_id): _finite(one.logprob) for one in ranked})

    def take(self) -> dict[str, Any] | None:
        """→ what has come since the last call; None where nothing has."""
        if not self.tokens:
            return None
        shaped = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
        self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset = [], [], [], []
        return shaped


def _entry(one: TokenLogprob, token_text: TokenText) -> dict[str, Any]:
    text = token_text(one.token_id)
    # A token that is part of a character has no bytes that we could know from its text.
    data = None if "�" in text else list(text.encode())
    return {"token": text, "logprob": _finite(one.logprob), "bytes": data}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
