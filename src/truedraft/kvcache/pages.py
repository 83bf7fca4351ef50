"""Who holds which pages of the KV cache: plain integers, no tensors.

Page ids index every pool that goes with the allocator (the target's and the drafter's alike). A
static cache is the special case `page_len >= max_model_len`: one page a sequence.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Holding:
    """What one sequence holds: its pages in position order, and how many positions are committed."""

    pages: list[int] = field(default_factory=list)
    committed_len: int = 0


class PageAllocator:
    """Hands out pages of `page_len` positions to sequences.

    Four verbs: `reserve` grows a sequence, `commit` is the only one that moves its length,
    `release` ends it; the writing itself is done by whoever owns the tensors. Positions between
    the committed and the reserved length may hold anything (drafted rows that were rejected) and
    are overwritten by the next round: rolling back moves nothing. The lowest free page goes first,
    so that runs repeat exactly.
    """

    def __init__(self, num_pages: int, page_len: int) -> None:
        """Raises ValueError unless both are at least 1."""
        if num_pages < 1 or page_len < 1:
            raise ValueError(f"num_pages and page_len must be at least 1, got {num_pages} and {page_len}")
        self.num_pages = num_pages
        self.page_len = page_len
        self._free = list(range(num_pages))  # sorted, hence a heap
        self._holdings: dict[int, _Holding] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def used_frac(self) -> float:
        return 1.0 - len(self._free) / self.num_pages

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """Sequences that hold something, oldest first."""
        return tuple(self._holdings)

    def num_pages_for(self, total_len: int) -> int:
        """Pages that `total_len` positions need."""
        return -(-total_len // self.page_len)

    def reserve(self, seq_id: int, total_len: int) -> bool:
        """Make room for positions 0 … total_len−1, admitting the sequence if it is new.

        Returns False, with nothing changed, where there are not enough free pages. Never shrinks.
        """
        if total_len < 0:
            raise ValueError(f"total_len must not be negative, got {total_len}")
        holding = self._holdings.get(seq_id)
        num_held = len(holding.pages) if holding is not None else 0
        num_more = self.num_pages_for(total_len) - num_held
        if num_more > len(self._free):
            return False
        if holding is None:
            holding = self._holdings[seq_id] = _Holding()
        for _ in range(num_more):
            holding.pages.append(heapq.heappop(self._free))
        return True

    def commit(self, seq_id: int, committed_len: int) -> None:
        """Set how many positions are final.

        Raises KeyError for an unknown sequence, and ValueError where the length goes backwards or
        past what is reserved.
        """
        holding = self._holdings[seq_id]
        reserved_len = len(holding.pages) * self.page_len
        if not holding.committed_len <= committed_len <= reserved_len:
            raise ValueError(
                f"sequence {seq_id}: cannot commit {committed_len} positions; "
                f"{holding.committed_len} are committed and {reserved_len} reserved"
            )
        holding.committed_len = committed_len

    def release(self, seq_id: int) -> None:
        """Give all pages of a sequence back. Raises KeyError where it holds nothing (any more)."""
        for page in self._holdings.pop(seq_id).pages:
            heapq.heappush(self._free, page)

    def pages(self, seq_id: int) -> tuple[int, ...]:
        """Pages in position order. Raises KeyError for an unknown sequence."""
        return tuple(self._holdings[seq_id].pages)

    def committed_len(self, seq_id: int) -> int:
        """Raises KeyError for an unknown sequence."""
        return self._holdings[seq_id].committed_len

    def check(self) -> None:
        """Raises AssertionError with the particulars where a page is lost, held twice or unknown."""
        held = [page for holding in self._holdings.values() for page in holding.pages]
        everywhere = sorted(held + self._free)
        if everywhere != list(range(self.num_pages)):
            lost = sorted(set(range(self.num_pages)) - set(everywhere))
            twice = sorted({page for page in everywhere if everywhere.count(page) > 1})
            raise AssertionError(
                f"{len(self._free)} free + {len(held)} held of {self.num_pages} pages; "
                f"lost {lost}, held twice {twice}"
            )
        for seq_id, holding in self._holdings.items():
            if not 0 <= holding.committed_len <= len(holding.pages) * self.page_len:
                raise AssertionError(
                    f"sequence {seq_id}: {holding.committed_len} committed positions "
                    f"in {len(holding.pages)} pages of {self.page_len}"
                )
