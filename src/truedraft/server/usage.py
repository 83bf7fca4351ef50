"""What a request used, and how much of it was drafted, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from truedraft.contract.acceptance import merge_speculation
from truedraft.contract.request import SpeculationStats, TokenDelta, Usage
from truedraft.server.logprobs import TokenText


def usage_body(usages: Sequence[Usage], *, num_prompt_tokens: int) -> dict[str, Any]:
    """OpenAI's usage of all choices together, with `speculation`. A prompt counts once for all its
    choices, so its length comes apart."""
    body = running_usage(num_prompt_tokens, sum(usage.num_tokens for usage in usages))
    return body | {"speculation": speculation_body(merge_speculation(usage.speculation for usage in usages))}


def running_usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, Any]:
    """OpenAI's usage so far."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }


def speculation_body(stats: SpeculationStats) -> dict[str, Any]:
    """Counts of rounds and drafts; `tau` is null where there was no round."""
    return {
        "rounds": stats.num_rounds,
        "drafted": stats.num_drafted,
        "accepted": stats.num_accepted,
        "committed": stats.num_committed,
        "tau": stats.tau,
        "accepted_by_position": list(stats.accepted_by_position),
        "drafted_by_position": list(stats.drafted_by_position),
        "plain_steps": stats.num_plain_steps,
    }


def trace_body(delta: TokenDelta, token_text: TokenText) -> dict[str, Any] | None:
    """One round for `speculation_trace`: `origins[i]` is the drafted position (from 1) that token i
    of the round came from, 0 where it is the target's own."""
    if not delta.token_ids:
        return None
    num_accepted = delta.trace.num_accepted if delta.trace else 0
    return {
        "tokens": [token_text(token_id) for token_id in delta.token_ids],
        "origins": [i + 1 if i < num_accepted else 0 for i in range(len(delta.token_ids))],
        "draft_ids": list(delta.trace.draft_ids) if delta.trace else [],
        "num_accepted": num_accepted,
    }
