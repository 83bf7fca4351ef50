"""Greedy choice, and log-probabilities of what was chosen.

Axes: R rows, V vocabulary, C chunks of it, Z tokens a chunk, N most likely tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_TOKEN = -1
_CHUNK_LEN = 128


def greedy(logits_RV: Tensor) -> Tensor:
    """→ ids_R, int64: the lowest id of each row's highest logit.

    `NO_TOKEN` where there is none to choose: the row holds a NaN or +inf, or only −inf.
    """
    # In two levels: torch's maximum with vectors needs no index, its argmax is ten times slower.
    chunks_RCZ = chunked(logits_RV, _CHUNK_LEN, float("-inf"))
    tops_RC = chunks_RCZ.amax(dim=-1)
    chunk_R = tops_RC.argmax(dim=-1)
    rows_R = torch.arange(logits_RV.shape[0], device=logits_RV.device)
    ids_R = chunk_R * _CHUNK_LEN + chunks_RCZ[rows_R, chunk_R].argmax(dim=-1)
    return torch.where(tops_RC[rows_R, chunk_R].isfinite(), ids_R, NO_TOKEN)


def chunked(values_RV: Tensor, chunk_len: int, padding: float) -> Tensor:
    """→ values_RCZ, Z = chunk_len, filled up with `padding`: a view where V is a multiple of it."""
    num_rows, vocab_size = values_RV.shape
    if missing := -vocab_size % chunk_len:
        values_RV = torch.nn.functional.pad(values_RV, (0, missing), value=padding)
    return values_RV.view(num_rows, -1, chunk_len)


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
