"""What one candidate gave on one sample: log-losses and hits by anchor and drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truedraft.recovery.texts import Text


@dataclass(frozen=True, slots=True)
class Measured:
    """A anchors, J drafted tokens; J = G − 1 for losses, the drafted tokens for hits.

    loss_AJ: −log p of the text's own token, NaN where there is none (past the end, or outside of the
    drafter's vocabulary). hits_AJ: whether the draft is that token; None where only losses were asked.
    """

    anchors_A: NDArray[np.int64]
    text_of_A: NDArray[np.int64]
    loss_AJ: NDArray[np.float32]
    hits_AJ: NDArray[np.bool_] | None = None

    @property
    def loss(self) -> float:
        """Mean over all tokens that have a loss."""
        return float(np.nanmean(self.loss_AJ))

    def loss_by_text(self, num_positions: int | None = None) -> dict[int, float]:
        """Text → its mean loss, over the first `num_positions` drafted tokens."""
        part = self.loss_AJ[:, :num_positions]
        return {int(t): float(np.nanmean(part[self.text_of_A == t])) for t in np.unique(self.text_of_A)}

    @property
    def committed_A(self) -> NDArray[np.int64]:
        """Tokens that a round at each anchor commits: agreeing prefix + 1."""
        assert self.hits_AJ is not None, "measured without hits"
        accepted: NDArray[np.int64] = np.cumprod(self.hits_AJ, axis=1).sum(axis=1)
        return accepted + 1

    def committed_by_text(self) -> dict[int, float]:
        """Text → mean committed tokens over its anchors."""
        committed = self.committed_A
        return {int(t): float(committed[self.text_of_A == t].mean()) for t in np.unique(self.text_of_A)}


def walk(measured: Measured, texts: Sequence[Text]) -> dict[int, tuple[int, int]]:
    """Text → (tokens committed, rounds) of decoding it with these drafts.

    `measured` must have every anchor of its texts (`every_anchor`). The last round counts only
    tokens that the text has.
    """
    committed_at = {
        (int(text), int(anchor)): int(committed)
        for text, anchor, committed in zip(
            measured.text_of_A, measured.anchors_A, measured.committed_A, strict=True
        )
    }
    walked: dict[int, tuple[int, int]] = {}
    for index in np.unique(measured.text_of_A):
        text = texts[int(index)]
        at, rounds, total = max(1, text.first_anchor), 0, 0
        while at + 1 < len(text.token_ids):
            step = min(committed_at[int(index), at], len(text.token_ids) - 1 - at)
            rounds, total, at = rounds + 1, total + step, at + step
        walked[int(index)] = (total, rounds)
    return walked


def tau_of(walked: dict[int, tuple[int, int]]) -> float:
    """Committed tokens a round over all texts."""
    return sum(committed for committed, _ in walked.values()) / sum(rounds for _, rounds in walked.values())
