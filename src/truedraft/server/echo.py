"""`echo` with `max_tokens` 0: the prompt back, scored, and no answer. Evaluation harnesses ask so."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from truedraft.contract.request import FinishReason, SpeculationStats, TokenDelta
from truedraft.server.generation import Deltas


async def without_answer(deltas: Deltas) -> Deltas:
    """Yields `deltas` without the one token that had to be generated to have the prompt read."""
    async with aclosing(deltas):
        async for index, delta in deltas:
            yield index, _stripped(delta)


def _stripped(delta: TokenDelta) -> TokenDelta:
    usage = delta.usage
    return replace(
        delta,
        token_ids=(),
        text="",
        logprobs=None,
        trace=None,
        finish_reason=FinishReason.LENGTH if delta.finish_reason is not None else None,
        stop_reason=None,
        usage=replace(usage, num_tokens=0, speculation=SpeculationStats()) if usage is not None else None,
    )
