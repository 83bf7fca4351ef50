"""The head that scores hidden states, whole or over a shortlist of tokens.

A head has most of a small drafter's weights. The loss over a shortlist (all tokens of the texts,
and others for contrast) ranks candidates as the whole one does, at a fraction of the cost.
Axes: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from truedraft.models.drafter import DFlashDrafter
from truedraft.models.interface import Target
from truedraft.recovery.texts import Text

_SHORTLIST = 2048
_CHUNK = 2**24  # logits at once


class Head:
    """Scores target token ids; ids outside of a reduced vocabulary have no score (NaN loss)."""

    def __init__(self, drafter: DFlashDrafter, target: Target, texts: Sequence[Text]) -> None:
        self._drafter = drafter
        spec = drafter.spec
        self._num_rows = spec.vocab_size
        device, dtype = drafter.device, drafter.dtype
        self._of_target_V = _draft_ids(drafter, target.spec.vocab_size).to(device)
        weight_VD = drafter.head_VD if spec.own_head else _borrowed(target)
        self._weight_VD = None if weight_VD is None else weight_VD.to(dtype=dtype)
        self._short_S = self._shortlist(texts).to(device)
        self._place_V = torch.full((self._num_rows,), -1, dtype=torch.int64, device=device)
        self._place_V[self._short_S] = torch.arange(len(self._short_S), device=device)
        self._short_SD = None if self._weight_VD is None else self._weight_VD[self._short_S]

    def losses(self, hidden_RD: Tensor, labels_RJ: Tensor) -> Tensor:
        """→ −log p of each row's labels (target ids, −1: none), NaN where there is no score, float32.

        Over the shortlist.
        """
        labels_RJ, known_RJ = self._known(labels_RJ)
        if self._short_SD is None:
            logits_RS = self._drafter.logits(hidden_RD)[:, self._short_S]
        else:
            logits_RS = self._shaped(hidden_RD @ self._short_SD.T)
        return _losses(logits_RS, self._place_V[labels_RJ], known_RJ)

    def whole(self, hidden_RD: Tensor, labels_RJ: Tensor) -> tuple[Tensor, Tensor]:
        """→ (losses as above but over the whole vocabulary, whether argmax equals each label)."""
        labels_RJ, known_RJ = self._known(labels_RJ)
        step = max(16, _CHUNK // self._num_rows)
        losses, hits = [], []
        for first in range(0, hidden_RD.shape[0], step):
            rows = slice(first, first + step)
            if self._weight_VD is None:
                logits_RV = self._drafter.logits(hidden_RD[rows])
            else:
                logits_RV = self._shaped(hidden_RD[rows] @ self._weight_VD.T)
            losses.append(_losses(logits_RV, labels_RJ[rows], known_RJ[rows]))
            hits.append((logits_RV.argmax(-1)[:, None] == labels_RJ[rows]) & known_RJ[rows])
        return torch.cat(losses), torch.cat(hits)

    def _known(self, labels_RJ: Tensor) -> tuple[Tensor, Tensor]:
        ids_RJ = self._of_target_V[labels_RJ.clamp(min=0)]
        known_RJ = (labels_RJ >= 0) & (ids_RJ >= 0)
        return ids_RJ.clamp(min=0), known_RJ

    def _shaped(self, logits_RV: Tensor) -> Tensor:
        spec, logits_RV = self._drafter.spec, logits_RV.float()
        if spec.output_multiplier != 1.0:
            logits_RV = logits_RV * spec.output_multiplier
        if spec.final_logit_softcap:
            logits_RV = torch.tanh(logits_RV / spec.final_logit_softcap) * spec.final_logit_softcap
        return logits_RV

    def _shortlist(self, texts: Sequence[Text]) -> Tensor:
        used = torch.tensor(sorted({token for text in texts for token in text.token_ids}))
        used = self._of_target_V.cpu()[used]
        is_listed_V = torch.zeros(self._num_rows, dtype=torch.bool)
        is_listed_V[used[used >= 0]] = True
        order_V = torch.randperm(self._num_rows, generator=torch.Generator().manual_seed(0))
        others = order_V[~is_listed_V[order_V]][: max(0, _SHORTLIST - int(is_listed_V.sum()))]
        is_listed_V[others] = True
        return is_listed_V.nonzero().flatten()


def _losses(logits_RV: Tensor, labels_RJ: Tensor, known_RJ: Tensor) -> Tensor:
    of_label_RJ = logits_RV.gather(1, labels_RJ.clamp(min=0))
    losses_RJ = logits_RV.logsumexp(-1, keepdim=True) - of_label_RJ
    return losses_RJ.masked_fill(~known_RJ, float("nan"))


def _draft_ids(drafter: DFlashDrafter, vocab_size: int) -> Tensor:
    """Target id → row of the drafter's head, −1 where it has none."""
    rows = torch.arange(drafter.spec.vocab_size)
    if drafter.d2t is not None:
        targets = rows + drafter.d2t.cpu()
        table = torch.full((vocab_size,), -1, dtype=torch.int64)
        table[targets] = rows
        return table
    table = torch.full((max(vocab_size, len(rows)),), -1, dtype=torch.int64)
    table[: len(rows)] = rows
    return table


def _borrowed(target: Target) -> Tensor | None:
    """The target's head as a matrix, where the model is one of ours."""
    found = getattr(target, "embedding_VD" if target.spec.tied_head else "head_VD", None)
    return found if isinstance(found, Tensor) else None
