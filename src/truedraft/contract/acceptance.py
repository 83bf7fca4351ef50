"""Adds up acceptance of several requests or stretches of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from truedraft.contract.request import SpeculationStats


def merge_speculation(parts: Iterable[SpeculationStats]) -> SpeculationStats:
    """→ the sum of `parts`; positions that only some have count there alone."""
    total = SpeculationStats()
    for part in parts:
        total = SpeculationStats(
            num_rounds=total.num_rounds + part.num_rounds,
            num_drafted=total.num_drafted + part.num_drafted,
            num_accepted=total.num_accepted + part.num_accepted,
            num_committed=total.num_committed + part.num_committed,
            num_plain_steps=total.num_plain_steps + part.num_plain_steps,
            accepted_by_position=_add(total.accepted_by_position, part.accepted_by_position),
            drafted_by_position=_add(total.drafted_by_position, part.drafted_by_position),
        )
    return total


def _add(one: Sequence[int], two: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, two, fillvalue=0))
