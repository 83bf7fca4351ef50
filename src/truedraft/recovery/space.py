"""What can be tried for each value that weights do not show. Pure; a group of options a dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TypeVar

from truedraft.diagnosis.known_drafters import KnownDrafter, reference_formula
from truedraft.recovery.candidate import Candidate

T = TypeVar("T")

THETAS = (1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7)
BLOCK_LENS = (4, 5, 6, 7, 8, 10, 12, 16)
MIN_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Dimension:
    """One value: `options` gives the candidates that differ from the given one in it (itself among them).

    `ordered`: the options stand for the same values, in the same order, whatever candidate is given.
    """

    name: str
    options: Callable[[Candidate], list[Candidate]]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """The alternatives of every value. `longest_context`: positions that the last anchor sees."""

    num_target_layers: int
    hidden_size: int
    longest_context: int
    masks: tuple[int, ...]
    thetas: tuple[float, ...]
    scales: tuple[float, ...]
    block_lens: tuple[int, ...]
    windows: tuple[int, ...]
    lists: tuple[tuple[int, ...], ...] = ()  # capture layers that someone may have meant

    def dimensions(self, start: Candidate) -> tuple[Dimension, ...]:
        """In the order of sensitivity: what blinds all the others comes first."""
        slots = [
            Dimension(f"capture_layers[{slot}]", partial(self.layers, slot), ordered=True)
            for slot in range(len(start.capture_layers))
        ]
        return (
            Dimension("sample_from_anchor", _layouts),
            Dimension("mask_token_id", self.with_masks),
            Dimension("rope style", _styles),
            Dimension("rope_theta", self.with_thetas),
            Dimension("capture lists", self.with_lists),
            Dimension("capture order", swaps),
            *slots,
            Dimension("sliding_window", self.with_windows),
            Dimension("block causality", _causalities),
            Dimension("embedding_scale", self.with_scales),
        )

    def with_lists(self, candidate: Candidate) -> list[Candidate]:
        lists = _unique(candidate.capture_layers, self.lists)
        return [replace(candidate, capture_layers=layers) for layers in lists]

    def layers(self, slot: int, candidate: Candidate) -> list[Candidate]:
        return [candidate.with_layer(slot, layer) for layer in range(-1, self.num_target_layers)]

    def with_masks(self, candidate: Candidate) -> list[Candidate]:
        return [
            replace(candidate, mask_token_id=mask) for mask in _unique(candidate.mask_token_id, self.masks)
        ]

    def with_thetas(self, candidate: Candidate) -> list[Candidate]:
        return [replace(candidate, theta=theta) for theta in _unique(candidate.theta, self.thetas)]

    def with_scales(self, candidate: Candidate) -> list[Candidate]:
        scales = _unique(candidate.embedding_scale, self.scales)
        return [replace(candidate, embedding_scale=scale) for scale in scales]

    def with_block_lens(self, candidate: Candidate) -> list[Candidate]:
        lens = _unique(candidate.block_len, self.block_lens)
        return [replace(candidate, block_len=block_len) for block_len in lens]

    def with_windows(self, candidate: Candidate) -> list[Candidate]:
        """No window, and every size on all layers or on all but the last.

        Blocks keep their causality where it is the same in all layers; else it follows the windows.
        """
        num_layers = len(candidate.windows)
        by_type = candidate.causal == causal_by_type(candidate.windows)
        patterns: list[tuple[int | None, ...]] = [candidate.windows, (None,) * num_layers]
        for window in self.windows:
            patterns.append((window,) * num_layers)
            if num_layers > 1:
                patterns.append((window,) * (num_layers - 1) + (None,))
        found = []
        for windows in dict.fromkeys(patterns):
            found.append(replace(candidate, windows=windows))
            if by_type:
                found.append(replace(candidate, windows=windows, causal=causal_by_type(windows)))
        return list(dict.fromkeys(found))


def build_space(
    *,
    num_target_layers: int,
    hidden_size: int,
    vocab_size: int,
    longest_context: int,
    target_theta: float,
    special_ids: Iterable[int],
    family: Sequence[KnownDrafter],
    declared: Candidate,
    lists: Sequence[tuple[int, ...]] = (),
) -> Space:
    """The alternatives for one pair. `lists`: see capture_starts."""
    known_masks = [known.mask_token_id for known in family if known.mask_token_id is not None]
    spread = [vocab_size * k // 16 for k in range(16)]
    masks = _unique(declared.mask_token_id, [*known_masks, *special_ids, *spread, vocab_size - 1])
    known_thetas = [known.rope_theta for known in family if known.rope_theta is not None]
    num_windows = max(0, int(math.log2(max(1, longest_context - 1) / MIN_WINDOW)) + 1)
    return Space(
        num_target_layers=num_target_layers,
        hidden_size=hidden_size,
        longest_context=longest_context,
        masks=tuple(mask for mask in masks if 0 <= mask < vocab_size),
        thetas=tuple(_unique(declared.theta, [*THETAS, target_theta, *known_thetas])),
        scales=tuple(_unique(declared.embedding_scale, [1.0, math.sqrt(hidden_size)])),
        block_lens=tuple(_unique(declared.block_len, BLOCK_LENS)),
        windows=tuple(MIN_WINDOW * 2**k for k in range(num_windows)),
        lists=tuple(lists),
    )


def capture_starts(
    declared: Sequence[int] | None, num_target_layers: int, num_slots: int, family: Sequence[KnownDrafter]
) -> list[tuple[int, ...]]:
    """Lists that someone may have meant, likeliest first: the declared one, the family's, the declared
    one a layer off (the two numberings) or out of order, the reference formula, and it a layer off.
    """
    guesses = [tuple(declared)] if declared is not None and len(declared) == num_slots else []
    known = [one.capture_layers for one in family if len(one.capture_layers) == num_slots]
    formula = reference_formula(num_target_layers, num_slots)
    ordered = [tuple(sorted(guess)) for guess in guesses]
    lists = [*guesses, *known, *(_shifted(guess, by) for guess in guesses for by in (-1, 1)), *ordered]
    lists += [formula, _shifted(formula, -1), _shifted(formula, 1)]
    lists += [_shifted(guess, by) for guess in ordered for by in (-1, 1)]
    return [one for one in dict.fromkeys(lists) if all(-1 <= layer < num_target_layers for layer in one)]


def _shifted(layers: tuple[int, ...], by: int) -> tuple[int, ...]:
    return tuple(layer + by for layer in layers)


def causal_by_type(windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """z-lab's rule where no key says otherwise: sliding layers are causal, full ones are not."""
    return tuple(window is not None for window in windows)


def _layouts(candidate: Candidate) -> list[Candidate]:
    return [replace(candidate, sample_from_anchor=layout) for layout in (False, True)]


def _styles(candidate: Candidate) -> list[Candidate]:
    return [replace(candidate, interleaved=style) for style in (False, True)]


def _causalities(candidate: Candidate) -> list[Candidate]:
    num_layers = len(candidate.windows)
    modes = [candidate.causal, causal_by_type(candidate.windows), (True,) * num_layers, (False,) * num_layers]
    return [replace(candidate, causal=causal) for causal in dict.fromkeys(modes)]


def swaps(candidate: Candidate) -> list[Candidate]:
    """Every exchange of two slots, and the ascending order."""
    layers = candidate.capture_layers
    found = [candidate, replace(candidate, capture_layers=tuple(sorted(layers)))]
    for one, other in combinations(range(len(layers)), 2):
        found.append(candidate.with_layer(one, layers[other]).with_layer(other, layers[one]))
    return list(dict.fromkeys(found))


def _unique(first: T, others: Iterable[T]) -> list[T]:
    return list(dict.fromkeys([first, *others]))
