"""What a drafter is measured on: texts with the target's hidden states, and anchors in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truedraft.recovery.attend import Group


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids of a prompt and the answer after it (a plain text has no prompt: 0)."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int

    @property
    def first_anchor(self) -> int:
        """The first answer token; in a plain text, one with some context before it."""
        return self.num_prompt_tokens or min(8, len(self.token_ids) // 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """Anchors in some texts. T rows of context, A anchors; texts in ascending order.

    `rows_T` index the states of all texts laid end to end; `text_of_A` says whose an anchor is.
    """

    rows_T: Tensor
    positions_T: Tensor
    groups: tuple[Group, ...]
    anchors_A: Tensor
    text_of_A: Tensor

    @property
    def num_anchors(self) -> int:
        return int(self.anchors_A.shape[0])


def build_sample(
    texts: Sequence[Text], anchors: dict[int, list[int]], device: torch.device | str = "cpu"
) -> Sample:
    """`anchors`: text index → positions of its anchors. Every anchor has some context before it."""
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text.token_ids))
    rows: list[int] = []
    positions: list[int] = []
    groups: list[Group] = []
    flat: list[int] = []
    owners: list[int] = []
    for index in sorted(anchors):
        chosen = sorted(anchors[index])
        if not chosen:
            continue
        num_context = chosen[-1]
        rows.extend(range(starts[index], starts[index] + num_context))
        positions.extend(range(num_context))
        where = torch.tensor(chosen, dtype=torch.int64, device=device)
        groups.append(Group(len(rows) - num_context, len(rows), where))
        flat.extend(chosen)
        owners.extend([index] * len(chosen))

    def long(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Sample(long(rows), long(positions), tuple(groups), long(flat), long(owners))


def draw_anchors(
    texts: Sequence[Text], num_anchors: int, *, tail_len: int, seed: int, num_texts: int | None = None
) -> dict[int, list[int]]:
    """About `num_anchors` positions, as many in each text, leaving `tail_len` tokens behind each.

    `num_texts`: draw from that many texts only, spread over all.
    """
    draw = random.Random(seed)  # noqa: S311 (not for secrets)
    rooms = {
        index: range(max(1, text.first_anchor), len(text.token_ids) - tail_len)
        for index, text in enumerate(texts)
    }
    usable = [index for index, room in rooms.items() if len(room)]
    if num_texts is not None and num_texts < len(usable):
        usable = [usable[i * len(usable) // num_texts] for i in range(num_texts)]
    share = -(-num_anchors // max(1, len(usable)))
    return {index: draw.sample(rooms[index], min(share, len(rooms[index]))) for index in usable}


def every_anchor(texts: Sequence[Text]) -> dict[int, list[int]]:
    """All anchors that a round could start from: a token, and at least one behind it."""
    return {
        index: list(range(max(1, text.first_anchor), len(text.token_ids) - 1))
        for index, text in enumerate(texts)
        if len(text.token_ids) - 1 > max(1, text.first_anchor)
    }
