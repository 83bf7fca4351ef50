"""Draws against probabilities computed row by row in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import exact_probs
from scipy import stats

from truedraft.engine import seeds
from truedraft.kernels import sampling
from truedraft.kernels.sampling_draw import DrawParams, draw

NUM_DRAWS = 20_000
SHAPES = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 4},
    {"top_k": 12},
    {"top_p": 0.8},
    {"top_p": 0.3, "temperature": 1.5},
    {"min_p": 0.2},
    {"top_k": 6, "top_p": 0.7},
    {"min_p": 0.05, "top_p": 0.9, "temperature": 1.3},
    {"min_p": 0.1, "top_k": 3, "top_p": 0.95, "temperature": 0.8},
]


def _logits(num_rows: int, vocab_size: int, seed: int = 0, spread: float = 1.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_frequencies_follow_the_exact_probabilities(shape: dict[str, float]) -> None:
    row_V = _logits(1, 12)[0]
    params = [DrawParams(uniform=seeds.uniform(11, i), **shape) for i in range(NUM_DRAWS)]  # type: ignore[arg-type]
    ids = draw(row_V.expand(NUM_DRAWS, -1).contiguous(), params)
    probs = exact_probs(row_V.numpy(), **shape)  # type: ignore[arg-type]
    counts = np.bincount(ids.numpy(), minlength=12)
    assert counts[probs == 0].sum() == 0
    if (probs > 0).sum() > 1:
        alive = probs > 0
        assert stats.chisquare(counts[alive], probs[alive] * NUM_DRAWS).pvalue > 1e-4


@pytest.mark.parametrize("vocab_size", [3, 64, 100, 257, 1000, 9001])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_inverse_cdf_of_the_reference(vocab_size: int, shape: dict[str, float]) -> None:
    """By candidates, by the highest values, and by all values."""
    for spread in (0.01, 1.0, 5.0):
        logits_RV = _logits(6, vocab_size, seed=vocab_size, spread=spread)
        uniforms = [0.0, 0.1234567, 0.5, 0.777, 0.999, 1 - 2**-53]
        ids = draw(logits_RV, [DrawParams(uniform=u, **shape) for u in uniforms]).tolist()  # type: ignore[arg-type]
        for row, (uniform, token) in enumerate(zip(uniforms, ids, strict=True)):
            probs = exact_probs(logits_RV[row].numpy(), **shape)  # type: ignore[arg-type]
            cdf = probs.cumsum()
            assert probs[token] > 0
            assert cdf[token] - probs[token] <= uniform + 1e-6
            assert uniform <= cdf[token] + 1e-6


_params = st.builds(
    DrawParams,
    uniform=st.one_of(st.just(0.0), st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True)),
    temperature=st.floats(1e-4, 2),
    top_k=st.integers(0, 200),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_params, min_size=1, max_size=6), st.integers(0, 2**31), st.sampled_from([5, 90, 700]))
def test_a_row_does_not_depend_on_the_others(params: list[DrawParams], seed: int, vocab_size: int) -> None:
    logits_RV = _logits(len(params), vocab_size, seed=seed, spread=3.0)
    together = draw(logits_RV, params).tolist()
    alone = [draw(logits_RV[i : i + 1], params[i : i + 1]).item() for i in range(len(params))]
    assert together == alone
    assert draw(logits_RV.flip(0), params[::-1]).tolist() == together[::-1]


@settings(max_examples=60, deadline=None)
@given(_params, st.sets(st.integers(0, 699), min_size=1, max_size=20), st.integers(0, 2**31))
def test_never_a_token_of_probability_zero(params: DrawParams, allowed: set[int], seed: int) -> None:
    row_V = torch.full((1, 700), float("-inf"))
    index = torch.tensor(sorted(allowed))
    row_V[0, index] = _logits(1, len(index), seed=seed)[0]
    assert draw(row_V, [params]).item() in allowed


def test_top_k_keeps_ties_and_top_p_takes_them_by_rising_id() -> None:
    row_V = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 0.0])
    uniforms = [i / 50 for i in range(50)]
    rows_RV = row_V.expand(50, -1).contiguous()
    by_k = {*draw(rows_RV, [DrawParams(u, top_k=3) for u in uniforms]).tolist()}
    assert by_k == {0, 1, 2, 3, 4}  # the third highest is 1.0, three times
    flat_RV = torch.zeros(50, 8)
    by_p = {*draw(flat_RV, [DrawParams(u, top_p=0.5) for u in uniforms]).tolist()}
    assert by_p == {0, 1, 2, 3}


def test_ties_past_the_candidates_are_seen() -> None:
    """2,000 equal tokens: 64 candidates do not settle what is kept."""
    flat_RV = torch.zeros(400, 2000)
    flat_RV[:, 1500:] = -30.0
    uniforms = [i / 400 for i in range(400)]
    for shape, expected in (({"top_k": 10}, 1500), ({"top_p": 0.5}, 750), ({"min_p": 0.5}, 1500)):
        ids = draw(flat_RV, [DrawParams(u, **shape) for u in uniforms]).tolist()  # type: ignore[arg-type]
        assert max(ids) < expected
        assert max(ids) >= expected * 0.99
        assert ids == sorted(ids)


def test_rows_with_nothing_to_choose() -> None:
    logits_RV = torch.zeros(5, 70)
    logits_RV[0, 3] = float("nan")
    logits_RV[1] = float("-inf")
    logits_RV[2, 1] = float("inf")
    logits_RV[3] = float("nan")
    for shape in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        ids = draw(logits_RV, [DrawParams(0.5, **shape)] * 5).tolist()  # type: ignore[arg-type]
        assert ids[:4] == [sampling.NO_TOKEN] * 4
        assert ids[4] >= 0
    assert sampling.greedy(logits_RV).tolist() == [-1, -1, -1, -1, 0]


@pytest.mark.parametrize("vocab_size", [1, 7, 128, 129, 1000])
def test_greedy_takes_the_lowest_id_of_the_highest(vocab_size: int) -> None:
    logits_RV = _logits(20, vocab_size).round()  # many ties
    assert sampling.greedy(logits_RV).tolist() == logits_RV.numpy().argmax(axis=1).tolist()


def test_logprobs_and_ranks() -> None:
    logits_RV = _logits(4, 50)
    ids_R = torch.tensor([0, 10, 20, 49])
    chosen_R, rank_R, top_RN, top_ids_RN = sampling.logprobs(logits_RV, ids_R, 3)
    for row in range(4):
        probs = exact_probs(logits_RV[row].numpy())
        order = np.argsort(-probs)
        assert chosen_R[row].item() == pytest.approx(np.log(probs[ids_R[row]]), abs=1e-5)
        assert rank_R[row].item() == 1 + order.tolist().index(ids_R[row].item())
        assert top_ids_RN[row].tolist() == order[:3].tolist()
        assert top_RN[row].tolist() == pytest.approx(np.log(probs[order[:3]]).tolist(), abs=1e-5)
