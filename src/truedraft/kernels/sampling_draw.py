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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from truedraft.kernels.sampling import NO_TOKEN, chunked

_CHUNK_LEN = 256
# Sorting a whole vocabulary costs milliseconds a row on a CPU. Most rows are settled by their
# highest few tokens; of the rest, most by the values alone of some thousands.
_NUM_CANDIDATES = 64
_NUM_VALUES = 4096
# Below this the reciprocal is no longer a finite float32; any row is greedy long before.
_LEAST_TEMPERATURE = 1e-30
_LOG2_E = 1.4426950408889634


_Path = Callable[[Tensor, "_Columns"], Tensor]


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one row draws. `temperature` > 0; `uniform` in [0, 1); top_k 0, top_p 1, min_p 0: off."""

    uniform: float
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits_RV: Tensor, params: Sequence[DrawParams]) -> Tensor:
    """→ ids_R, int64; `NO_TOKEN` where a row holds a NaN or +inf, or only −inf."""
    vocab_size = logits_RV.shape[1]
    groups: dict[_Path, list[int]] = {}
    for row, row_params in enumerate(params):
        groups.setdefault(_path_of(row_params, vocab_size), []).append(row)
    ids_R = torch.empty(len(params), dtype=torch.int64, device=logits_RV.device)
    for path, rows in groups.items():
        columns = _Columns.of([params[row] for row in rows], logits_RV)
        if len(groups) == 1:
            return path(logits_RV, columns)
        rows_R = torch.tensor(rows, device=logits_RV.device)
        ids_R[rows_R] = path(logits_RV.index_select(0, rows_R), columns)
    return ids_R


def _path_of(params: DrawParams, vocab_size: int) -> _Path:
    if 0 < params.top_k < vocab_size or params.min_p > 0:
        return _draw_truncated
    return _draw_nucleus if params.top_p < 1 else _draw_whole


@dataclass(frozen=True, slots=True)
class _Columns:
    """The rows' parameters as columns [R, 1]: float64; top_k int64, V where off.

    `total`: the row's sum of exp((logit − highest) / temperature), where top-p takes its share of
    the whole vocabulary; else 0.
    """

    uniform: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    total: Tensor

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
                0.0,
            )
            for p in params
        ]
        columns = torch.tensor(table, dtype=torch.float64).to(like_RV.device).split(1, dim=1)
        return _Columns(columns[0], columns[1], columns[2].to(torch.int64), *columns[3:])

    def at(self, rows_R: Tensor) -> _Columns:
        return _Columns(*(getattr(self, column.name)[rows_R] for column in fields(self)))


def _draw_whole(logits_RV: Tensor, columns: _Columns) -> Tensor:
    """Draws from the whole vocabulary: find the chunk, then the token in it."""
    weights_RV, alive_R = _weights(logits_RV, columns.temperature)
    weights_RCZ = chunked(weights_RV, _CHUNK_LEN, 0.0)
    sums_RC = weights_RCZ.sum(dim=-1).double()
    cdf_RC = sums_RC.cumsum(-1)
    target_R1 = columns.uniform * cdf_RC[:, -1:]
    chunk_R1 = _pick(sums_RC, cdf_RC, target_R1)
    before_R1 = cdf_RC.gather(1, chunk_R1) - sums_RC.gather(1, chunk_R1)
    rows_R = torch.arange(logits_RV.shape[0], device=logits_RV.device)
    weights_RZ = weights_RCZ[rows_R, chunk_R1.squeeze(1)].double()
    offset_R1 = _pick(weights_RZ, weights_RZ.cumsum(-1), target_R1 - before_R1)
    return torch.where(alive_R, (chunk_R1 * _CHUNK_LEN + offset_R1).squeeze(1), NO_TOKEN)


def _draw_nucleus(logits_RV: Tensor, columns: _Columns) -> Tensor:
    """Draws where top-p alone cuts: its share is of the whole vocabulary's weight."""
    weights_RV, _ = _weights(logits_RV, columns.temperature)
    total_R1 = chunked(weights_RV, _CHUNK_LEN, 0.0).sum(dim=-1).double().sum(dim=-1, keepdim=True)
    return _draw_truncated(logits_RV, replace(columns, total=total_R1))


def _draw_truncated(logits_RV: Tensor, columns: _Columns) -> Tensor:
    """Draws from the kept tokens: out of a few candidates where they settle what is kept."""
    vocab_size = logits_RV.shape[1]
    if vocab_size <= _NUM_CANDIDATES:
        return _draw_above_cutoff(logits_RV, columns, vocab_size)
    alive_R = logits_RV.amax(dim=-1).isfinite()
    values_RK, candidates_RK = _highest(logits_RV, _NUM_CANDIDATES)
    cutoff = _find_cutoff(values_RK, columns, vocab_size)
    ids_R = torch.where(alive_R, _draw_kept(values_RK, candidates_RK, cutoff, columns), NO_TOKEN)
    left_R = (alive_R & ~cutoff.settled).nonzero().squeeze(1)
    if left_R.numel():
        rows_RV = logits_RV.index_select(0, left_R)
        ids_R[left_R] = _draw_above_cutoff(rows_RV, columns.at(left_R), _NUM_VALUES)
    return ids_R


def _draw_above_cutoff(logits_RV: Tensor, columns: _Columns, num_values: int) -> Tensor:
    """Draws from all tokens up to a cutoff, found among the highest values, or among all."""
    vocab_size = logits_RV.shape[1]
    cutoff = _find_cutoff(_falling(logits_RV, num_values), columns, vocab_size)
    ids_R = _draw_whole(logits_RV.masked_fill(~cutoff.kept(logits_RV), float("-inf")), columns)
    if num_values >= vocab_size:
        return ids_R
    left_R = (~cutoff.settled).nonzero().squeeze(1)
    if left_R.numel():
        rows_RV = logits_RV.index_select(0, left_R)
        ids_R[left_R] = _draw_above_cutoff(rows_RV, columns.at(left_R), vocab_size)
    return ids_R


def _weights(logits_RV: Tensor, temperature_R1: Tensor) -> tuple[Tensor, Tensor]:
    """→ (exp((logit − highest) / temperature) float32, whether the row can be drawn from)."""
    top_R1 = logits_RV.amax(dim=-1, keepdim=True)
    scale_R1 = (_LOG2_E / temperature_R1).to(torch.float32)
    weights_RV = (logits_RV - top_R1).mul_(scale_R1).exp2_()  # twice as fast as exp on a CPU
    return weights_RV, top_R1.squeeze(1).isfinite()


def _highest(logits_RV: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """→ the highest values_RK of each row, falling, and their ids_RK: topk in two levels.

    Every value above the lowest of them is in one of the K chunks with the highest maxima. A chunk
    is a residue class of ids: a maximum over the slower axis is the faster one.
    """
    num_rows, vocab_size = logits_RV.shape
    chunk_len = min(64, 1 << max(0, (vocab_size // (4 * num_candidates)).bit_length() - 1))
    if missing := -vocab_size % chunk_len:
        logits_RV = torch.nn.functional.pad(logits_RV, (0, missing), value=float("-inf"))
    chunks_RZC = logits_RV.view(num_rows, chunk_len, -1)
    num_chunks = chunks_RZC.shape[2]
    best_RK = chunks_RZC.amax(dim=1).topk(num_candidates, dim=-1, sorted=False).indices
    pool_RX = chunks_RZC.gather(2, best_RK.unsqueeze(1).expand(-1, chunk_len, -1)).flatten(1)
    values_RK, places_RK = pool_RX.topk(num_candidates, dim=-1)
    ids_RK = places_RK // num_candidates * num_chunks + best_RK.gather(1, places_RK % num_candidates)
    return values_RK, ids_RK


def _falling(logits_RV: Tensor, num_values: int) -> Tensor:
    """→ the highest `num_values` (at most V) of each row, falling."""
    first = max(logits_RV.shape[1] - num_values, 0)
    if logits_RV.device.type != "cpu":
        return logits_RV.topk(logits_RV.shape[1] - first, dim=1).values
    # numpy sorts plain values with vectors: torch takes 14 times as long for a whole row.
    rows_RV = logits_RV.numpy()
    if first:
        rows_RV = np.partition(rows_RV, first, axis=1)[:, first:]
    return torch.from_numpy(np.sort(rows_RV, axis=1)).flip(1)


@dataclass(frozen=True, slots=True)
class _Cutoff:
    """What is kept: `num_kept` values, none below `lowest`; of those equal to it the first by id.

    A row is not settled where it may keep tokens that were not among the values looked at.
    """

    lowest: Tensor  # R1
    num_kept: Tensor  # R1
    settled: Tensor  # R

    def kept(self, values_RX: Tensor) -> Tensor:
        """→ kept_RX, for values in order of id."""
        kept_RX = values_RX >= self.lowest
        num_over_R1 = kept_RX.count_nonzero(dim=-1).unsqueeze(1) - self.num_kept
        if bool((num_over_R1 > 0).any()):  # rare, and counting along a vocabulary is slow
            ties_RX = values_RX == self.lowest
            num_ties_R1 = ties_RX.count_nonzero(dim=-1).unsqueeze(1) - num_over_R1
            kept_RX &= ~ties_RX | (ties_RX.cumsum(-1) <= num_ties_R1)
        return kept_RX


def _find_cutoff(values_RK: Tensor, columns: _Columns, vocab_size: int) -> _Cutoff:
    """Where min-p, top-k and top-p cut a row with these highest values, falling."""
    num_values = values_RK.shape[1]
    scaled_RK = _scaled(values_RK, values_RK[:, :1], columns)
    kth_R1 = values_RK.gather(1, columns.top_k.clamp(max=num_values) - 1)
    left_RK = (scaled_RK >= columns.min_p.log()) & (values_RK >= kth_R1) & (values_RK > float("-inf"))

    # What min-p and top-k leave is the whole that top-p takes its share of.
    is_cut_R1 = (columns.top_k < vocab_size) | (columns.min_p > 0)
    cdf_RK = (scaled_RK.exp() * left_RK).cumsum(-1)
    total_R1 = torch.where(is_cut_R1, cdf_RK[:, -1:], columns.total)
    before_RK = torch.nn.functional.pad(cdf_RK[:, :-1], (1, 0))
    kept_RK = left_RK & ((before_RK < columns.top_p * total_R1) | (columns.top_p >= 1))
    num_kept_R1 = kept_RK.sum(-1, keepdim=True).clamp(min=1)

    lowest_R1 = values_RK.gather(1, num_kept_R1 - 1)
    settled_R1 = (lowest_R1 > values_RK[:, -1:]) & ~(is_cut_R1 & left_RK[:, -1:])
    return _Cutoff(lowest_R1, num_kept_R1, settled_R1.squeeze(1))


def _draw_kept(values_RK: Tensor, ids_RK: Tensor, cutoff: _Cutoff, columns: _Columns) -> Tensor:
    """Draws from the candidates that are kept."""
    top_R1 = values_RK[:, :1]
    ids_RK, order_RK = ids_RK.sort(dim=-1)
    values_RK = values_RK.gather(1, order_RK)
    weights_RK = _scaled(values_RK, top_R1, columns).exp() * cutoff.kept(values_RK)
    cdf_RK = weights_RK.cumsum(-1)
    return ids_RK.gather(1, _pick(weights_RK, cdf_RK, columns.uniform * cdf_RK[:, -1:])).squeeze(1)


def _scaled(values_RK: Tensor, top_R1: Tensor, columns: _Columns) -> Tensor:
    return (values_RK.double() - top_R1.double()) / columns.temperature


def _pick(weights_RK: Tensor, cdf_RK: Tensor, target_R1: Tensor) -> Tensor:
    """→ index_R1 of the first positive weight whose cumulative sum passes the target.

    Where rounding lets none pass (a uniform next to 1), the last positive weight.
    """
    positive_RK = weights_RK > 0
    passes_RK = positive_RK & (cdf_RK > target_R1)
    first_R1 = passes_RK.to(torch.uint8).argmax(dim=-1, keepdim=True)
    last_R1 = positive_RK.cumsum(-1).argmax(dim=-1, keepdim=True)
    return torch.where(passes_RK.any(dim=-1, keepdim=True), first_R1, last_R1)
