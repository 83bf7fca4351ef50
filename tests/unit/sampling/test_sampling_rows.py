"""sample_rows: speculation gives plain decoding's tokens, whatever shapes the rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from bpe_tokenizer import END, bpe_tokenizer
from sampling_reference import exact_probs

from truedraft.contract.request import Grammar, SamplingParams
from truedraft.contract.step import Extend
from truedraft.engine.grammar import GrammarCompiler, GrammarConstraint
from truedraft.engine.sampler import NoTokenError, sample_rows, score_rows
from truedraft.errors import BackendError

VOCAB = 400
EOS_IDS = (END,)


def _model(prefix: list[int]) -> torch.Tensor:
    """Logits_V of a made-up model: they depend on the last three tokens alone, so that texts repeat."""
    seed = hash(tuple(prefix[-3:])) & 0x7FFFFFFF
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def _extend(
    history: list[int],
    sampling: SamplingParams,
    *,
    seq_id: int = 0,
    seed: int = 5,
    num_prompt: int = 4,
    num_drafted: int = 0,
    constraint: GrammarConstraint | None = None,
) -> Extend:
    return Extend(
        seq_id=seq_id,
        token_ids=(history[-1],),
        start=len(history) - 1,
        num_drafted=num_drafted,
        samples=True,
        pages=(),
        captures=False,
        sampling=sampling,
        seed=seed,
        num_prompt_tokens=num_prompt,
        history=history,
        constraint=constraint,
    )


def _draft(history: list[int], plain: list[int], rng: np.random.Generator, num_drafted: int) -> list[int]:
    """A prefix of what plain decoding says next, then noise, so that any number is accepted."""
    done = len(history) - 4
    num_right = int(rng.integers(0, num_drafted + 1))
    right = plain[done : done + num_right]
    return right + rng.integers(0, VOCAB, num_drafted - len(right)).tolist()


def _decode(
    sampling: SamplingParams,
    num_tokens: int,
    *,
    constraint: GrammarConstraint | None = None,
    plain: list[int] | None = None,
) -> tuple[list[int], int]:
    """→ (answer, steps): plain decoding, or with drafts where `plain` says what it would give."""
    history, rng, num_steps = [9, 8, 7, 9], np.random.default_rng(0), 0
    while len(history) - 4 < num_tokens and (sampling.ignore_eos or history[-1] != END):
        draft = [] if plain is None else _draft(history, plain, rng, int(rng.integers(0, 8)))
        logits_RV = torch.stack([_model(history + draft[:i]) for i in range(1 + len(draft))])
        extend = _extend(history, sampling, num_drafted=len(draft), constraint=constraint)
        new = list(sample_rows(logits_RV, [extend], [draft], EOS_IDS).committed(0))
        if END in new and not sampling.ignore_eos:
            new = new[: new.index(END) + 1]
        if constraint is not None:
            constraint.commit(new)
        history += new
        num_steps += 1
    return history[4 : 4 + num_tokens], num_steps


KINDS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(temperature=1.0, top_p=0.9),
    "top_k and min_p": SamplingParams(temperature=1.3, top_k=20, min_p=0.02),
    "penalties, greedy": SamplingParams(
        temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4
    ),
    "penalties and bias": SamplingParams(
        temperature=0.7, frequency_penalty=1.0, logit_bias=((17, 6.0), (18, -100.0)), top_p=0.95
    ),
    "min_tokens": SamplingParams(temperature=0.9, min_tokens=30, logit_bias=((END, 12.0),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_speculation_gives_plain_tokens(kind: str) -> None:
    plain, num_plain_steps = _decode(KINDS[kind], 60)
    drafted, num_steps = _decode(KINDS[kind], 60, plain=plain)
    assert drafted == plain
    assert num_plain_steps == len(plain)
    assert num_steps < num_plain_steps  # drafts were accepted
    if kind == "min_tokens":
        assert plain.index(END) == len(plain) - 1 >= 30


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", r"(yes|no)(, (yes|no)){0,30}"),
        Grammar("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})),
    ],
    ids=lambda grammar: grammar.kind,
)
def test_speculation_under_a_grammar(grammar: Grammar, temperature: float) -> None:
    compiler = GrammarCompiler(bpe_tokenizer().to_str(), vocab_size=VOCAB, eos_ids=EOS_IDS)
    asked = SamplingParams(temperature=temperature, min_tokens=6)
    plain, _ = _decode(asked, 50, constraint=compiler.compile(grammar))
    drafted, num_steps = _decode(asked, 50, constraint=compiler.compile(grammar), plain=plain)
    assert drafted == plain
    assert num_steps < len(plain)
    assert compiler.compile(grammar)._matcher.validate_tokens([t for t in plain if t != END]) == len(
        [t for t in plain if t != END]
    )


def test_sequences_beside_each_other_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    extends, drafts, rows = [], [], []
    for seq_id, asked in enumerate(KINDS.values()):
        history = [9, 8, 7, *rng.integers(0, VOCAB, 5 + seq_id).tolist()]
        draft = rng.integers(0, VOCAB, seq_id % 4).tolist()
        asked = replace(asked, logprobs=seq_id % 3 if seq_id % 2 else None)
        extends.append(_extend(history, asked, seq_id=seq_id, seed=seq_id, num_drafted=len(draft)))
        drafts.append(draft)
        rows += [_model(history + draft[:i]) for i in range(1 + len(draft))]
    extends.insert(2, replace(extends[0], seq_id=99, samples=False))  # a chunk of a prompt
    drafts.insert(2, [])
    logits_RV = torch.stack(rows)
    before_RV = logits_RV.clone()
    together = sample_rows(logits_RV, extends, drafts, EOS_IDS)
    assert torch.equal(logits_RV, before_RV)
    assert together.committed(2) == ()
    start = 0
    for place, (extend, draft) in enumerate(zip(extends, drafts, strict=True)):
        if extend.samples:
            end = start + 1 + len(draft)
            alone = sample_rows(logits_RV[start:end], [extend], [draft], EOS_IDS)
            assert alone.target_ids[0] == together.target_ids[place]
            assert alone.num_accepted[0] == together.num_accepted[place]
            assert (alone.logprobs[0] is None) == (together.logprobs[place] is None)
            start = end


def test_no_extend_samples() -> None:
    extend = replace(_extend([1, 2], KINDS["greedy"]), samples=False)
    sampled = sample_rows(torch.empty(0, VOCAB), [extend], [()], EOS_IDS)
    assert sampled.committed(0) == ()
    with pytest.raises(ValueError, match="rows"):
        sample_rows(torch.empty(1, VOCAB), [extend], [()], EOS_IDS)


def test_logprobs_of_committed_rows_come_from_raw_logits() -> None:
    asked = SamplingParams(temperature=0, logprobs=3, logit_bias=((7, 1000.0),))
    logits_RV = torch.stack([_model([i]) for i in range(4)])
    sampled = sample_rows(logits_RV, [_extend([1, 2, 3, 4], asked, num_drafted=3)], [[7, 7, 5]], EOS_IDS)
    assert sampled.target_ids[0] == (7, 7, 7, 7)
    assert sampled.num_accepted == (2,)
    logprobs = sampled.logprobs[0]
    assert logprobs is not None
    assert len(logprobs) == 3
    for row, at in enumerate(logprobs):
        probs = exact_probs(logits_RV[row].numpy())
        order = np.argsort(-probs).tolist()
        assert at.chosen.token_id == 7
        assert at.chosen.logprob == pytest.approx(np.log(probs[7]), abs=1e-4)
        assert at.chosen.rank == order.index(7) + 1
        assert [top.token_id for top in at.top] == order[:3]
        assert [top.rank for top in at.top] == [1, 2, 3]
    assert score_rows(logits_RV, [], 2) == ()
    assert score_rows(logits_RV[:1], [3], 0)[0].top == ()


class _Fails:
    def masks(self, draft_ids: object) -> np.ndarray:
        raise BackendError("the grammar is past its limits")


def test_sequences_without_a_token_are_named_and_the_others_go_on() -> None:
    logits_RV = torch.stack([_model([i]) for i in range(8)])
    logits_RV[1] = float("nan")
    logits_RV[7] = float("nan")  # past what is committed: not asked for
    greedy = SamplingParams(temperature=0)
    best = logits_RV[0].argmax().item()
    no_token = replace(greedy, logit_bias=tuple((i, float("-inf")) for i in range(VOCAB)), temperature=0.7)
    extends = [
        _extend([1], greedy, seq_id=10, num_prompt=1, num_drafted=1),
        _extend([1], no_token, seq_id=11, num_prompt=1),
        _extend([1], greedy, seq_id=12, num_prompt=1, constraint=_Fails()),  # type: ignore[arg-type]
        _extend([1], replace(greedy, logprobs=0), seq_id=13, num_prompt=1),
        _extend([1], greedy, seq_id=14, num_prompt=1, num_drafted=2),
    ]
    wrong = (logits_RV[5].argmax().item() + 1) % VOCAB
    drafts = [[best], [], [], [], [wrong, 3]]
    with pytest.raises(NoTokenError) as caught:
        sample_rows(logits_RV, extends, drafts, EOS_IDS)
    reasons, sampled = caught.value.reasons, caught.value.sampled
    assert set(reasons) == {10, 11, 12}
    assert "finite" in reasons[10]
    assert "ruled out" in reasons[11]
    assert "past its limits" in reasons[12]
    assert sampled.committed(0) == (best,)  # what came before is sound
    assert sampled.committed(1) == ()
    assert sampled.committed(3) == (logits_RV[4].argmax().item(),)
    assert sampled.logprobs[3] is not None
    assert sampled.committed(4) == (logits_RV[5].argmax().item(),)
