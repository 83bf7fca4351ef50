"""Recovery from end to end: measure, search, judge. Loading and writing are others' business."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from truedraft.contract.specs import DrafterSpec
from truedraft.errors import ConfigError
from truedraft.kernels.reference import torch_ops
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.interface import Target
from truedraft.models.weights import FolderSource, fill
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.decide import Judge, aspects, window_note
from truedraft.recovery.measure import Measurer
from truedraft.recovery.measured import tau_of, walk
from truedraft.recovery.search import Search
from truedraft.recovery.space import Space, build_space, capture_starts
from truedraft.recovery.start import Start
from truedraft.recovery.texts import Sample, Text, build_sample, draw_anchors, every_anchor
from truedraft.recovery.verdict import Row

QUICK_ANCHORS, QUICK_TEXTS = 24, 6
CLOSE_ANCHORS = 72
JUDGED_ANCHORS = 144
DRAFTED_ANCHORS = 72
BLOCK_MARGIN = 0.01  # nats: see _pick_block_len
USELESS_TAU = 1.1  # a drafter that commits fewer tokens a round than this drafts nothing

OnProgress = Callable[[str, int, int], None]
"""Hears (stage, done, in all)."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found. τ is that of decoding the texts greedily; None where the config has none to run."""

    rows: tuple[Row, ...]
    final: Candidate
    tau: float
    declared_tau: float | None
    loss: float
    declared_loss: float | None
    num_texts: int
    num_tokens: int
    num_measured: int

    @property
    def usable(self) -> bool:
        return self.tau >= USELESS_TAU

    @property
    def changed(self) -> bool:
        return any(row.changed or not row.said for row in self.rows)


def load_measured_drafter(
    spec: DrafterSpec, target: Target, dtype: torch.dtype, device: torch.device
) -> DFlashDrafter:
    """→ the drafter with its weights, config.json unread. Raises CheckpointError, PairingError."""
    drafter = DFlashDrafter(spec, target, torch_ops(), dtype, device)
    with FolderSource(Path(spec.path)) as source:
        fill(drafter, source, device)
    return drafter


@dataclass(frozen=True, slots=True)
class Samples:
    """Anchors for the quick look, the closer one, the verdict, and its τ; drawn apart from each other."""

    quick: Sample
    close: Sample
    judged: Sample
    drafted: Sample
    every: Sample

    @classmethod
    def of(cls, texts: Sequence[Text], tail_len: int, device: torch.device) -> Samples:
        """Raises ConfigError where the texts are too short."""

        def drawn(count: int, seed: int, num_texts: int | None = None) -> Sample:
            anchors = draw_anchors(texts, count, tail_len=tail_len, seed=seed, num_texts=num_texts)
            return build_sample(texts, anchors, device)

        every = build_sample(texts, every_anchor(texts), device)
        quick = drawn(QUICK_ANCHORS, 1, QUICK_TEXTS)
        if quick.num_anchors < QUICK_ANCHORS // 2:
            raise ConfigError(
                "The calibration texts are too short to measure on",
                seen=f"{quick.num_anchors} usable places",
                remedy="Give more or longer prompts, or more tokens an answer",
            )
        return cls(quick, drawn(CLOSE_ANCHORS, 2), drawn(JUDGED_ANCHORS, 3), drawn(DRAFTED_ANCHORS, 4), every)


def recover(
    start: Start,
    drafter: DFlashDrafter,
    target: Target,
    texts: Sequence[Text],
    states_TX: Tensor,
    *,
    special_ids: Iterable[int] = (),
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Recovery:
    """Search, then judge every value. Takes the drafter over. Raises ConfigError for too little text."""
    measurer = Measurer(drafter, target, texts, states_TX)
    samples = Samples.of(texts, max(8, start.candidate.block_len), drafter.device)
    search = _searcher(measurer, samples, on_progress)
    space = _space(start, target, samples, special_ids)
    found = search.run(
        [start.candidate, *space.with_lists(start.candidate)], space.dimensions(start.candidate)
    )
    found = _pick_block_len(found, space, measurer, samples, declared="block_len" in start.said)
    judge = Judge(measurer, samples.judged, samples.drafted, search)
    found = judge.natural_layers(found, space.lists)
    rows, final = _judged(found, space, start, judge, on_progress)
    on_progress("decoding", 0, 2)
    after = measurer.drafts(final, samples.every)
    on_progress("decoding", 1, 2)
    before = None
    if start.said:
        before = after if final == start.candidate else measurer.drafts(start.candidate, samples.every)
    on_progress("decoding", 2, 2)
    if before is not None and tau_of(walk(before, texts)) >= tau_of(walk(after, texts)):
        rows, final, after = tuple(map(_kept, rows)), start.candidate, before
    return Recovery(
        rows=rows,
        final=final,
        tau=tau_of(walk(after, texts)),
        declared_tau=None if before is None else tau_of(walk(before, texts)),
        loss=after.loss,
        declared_loss=None if before is None else before.loss,
        num_texts=len(texts),
        num_tokens=len(states_TX),
        num_measured=search.num_measured,
    )


def _kept(row: Row) -> Row:
    """A correction has to commit more tokens: less loss alone does not change a config."""
    if not row.changed:
        return row
    alike = (row.best, *(one for one in row.alike if one != row.declared))
    note = "undecided: another value has less loss, but the config found commits no more tokens a round"
    return replace(row, best=row.declared, alike=alike, note=note)


def _searcher(measurer: Measurer, samples: Samples, on_progress: OnProgress) -> Search:
    levels = (samples.quick, samples.close)
    both: dict[tuple[Candidate, int], dict[bool, dict[int, float]]] = {}

    def loss(candidate: Candidate, level: int) -> dict[int, float]:
        key = (replace(candidate, sample_from_anchor=False), level)
        if key not in both:
            found = measurer.losses(candidate, levels[level])
            both[key] = {layout: measured.loss_by_text() for layout, measured in found.items()}
        return both[key][candidate.sample_from_anchor]

    return Search(loss, lambda done, total: on_progress("searching", done, total))


def _space(start: Start, target: Target, samples: Samples, special_ids: Iterable[int]) -> Space:
    return build_space(
        num_target_layers=target.spec.num_layers,
        hidden_size=start.spec.hidden_size,
        vocab_size=target.spec.vocab_size,
        longest_context=int(samples.close.anchors_A.max()),
        target_theta=target.spec.attention.rope.theta,
        special_ids=special_ids,
        family=start.family,
        declared=start.candidate,
        lists=_layer_lists(start, target),
    )


def _layer_lists(start: Start, target: Target) -> list[tuple[int, ...]]:
    """Lists that someone may have meant, likeliest first."""
    held = start.candidate.capture_layers
    declared = held if "capture_layers" in start.said else None
    return capture_starts(declared, target.spec.num_layers, len(held), start.family)


def _pick_block_len(
    found: Candidate, space: Space, measurer: Measurer, samples: Samples, *, declared: bool
) -> Candidate:
    """→ with the block length of least loss on the first drafted tokens, which every length has.

    A block of another length than the trained one shifts what every position is used to. The length
    in hand stays unless another is better by BLOCK_MARGIN.
    """
    options = space.with_block_lens(found)
    shared = min(one.block_len for one in options) - 1

    def loss(candidate: Candidate) -> float:
        measured = measurer.losses(candidate, samples.close)[candidate.sample_from_anchor]
        by_text = measured.loss_by_text(shared)
        return sum(by_text.values()) / len(by_text)

    losses = {one: loss(one) for one in options}
    best = min(options, key=lambda one: losses[one])
    margin = BLOCK_MARGIN if declared else 0.0
    return best if losses[best] < losses[found] - margin else found


def _judged(
    found: Candidate, space: Space, start: Start, judge: Judge, on_progress: OnProgress
) -> tuple[tuple[Row, ...], Candidate]:
    """Every row in turn; a value that one row settles on counts in the next."""
    rows: list[Row] = []
    listed = aspects(space, start.candidate)
    for index, aspect in enumerate(listed):
        on_progress("judging", index, len(listed))
        row, found = judge.row(aspect, found, start)
        if aspect.field == "windows":
            row = replace(row, note=window_note(found, start.candidate, space.longest_context))
        rows.append(row)
    on_progress("judging", len(listed), len(listed))
    return tuple(rows), found
