"""Acceptance: the longest agreeing prefix of each sequence, whatever stands beside it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from truedraft.kernels.accept import NO_DRAFT, count_accepted

_sequence = st.integers(0, 6).flatmap(
    lambda num: st.tuples(
        st.lists(st.integers(0, 2), min_size=num, max_size=num),
        st.lists(st.integers(-1, 2), min_size=num + 1, max_size=num + 1),
    )
)


def _naive(draft: list[int], target: list[int]) -> int:
    accepted = 0
    while accepted < len(draft) and draft[accepted] == target[accepted]:
        accepted += 1
    return accepted


@given(st.lists(_sequence, min_size=1, max_size=8))
def test_equals_the_walk_by_hand(sequences: list[tuple[list[int], list[int]]]) -> None:
    drafts = torch.tensor([i for draft, _ in sequences for i in (*draft, NO_DRAFT)])
    targets = torch.tensor([i for _, target in sequences for i in target])
    starts = [0]
    for _, target in sequences:
        starts.append(starts[-1] + len(target))
    accepted = count_accepted(drafts, targets, torch.tensor(starts, dtype=torch.int32))
    assert accepted.tolist() == [_naive(draft, target) for draft, target in sequences]


def test_a_row_without_token_ends_the_prefix() -> None:
    drafts = torch.tensor([5, 6, NO_DRAFT, NO_DRAFT])
    targets = torch.tensor([5, -1, 7, -1])
    assert count_accepted(drafts, targets, torch.tensor([0, 3, 4])).tolist() == [1, 0]
