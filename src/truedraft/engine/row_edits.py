"""Collects, sequence by sequence, how a step's rows of logits are to be shaped; applies it at once.

Costs Python and numpy only for sequences that ask for shaping; the others pass through untouched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truedraft.contract.request import SamplingParams
from truedraft.contract.step import Extend, RowConstraint
from truedraft.errors import BackendError
from truedraft.kernels.sampling_shape import add_bias_, ban_, mask_, penalise_

_Ints = NDArray[np.int64]


class RowEdits:
    """Sparse edits of one step's rows. `add` each sampling sequence, then `apply` once."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bias: list[tuple[_Ints, _Ints, NDArray[np.float32]]] = []
        self._penalties: list[tuple[_Ints, _Ints, _Ints, NDArray[np.float32]]] = []
        self._bans: list[tuple[_Ints, _Ints]] = []
        self._masks: list[tuple[_Ints, NDArray[np.int32]]] = []
        self.failures: dict[int, str] = {}  # seq_id → why its constraint gave no masks

    def add(self, extend: Extend, draft: Sequence[int], start: int, eos_ids: Sequence[int]) -> None:
        """Notes the edits of one sequence's rows `start … start + len(draft)`.

        Token ids outside the vocabulary have no effect here; requests are checked on submission.
        """
        asked = extend.sampling
        rows = np.arange(start, start + 1 + len(draft))
        if asked.logit_bias:
            bias = {token: value for token, value in asked.logit_bias if 0 <= token < self._vocab_size}
            values = np.fromiter(bias.values(), np.float32, len(bias))
            self._bias.append(
                (*_pairs(rows, np.fromiter(bias, np.int64, len(bias))), np.tile(values, len(rows)))
            )
        if _is_penalised(asked):
            self._add_penalties(extend, draft, rows)
        position = len(extend.history) - extend.num_prompt_tokens
        num_banned = min(max(asked.min_tokens - position, 0), len(rows))
        stops = sorted({t for t in (*eos_ids, *asked.stop_token_ids) if 0 <= t < self._vocab_size})
        if extend.constraint is not None:
            masks = self._masks_of(extend.seq_id, extend.constraint, draft)
            for row in range(num_banned):
                _forbid_unless_last(masks[row], stops)
            self._masks.append((rows, masks))
        elif num_banned and stops:
            self._bans.append(_pairs(rows[:num_banned], np.asarray(stops, np.int64)))

    def _masks_of(self, seq_id: int, constraint: RowConstraint, draft: Sequence[int]) -> NDArray[np.int32]:
        """A grammar that fails rules out every token of its own sequence; the others go on."""
        try:
            return np.array(constraint.masks(draft), dtype=np.int32)
        except BackendError as error:
            self.failures[seq_id] = str(error)
            return np.zeros((1 + len(draft), (self._vocab_size + 31) // 32), np.int32)

    def _add_penalties(self, extend: Extend, draft: Sequence[int], rows: _Ints) -> None:
        """Row i has seen the history and the first i drafts; counts are of the answer's part."""
        asked = extend.sampling
        text = np.fromiter((*extend.history, *draft), np.int64)
        num_prompt, num_history = extend.num_prompt_tokens, len(extend.history)
        tokens, places = np.unique(text, return_inverse=True)
        counts = np.zeros((len(rows), len(tokens)), np.int64)
        seen = np.zeros((len(rows), len(tokens)), bool)
        seen[:, places[:num_history]] = True
        np.add.at(counts[0], places[num_prompt:num_history], 1)
        for row, place in enumerate(places[num_history:], 1):
            counts[row] = counts[row - 1]
            counts[row, place] += 1
            seen[row:, place] = True
        seen &= tokens < self._vocab_size
        row_index, token_index = seen.nonzero()
        strengths = (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty)
        columns = np.tile(np.asarray(strengths, np.float32), (len(row_index), 1))
        self._penalties.append(
            (rows[row_index], tokens[token_index], counts[row_index, token_index], columns)
        )

    def apply(self, logits_RV: Tensor) -> Tensor:
        """→ the shaped logits: a copy, or `logits_RV` itself where nothing was noted."""
        if not (self._bias or self._penalties or self._bans or self._masks):
            return logits_RV
        shaped_RV = logits_RV.clone()
        device = logits_RV.device
        if self._bias:
            add_bias_(shaped_RV, *_stacked(self._bias, device))
        if self._penalties:
            rows_E, tokens_E, counts_E, columns_E3 = _stacked(self._penalties, device)
            penalise_(shaped_RV, rows_E, tokens_E, counts_E, *columns_E3.unbind(1))
        if self._bans:
            ban_(shaped_RV, *_stacked(self._bans, device))
        if self._masks:
            mask_(shaped_RV, *_stacked(self._masks, device))
        return shaped_RV


def _is_penalised(asked: SamplingParams) -> bool:
    return asked.repetition_penalty != 1 or asked.presence_penalty != 0 or asked.frequency_penalty != 0


def _pairs(rows: _Ints, tokens: _Ints) -> tuple[_Ints, _Ints]:
    """Every row with every token."""
    return np.repeat(rows, len(tokens)), np.tile(tokens, len(rows))


def _forbid_unless_last(mask: NDArray[np.int32], stops: Sequence[int]) -> None:
    """Clears the stop tokens' bits, unless nothing else is left: where the grammar has ended,
    `min_tokens` cannot be kept, and the answer ends."""
    words = mask.view(np.uint32)
    before = words.copy()
    for token in stops:
        if token < 32 * len(words):
            words[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
    if not words.any():
        words[:] = before


def _stacked(parts: Sequence[tuple[NDArray, ...]], device: torch.device) -> list[Tensor]:
    return [torch.from_numpy(np.concatenate(column)).to(device) for column in zip(*parts, strict=True)]
