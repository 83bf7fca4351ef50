"""The page allocator: pages are never lost or shared, and nothing but `commit` moves a length."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from truedraft.kvcache.pages import PageAllocator


def test_lowest_free_page_goes_first() -> None:
    pages = PageAllocator(num_pages=6, page_len=4)
    assert pages.reserve(1, 5)
    assert pages.reserve(2, 4)
    assert pages.pages(1) == (0, 1)
    assert pages.pages(2) == (2,)
    pages.release(1)
    assert pages.reserve(3, 1)
    assert pages.reserve(2, 9)
    assert pages.pages(3) == (0,)
    assert pages.pages(2) == (2, 1, 3)


def test_reserve_counts_positions_and_never_shrinks() -> None:
    pages = PageAllocator(num_pages=4, page_len=4)
    for total_len, num_pages in ((0, 0), (1, 1), (4, 1), (5, 2), (3, 2)):
        assert pages.reserve(7, total_len)
        assert len(pages.pages(7)) == num_pages
    assert pages.num_free == 2
    assert pages.used_frac == 0.5


def test_reserve_that_does_not_fit_changes_nothing() -> None:
    pages = PageAllocator(num_pages=3, page_len=4)
    assert pages.reserve(1, 8)
    assert not pages.reserve(1, 13)
    assert pages.pages(1) == (0, 1)
    assert not pages.reserve(2, 5)
    assert pages.seq_ids == (1,)
    with pytest.raises(KeyError):
        pages.pages(2)
    assert pages.num_free == 1
    pages.check()


def test_commit_stays_within_what_is_reserved_and_never_goes_back() -> None:
    pages = PageAllocator(num_pages=3, page_len=4)
    pages.reserve(1, 6)
    pages.commit(1, 8)  # the whole of two pages is reserved
    assert pages.committed_len(1) == 8
    for committed_len in (9, 7, -1):
        with pytest.raises(ValueError, match=f"cannot commit {committed_len} positions"):
            pages.commit(1, committed_len)
    assert pages.committed_len(1) == 8


def test_unknown_sequences_are_errors() -> None:
    pages = PageAllocator(num_pages=3, page_len=4)
    pages.reserve(1, 1)
    pages.release(1)
    for verb in (pages.release, pages.pages, pages.committed_len, lambda i: pages.commit(i, 0)):
        with pytest.raises(KeyError):
            verb(1)
    assert pages.num_free == 3


@pytest.mark.parametrize(("num_pages", "page_len"), [(0, 4), (4, 0), (-1, 1)])
def test_sizes_must_be_positive(num_pages: int, page_len: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PageAllocator(num_pages, page_len)


def test_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        PageAllocator(1, 1).reserve(0, -1)


def test_check_tells_what_is_wrong() -> None:
    lost = PageAllocator(num_pages=3, page_len=4)
    lost._free.remove(1)
    with pytest.raises(AssertionError, match=r"2 free \+ 0 held of 3 pages; lost \[1\], held twice \[\]"):
        lost.check()
    shared = PageAllocator(num_pages=3, page_len=4)
    shared.reserve(1, 4)
    shared._free.append(0)
    with pytest.raises(AssertionError, match=r"held twice \[0\]"):
        shared.check()
    overrun = PageAllocator(num_pages=3, page_len=4)
    overrun.reserve(1, 4)
    overrun._holdings[1].committed_len = 5
    with pytest.raises(AssertionError, match="5 committed positions in 1 pages of 4"):
        overrun.check()


class Traffic(RuleBasedStateMachine):
    """Admits, rounds and aborts in any order, against a model of plain lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(num_pages=9, page_len=3)
        self.reserved: dict[int, int] = {}  # sequence → pages
        self.committed: dict[int, int] = {}
        self.next_id = 0

    def _reserve(self, seq_id: int, total_len: int) -> None:
        before = {i: self.pages.pages(i) for i in self.reserved}
        wanted = max(-(-total_len // 3), self.reserved.get(seq_id, 0))
        fits = wanted - self.reserved.get(seq_id, 0) <= 9 - sum(self.reserved.values())
        assert self.pages.reserve(seq_id, total_len) == fits
        if fits:
            self.reserved[seq_id] = wanted
            self.committed.setdefault(seq_id, 0)
        for i, held in before.items():
            assert self.pages.pages(i)[: len(held)] == held  # pages never move

    @rule(prompt_len=st.integers(0, 30))
    def admit(self, prompt_len: int) -> None:
        self._reserve(self.next_id, prompt_len)
        self.next_id += 1

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), block_len=st.integers(1, 8))
    def round(self, data: st.DataObject, block_len: int) -> None:
        """Room for a whole block; a part of it is kept."""
        seq_id = data.draw(st.sampled_from(sorted(self.reserved)))
        length = self.committed[seq_id]
        self._reserve(seq_id, length + block_len)
        if self.reserved[seq_id] * 3 >= length + block_len:
            kept = data.draw(st.integers(1, block_len))
            self.pages.commit(seq_id, length + kept)
            self.committed[seq_id] = length + kept

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.reserved)))
        self.pages.release(seq_id)
        del self.reserved[seq_id], self.committed[seq_id]

    @invariant()
    def consistent(self) -> None:
        self.pages.check()
        assert self.pages.num_free == 9 - sum(self.reserved.values())
        assert set(self.pages.seq_ids) == set(self.reserved)
        for seq_id, num_pages in self.reserved.items():
            assert len(self.pages.pages(seq_id)) == num_pages
            assert self.pages.committed_len(seq_id) == self.committed[seq_id]


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(lens=st.lists(st.integers(0, 40), max_size=12), page_len=st.integers(1, 41))
def test_all_comes_back(lens: list[int], page_len: int) -> None:
    pages = PageAllocator(num_pages=20, page_len=page_len)
    held = [i for i, total_len in enumerate(lens) if pages.reserve(i, total_len)]
    for i in reversed(held):
        pages.release(i)
    pages.check()
    assert pages.num_free == 20
    assert pages.used_frac == 0.0
