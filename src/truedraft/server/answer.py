"""One choice's answer, gathered from its deltas."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from truedraft.contract.request import FinishReason, PositionLogprobs, TokenDelta, Usage
from truedraft.server.generation import Deltas


@dataclass
class Answer:
    """What one sequence gave, complete once `usage` is there."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    rounds: list[TokenDelta] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, delta: TokenDelta) -> None:
        """Take one more delta in."""
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs or ())
        self.rounds.append(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            self.usage = delta.usage


async def collect(deltas: Deltas, num_answers: int) -> list[Answer]:
    """→ all answers, complete. Closes `deltas` whatever happens."""
    answers = [Answer() for _ in range(num_answers)]
    async with aclosing(deltas):
        async for index, delta in deltas:
            answers[index].add(delta)
    return answers


def usages_of(answers: Sequence[Answer]) -> list[Usage]:
    """The usages of answers that are complete."""
    return [answer.usage for answer in answers if answer.usage is not None]
