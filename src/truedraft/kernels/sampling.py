"""Greedy choice, and log-probabilities of what was chosen.

Axes: R rows, V vocabulary, N most likely tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_TOKEN = -1


def greedy(logits_RV: Tensor) -> Tensor:
    """→ ids_R, int64: the lowest id of each row's highest logit.

    `NO_TOKEN` where there is none to choose: the row holds a NaN or +inf, or only −inf.
    """
    top_R, ids_R = logits_RV.max(dim=-1)
    return torch.where(top_R.isfinite(), ids_R, NO_TOKEN)


def logprobs(logits_RV: Tensor, ids_R: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Natural log-probabilities of raw logits, in float32.

    → (chosen_R float32, rank_R int64, top_logprobs_RN float32, top_ids_RN int64), N = num_top.
    The rank is 1 + the number of strictly more likely tokens. The N most likely tokens come in
    falling order; equal ones in an unspecified order.
    """
    logprobs_RV = torch.log_softmax(logits_RV.float(), dim=-1)
    chosen_R1 = logprobs_RV.gather(1, ids_R.unsqueeze(1))
    # Compared as logits: log_softmax may round two different logits to one value.
    rank_R = (logits_RV > logits_RV.gather(1, ids_R.unsqueeze(1))).sum(dim=1) + 1
    top = logprobs_RV.topk(min(num_top, logprobs_RV.shape[1]), dim=-1)
    return chosen_R1.squeeze(1), rank_R, top.values, top.indices
