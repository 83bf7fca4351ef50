"""Edits of logits, against definitions read literally."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import penalised

from truedraft.contract.request import SamplingParams
from truedraft.contract.step import Extend
from truedraft.engine.row_edits import RowEdits
from truedraft.kernels.sampling_shape import mask_

VOCAB = 40
_ids = st.lists(st.integers(0, VOCAB - 1), max_size=8)


def _extend(
    history: list[int], num_prompt: int, sampling: SamplingParams, constraint: object = None
) -> Extend:
    return Extend(
        seq_id=1,
        token_ids=(history[-1],),
        start=len(history) - 1,
        num_drafted=0,
        samples=True,
        pages=(),
        captures=False,
        sampling=sampling,
        seed=0,
        num_prompt_tokens=num_prompt,
        history=history,
        constraint=constraint,  # type: ignore[arg-type]
    )


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    output=_ids,
    draft=_ids,
    repetition=st.floats(0.5, 2),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
)
def test_penalties_of_every_row(
    prompt: list[int],
    output: list[int],
    draft: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    asked = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    logits_RV = torch.randn(2 + len(draft), VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    edits = RowEdits(VOCAB)
    edits.add(_extend(prompt + output, len(prompt), asked), draft, 1, ())  # row 0 is another's
    shaped_RV = edits.apply(logits_RV)
    assert torch.equal(shaped_RV[0], logits_RV[0])
    for row in range(1 + len(draft)):
        expected = penalised(
            logits_RV[1 + row].numpy().astype(np.float64),
            prompt,
            output + draft[:row],
            repetition=repetition,
            presence=presence,
            frequency=frequency,
        )
        np.testing.assert_allclose(shaped_RV[1 + row].numpy(), expected, atol=2e-5)


def test_bias_comes_before_penalties_and_repeats_take_the_last() -> None:
    asked = SamplingParams(logit_bias=((3, 9.0), (3, 2.0), (5, -1.0), (999, 4.0)), repetition_penalty=2.0)
    edits = RowEdits(VOCAB)
    edits.add(_extend([3], 1, asked), [], 0, ())
    shaped_V = edits.apply(torch.full((1, VOCAB), -1.0))[0]
    assert shaped_V[3].item() == 0.5  # (−1 + 2) / 2
    assert shaped_V[5].item() == -2.0
    assert shaped_V[6].item() == -1.0


def test_min_tokens_bans_ends_up_to_its_own_row() -> None:
    asked = SamplingParams(min_tokens=4, stop_token_ids=(7, 999))
    edits = RowEdits(VOCAB)
    edits.add(_extend([1, 2, 3, 4], 2, asked), [5, 5, 5], 0, (0,))  # rows give outputs 2, 3, 4, 5
    shaped_RV = edits.apply(torch.zeros(4, VOCAB))
    banned = [sorted((row == float("-inf")).nonzero().flatten().tolist()) for row in shaped_RV]
    assert banned == [[0, 7], [0, 7], [], []]


class _Masks:
    """A constraint that allows the same few tokens in every row."""

    def __init__(self, *allowed: int) -> None:
        self._allowed = allowed

    def masks(self, draft_ids: list[int]) -> np.ndarray:
        masks = np.zeros((1 + len(draft_ids), 2), np.int32)
        for token in self._allowed:
            masks.view(np.uint32)[:, token // 32] |= np.uint32(1 << token % 32)
        return masks


def test_a_grammar_that_has_ended_wins_over_min_tokens() -> None:
    asked = SamplingParams(min_tokens=4)
    for allowed, expected in (((0, 31, 32), [31, 32]), ((0,), [0])):
        edits = RowEdits(VOCAB)
        edits.add(_extend([1], 1, asked, _Masks(*allowed)), [9], 0, (0,))
        shaped_RV = edits.apply(torch.zeros(2, VOCAB))
        assert [row.isfinite().nonzero().flatten().tolist() for row in shaped_RV] == [expected] * 2


@given(
    st.lists(st.sets(st.integers(0, 95), min_size=1), min_size=1, max_size=4), st.sampled_from([70, 96, 130])
)
def test_masks_bit_by_bit(allowed: list[set[int]], vocab_size: int) -> None:
    masks = np.zeros((len(allowed), 3), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            masks[row, token // 32] |= np.uint32(1 << token % 32)
    logits_RV = torch.zeros(len(allowed) + 1, vocab_size)
    mask_(logits_RV, torch.arange(1, len(allowed) + 1), torch.from_numpy(masks.view(np.int32)))
    assert logits_RV[0].isfinite().all()
    for row, tokens in enumerate(allowed, 1):
        kept = set(logits_RV[row].isfinite().nonzero().flatten().tolist())
        assert kept == {token for token in tokens if token < vocab_size}
