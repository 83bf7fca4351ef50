"""How much of each draft is kept: the longest prefix that the target itself chose.

Axes: R verified rows of all sequences, flattened; B sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_DRAFT = -1


def count_accepted(draft_ids_R: Tensor, target_ids_R: Tensor, row_start_B: Tensor) -> Tensor:
    """→ num_accepted_B, int64: leading rows of each sequence whose draft is the target's token.

     Sequence b owns rows `row_start_B[b] … row_start_B[b+1]` (B+1 entries). `draft_ids_R[r]` is the
     drafted token that row r judges, and `NO_DRAFT` in the last row of every sequence, which always
     gives the target's own token; a target id of −1 (no token) there is no match either.

     Equality with a draw of the target keeps its distribution: each committed token is that draw
    . No host synchronisation.
    """
    num_rows = draft_ids_R.shape[0]
    rows_R = torch.arange(num_rows, device=draft_ids_R.device)
    mismatch_R = (draft_ids_R != target_ids_R) | (draft_ids_R == NO_DRAFT)
    stop_R = torch.where(mismatch_R, rows_R, num_rows)
    # The running minimum from the back is, at every row, the next row that stops a prefix.
    next_stop_R = stop_R.flip(0).cummin(0).values.flip(0)
    starts_B = row_start_B[:-1].to(torch.int64)
    return next_stop_R[starts_B] - starts_B
