"""Scores prompts from the rows that prefill leaves: what `prompt_logprobs` asks for.

Row r of a chunk that starts at position s gives the probabilities of the token at s + r + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from truedraft.contract.request import PositionLogprobs
from truedraft.contract.step import Extend
from truedraft.engine.sampler import score_rows


def wants_scores(extend: Extend) -> bool:
    """Whether this chunk's rows all have logits: it lies in a prompt to be scored."""
    return extend.sampling.prompt_logprobs is not None and extend.start < extend.num_prompt_tokens


def score_prompts(
    logits_RV: Tensor, extends: Sequence[Extend]
) -> tuple[list[tuple[PositionLogprobs, ...] | None], Tensor]:
    """→ (scores of each extend's prompt tokens, the rows that are left for sampling)."""
    if not any(map(wants_scores, extends)):
        return [None] * len(extends), logits_RV
    scores: list[tuple[PositionLogprobs, ...] | None] = []
    kept: list[int] = []
    row = 0
    for extend in extends:
        if not wants_scores(extend):
            scores.append(None)
            count = 1 + extend.num_drafted if extend.samples else 0
            kept.extend(range(row, row + count))
            row += count
            continue
        count = len(extend.token_ids)
        known = extend.history[extend.start + 1 : min(extend.start + count + 1, extend.num_prompt_tokens)]
        num_top = extend.sampling.prompt_logprobs
        assert num_top is not None
        scores.append(score_rows(logits_RV[row : row + len(known)], known, num_top))
        row += count
        if extend.samples:
            kept.append(row - 1)
    return scores, logits_RV.index_select(0, torch.tensor(kept, dtype=torch.int64, device=logits_RV.device))
