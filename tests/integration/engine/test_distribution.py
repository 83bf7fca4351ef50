"""At T > 0, speculation on: what is emitted follows the target's exact probabilities."""

from __future__ import annotations

from collections import Counter

import torch
from driver import Driver, ask
from scipy import stats as scipy_stats
from toy import toy_pair

torch.set_num_threads(1)
NUM_DRAWS = 20_000
VOCAB = 48
PROMPT = (5, 9, 7)
TEMPERATURE = 0.9


def exact_pairs(target) -> torch.Tensor:
    """P(second, third token) [V, V] after the prompt, summed over the first."""
    driver = Driver(target, page_len=8, max_num_seqs=64)

    def next_probs(prefixes: list[tuple[int, ...]]) -> torch.Tensor:
        requests = [
            ask((*PROMPT, *prefix), max_tokens=1, speculation="off", logprobs=VOCAB) for prefix in prefixes
        ]
        rows = []
        for answer in driver.run(requests):
            logprobs = torch.empty(VOCAB, dtype=torch.float64)
            for token in answer.logprobs[0].top:
                logprobs[token.token_id] = token.logprob
            rows.append(torch.softmax(logprobs / TEMPERATURE, 0))
        return torch.stack(rows)

    first = next_probs([()])[0]
    second = next_probs([(a,) for a in range(VOCAB)])
    third = next_probs([(a, b) for a in range(VOCAB) for b in range(VOCAB)]).view(VOCAB, VOCAB, VOCAB)
    return torch.einsum("a,ab,abc->bc", first, second, third)


def test_two_token_continuations_follow_the_target():
    target, drafter = toy_pair("llama", agreement="mixed", vocab_size=VOCAB, block_len=4)
    driver = Driver(target, drafter, page_len=8, num_pages=256, max_num_seqs=64)
    requests = [
        ask(PROMPT, max_tokens=4, speculation=3, temperature=TEMPERATURE, seed=seed)
        for seed in range(NUM_DRAWS)
    ]
    answers = driver.run(requests)
    counts = Counter((answer.token_ids[1], answer.token_ids[2]) for answer in answers)
    assert sum(answer.stats.num_accepted for answer in answers) > NUM_DRAWS / 10
    assert sum(answer.stats.num_drafted - answer.stats.num_accepted for answer in answers) > NUM_DRAWS / 10
    expected = exact_pairs(target).flatten() * NUM_DRAWS
    observed = torch.tensor([counts[divmod(pair, VOCAB)] for pair in range(VOCAB * VOCAB)]).double()
    rare = expected < 5  # pooled, as the test's approximation asks for
    observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    result = scipy_stats.chisquare(observed.numpy(), expected.numpy())
    assert result.pvalue > 1e-4, result
