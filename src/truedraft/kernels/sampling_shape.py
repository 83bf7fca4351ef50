"""Edits of logits before a token is chosen: bias, penalties, bans, grammar masks.

All edits are sparse lists of (row, token) pairs, and change `logits_RV` in place. No pair may occur
twice in one call. Order of application: logit bias, penalties, then bans and masks (as in
vLLM, which masks first: −inf stays −inf under the others).

Axes: R rows, V vocabulary, E edits, M masked rows, W words of 32 vocabulary bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def add_bias_(logits_RV: Tensor, rows_E: Tensor, tokens_E: Tensor, bias_E: Tensor) -> None:
    """logits[row, token] += bias (OpenAI's `logit_bias`)."""
    logits_RV[rows_E, tokens_E] += bias_E.to(logits_RV.dtype)


def penalise_(
    logits_RV: Tensor,
    rows_E: Tensor,
    tokens_E: Tensor,
    out_counts_E: Tensor,
    repetition_E: Tensor,
    presence_E: Tensor,
    frequency_E: Tensor,
) -> None:
    """Repetition, frequency and presence penalties of the tokens that stand before each row.

    The pairs are all tokens seen in prompt or answer; `out_counts_E` counts those of the answer
    alone. In this order: a seen token's logit is divided by `repetition` where positive and
    multiplied where not; then frequency · count and presence · (count > 0) are subtracted. These
    are vLLM's definitions: the last two look at the answer only, the first at the prompt too.
    """
    x_E = logits_RV[rows_E, tokens_E]
    rep_E = repetition_E.to(x_E.dtype)
    x_E = torch.where(x_E > 0, x_E / rep_E, x_E * rep_E)
    x_E = x_E - frequency_E.to(x_E.dtype) * out_counts_E.to(x_E.dtype)
    x_E = x_E - presence_E.to(x_E.dtype) * (out_counts_E > 0).to(x_E.dtype)
    logits_RV[rows_E, tokens_E] = x_E


def ban_(logits_RV: Tensor, rows_E: Tensor, tokens_E: Tensor) -> None:
    """Sets the pairs to −inf: the token cannot be chosen."""
    logits_RV[rows_E, tokens_E] = NEG_INF


def mask_(logits_RV: Tensor, rows_M: Tensor, masks_MW: Tensor) -> None:
    """Sets to −inf what the bit masks forbid.

    `masks_MW`: int32; bit v % 32 of word v // 32 set: token v is allowed. Tokens past the mask's
    last word are forbidden.
    """
    vocab_size = logits_RV.shape[1]
    # Little-endian words: byte v // 8 of the row holds token v at bit v % 8.
    bytes_MX = masks_MW.contiguous().view(torch.uint8)
    bits_8 = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=masks_MW.device)
    allowed_MV = (bytes_MX.unsqueeze(-1) & bits_8).ne(0).flatten(1)
    num_known = min(vocab_size, allowed_MV.shape[1])
    rows_MV = logits_RV[rows_M]
    rows_MV[:, :num_known].masked_fill_(~allowed_MV[:, :num_known], NEG_INF)
    rows_MV[:, num_known:] = NEG_INF
    logits_RV[rows_M] = rows_MV
