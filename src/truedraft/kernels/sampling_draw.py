"""Draws one token a row: temperature, then min-p, top-k and top-p, then the inverse CDF of a uniform.

What is kept (vLLM's order and definitions; ties made exact here):
- min-p keeps tokens whose probability is at least `min_p` times the most likely one's;
- top-k keeps tokens whose logit is at least the k-th highest, so ties with the k-th are all kept;
- top-p keeps, of what is left and in falling order (equal ones by rising id), the shortest prefix
  whose share is at least `top_p`.
The kept tokens, in order of id, share [0, 1) by probability; the token over the row's uniform is
drawn. Probabilities are right to about 1e-7. A token of probability zero is never drawn, and a row's
token does not depend on the rows beside it: every choice of path below is made a row at a time.

Axes: R rows, V vocabulary, K candidates, C chunks of the vocabulary, Z tokens a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truedraft.kernels.sampling import NO_TOKEN

_CHUNK_LEN = 256
# Sorting a whole vocabulary costs milliseconds a row on a CPU; most rows are settled by their
# highest few tokens, and those that are not climb this ladder.
_NUM_CANDIDATES = (256, 4096)
# Below this the reciprocal is no longer a finite float32; any row is greedy long before.
_LEAST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one row draws. `temperature` > 0; `uniform` in [0, 1); top_k 0, top_p 1, min_p 0: off."""

    uniform: float
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def truncates(self, vocab_size: int) -> bool:
        return 0 < self.top_k < vocab_size or self.top_p < 1.0 or self.min_p > 0.0


def draw(logits_RV: Tensor, params: Sequence[DrawParams]) -> Tensor:
    """→ ids_R, int64; `NO_TOKEN` where a row holds a NaN or +inf, or only −inf."""
    vocab_size = logits_RV.shape[1]
    whole = [row for row, row_params in enumerate(params) if not row_params.truncates(vocab_size)]
    if len(whole) == len(params):
        return _draw_whole(logits_RV, _Columns.of(params, logits_RV))
    if not whole:
        return _draw_truncated(logits_RV, _Columns.of(params, logits_RV))
    ids_R = torch.empty(len(params), dtype=torch.int64, device=logits_RV.device)
    is_whole = set(whole)
    cut = [row for row in range(len(params)) if row not in is_whole]
    for rows, draw_rows in ((whole, _draw_whole), (cut, _draw_truncated)):
        rows_R = torch.tensor(rows, device=logits_RV.device)
        columns = _Columns.of([params[row] for row in rows], logits_RV)
        ids_R[rows_R] = draw_rows(logits_RV[rows_R], columns)
    return ids_R


@dataclass(frozen=True, slots=True)
class _Columns:
    """The rows' parameters as float64 columns [R, 1] (top_k int64, V where off)."""

    uniform: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @staticmethod
    def of(params: Sequence[DrawParams], like_RV: Tensor) -> _Columns:
        vocab_size = like_RV.shape[1]
        table = [
            (
                p.uniform,
                max(p.temperature, _LEAST_TEMPERATURE),
                p.top_k if 0 < p.top_k < vocab_size else vocab_size,
                p.top_p,
                p.min_p,
            )
            for p in params
        ]
        columns = torch.tensor(table, dtype=torch.float64).to(like_RV.device).split(1, dim=1)
        return _Columns(columns[0], columns[1], columns[2].to(torch.int64), columns[3], columns[4])

    def at(self, rows_R: Tensor) -> _Columns:
        return _Columns(
            self.uniform[rows_R], self.temperature[rows_R], self.top_k[rows_R], self.top_p[rows_R],
            self.min_p[rows_R],
        )  # fmt: skip


def _draw_whole(logits_RV: Tensor, columns: _Columns) -> Tensor:
    """Draws from the whole vocabulary: find the chunk, then the token in it."""
    weights_RV, alive_R = _weights(logits_RV, columns.temperature)
    num_rows, vocab_size = weights_RV.shape
    padding = -vocab_size % _CHUNK_LEN
    if padding:
        weights_RV = torch.nn.functional.pad(weights_RV, (0, padding))
    weights_RCZ = weights_RV.view(num_rows, -1, _CHUNK_LEN)
    sums_RC = weights_RCZ.sum(dim=-1, dtype=torch.float64)
    cdf_RC = sums_RC.cumsum(-1)
    target_R1 = columns.uniform * cdf_RC[:, -1:]
    chunk_R1 = _pick(sums_RC, cdf_RC, target_R1)
    before_R1 = cdf_RC.gather(1, chunk_R1) - sums_RC.gather(1, chunk_R1)
    chunks_RZ = weights_RCZ[torch.arange(num_rows, device=chunk_R1.device), chunk_R1.squeeze(1)].double()
    offset_R1 = _pick(chunks_RZ, chunks_RZ.cumsum(-1), target_R1 - before_R1)
    return torch.where(alive_R, (chunk_R1 * _CHUNK_LEN + offset_R1).squeeze(1), NO_TOKEN)


def _draw_truncated(logits_RV: Tensor, columns: _Columns) -> Tensor:
    """Draws from the kept tokens, out of as few candidates as settle what is kept."""
    vocab_size = logits_RV.shape[1]
    weights_RV, alive_R = _weights(logits_RV, columns.temperature)
    total_R1 = weights_RV.sum(dim=-1, keepdim=True, dtype=torch.float64)
    ids_R = torch.full_like(alive_R, NO_TOKEN, dtype=torch.int64)
    left_R = alive_R.nonzero().squeeze(1)
    for num_candidates in (*(k for k in _NUM_CANDIDATES if k < vocab_size), vocab_size):
        if left_R.numel() == 0:
            break
        here = columns.at(left_R)
        drawn_R, settled_R = _draw_candidates(logits_RV[left_R], total_R1[left_R], here, num_candidates)
        ids_R[left_R[settled_R]] = drawn_R[settled_R]
        left_R = left_R[~settled_R]
    return ids_R


def _weights(logits_RV: Tensor, temperature_R1: Tensor) -> tuple[Tensor, Tensor]:
    """→ (exp((logit − highest) / temperature) float32, whether the row can be drawn from)."""
    top_R1 = logits_RV.amax(dim=-1, keepdim=True)
    inverse_R1 = temperature_R1.reciprocal().to(torch.float32)
    weights_RV = (logits_RV - top_R1).mul_(inverse_R1).exp_()
    return weights_RV, top_R1.squeeze(1).isfinite()


def _draw_candidates(
    logits_RV: Tensor, total_R1: Tensor, columns: _Columns, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """→ (ids_R, settled_R): a row not settled may keep tokens that are not among its candidates."""
    values_RK, ids_RK = logits_RV.topk(num_candidates, dim=-1)
    scaled_RK = (values_RK.double() - values_RK[:, :1].double()) / columns.temperature
    kth_R1 = values_RK.gather(1, columns.top_k.clamp(max=num_candidates) - 1)
    left_RK = (scaled_RK >= columns.min_p.log()) & (values_RK >= kth_R1) & (values_RK > float("-inf"))

    # What min-p and top-k leave is the whole that top-p takes its share of.
    is_cut_R1 = (columns.top_k < logits_RV.shape[1]) | (columns.min_p > 0)
    weights_RK = scaled_RK.exp() * left_RK
    cdf_RK = weights_RK.cumsum(-1)
    total_R1 = torch.where(is_cut_R1, cdf_RK[:, -1:], total_R1)
    before_RK = torch.nn.functional.pad(cdf_RK[:, :-1], (1, 0))
    kept_RK = left_RK & ((before_RK < columns.top_p * total_R1) | (columns.top_p >= 1))
    num_kept_R1 = kept_RK.sum(-1, keepdim=True).clamp(min=1)

    lowest_R1 = values_RK.gather(1, num_kept_R1 - 1)
    settled_R1 = (lowest_R1 > values_RK[:, -1:]) & ~(is_cut_R1 & left_RK[:, -1:])
    settled_R1 |= num_candidates == logits_RV.shape[1]
    num_ties_R1 = num_kept_R1 - (values_RK > lowest_R1).sum(-1, keepdim=True)
    drawn_R = _draw_kept(values_RK, ids_RK, scaled_RK, lowest_R1, num_ties_R1, columns.uniform)
    return drawn_R, settled_R1.squeeze(1)


def _draw_kept(
    values_RK: Tensor,
    ids_RK: Tensor,
    scaled_RK: Tensor,
    lowest_R1: Tensor,
    num_ties_R1: Tensor,
    uniform_R1: Tensor,
) -> Tensor:
    """Draws, in order of id, from candidates above `lowest` and the first `num_ties` equal to it."""
    ids_RK, order_RK = ids_RK.sort(dim=-1)
    values_RK = values_RK.gather(1, order_RK)
    ties_RK = values_RK == lowest_R1
    kept_RK = (values_RK > lowest_R1) | (ties_RK & (ties_RK.cumsum(-1) <= num_ties_R1))
    weights_RK = scaled_RK.gather(1, order_RK).exp() * kept_RK
    cdf_RK = weights_RK.cumsum(-1)
    return ids_RK.gather(1, _pick(weights_RK, cdf_RK, uniform_R1 * cdf_RK[:, -1:])).squeeze(1)


def _pick(weights_RK: Tensor, cdf_RK: Tensor, target_R1: Tensor) -> Tensor:
    """→ index_R1 of the first positive weight whose cumulative sum passes the target.

    Where rounding lets none pass (a uniform next to 1), the last positive weight.
    """
    positive_RK = weights_RK > 0
    passes_RK = positive_RK & (cdf_RK > target_R1)
    first_R1 = passes_RK.to(torch.uint8).argmax(dim=-1, keepdim=True)
    last_R1 = positive_RK.cumsum(-1).argmax(dim=-1, keepdim=True)
    return torch.where(passes_RK.any(dim=-1, keepdim=True), first_R1, last_R1)
