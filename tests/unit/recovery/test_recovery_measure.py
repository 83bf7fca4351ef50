"""What is measured at many anchors at once is what the engine drafts, one round at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from driver import Driver, ask
from toy import toy_drafter, toy_pair, toy_target

from truedraft.contract.step import Extend, StepPlan
from truedraft.kernels.reference import torch_ops
from truedraft.recovery.answers import write_answers
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.measure import Measurer, swap_rotary_order
from truedraft.recovery.states import StateCache, capture_states
from truedraft.recovery.texts import Text, build_sample, every_anchor

CPU = torch.device("cpu")


def random_texts(num_texts: int, num_tokens: int, seed: int = 0) -> list[Text]:
    draw = torch.Generator().manual_seed(seed)
    return [
        Text(tuple(torch.randint(4, 97, (num_tokens,), generator=draw).tolist()), 5) for _ in range(num_texts)
    ]


def states_of(target, texts, cache=None):
    return capture_states(
        target,
        texts,
        ops=target.ops,
        device=CPU,
        cache=cache or StateCache(None),
        on_step=lambda done, total: None,
    ).float()


def engine_drafts(target, drafter, text: Text, anchor: int) -> list[int]:
    """One round of the real engine, after a prefill of all tokens before the anchor."""
    driver = Driver(target, drafter, num_pages=64, page_len=4)
    request = ask(text.token_ids)
    pages = tuple(range(40))

    def extend(start, tokens, num_drafted):
        return Extend(
            seq_id=0,
            token_ids=tuple(tokens),
            start=start,
            num_drafted=num_drafted,
            samples=num_drafted > 0,
            pages=pages,
            captures=True,
            sampling=request.sampling,
            seed=0,
            num_prompt_tokens=1,
            history=text.token_ids,
        )

    driver.runner.run(StepPlan(0, (extend(0, text.token_ids[:anchor], 0),)))
    most = drafter.spec.num_drafted
    return list(driver.runner.draft([extend(anchor, [text.token_ids[anchor]], most)]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 6},
        {"window": 3, "causal": False},
        {"sample_from_anchor": True},
        {"head_size": 60},
    ],
)
def test_hits_are_those_of_the_engine(options):
    target = toy_target("qwen3", seed=3)
    drafter = toy_drafter(target, seed=4, block_len=5, **options)
    texts = random_texts(2, 24)
    expected = {
        (index, anchor): engine_drafts(target, drafter, text, anchor)
        for index, text in enumerate(texts)
        for anchor in (5, 11, 17)
    }
    # The text says what the engine drafts at one anchor, so that hits are seen to be hits.
    ids = list(texts[0].token_ids)
    ids[18 : 18 + drafter.spec.num_drafted] = expected[0, 17]
    texts[0] = Text(tuple(ids), 5)
    states = states_of(target, texts)
    measurer = Measurer(drafter, target, texts, states)
    sample = build_sample(texts, {0: [5, 11, 17], 1: [5, 11, 17]})
    found = measurer.drafts(Candidate.of(drafter.spec), sample)
    for row, (text, anchor) in enumerate(zip(found.text_of_A, found.anchors_A, strict=True)):
        behind = texts[text].token_ids[anchor + 1 : anchor + 1 + drafter.spec.num_drafted]
        want = [a == b for a, b in zip(expected[int(text), int(anchor)], behind, strict=False)]
        assert found.hits_AJ[row, : len(want)].tolist() == want
    assert found.hits_AJ[2].all()


def test_losses_of_both_layouts_are_those_of_the_whole_head():
    """97 tokens are all on the shortlist, so that the quick loss is the exact one."""
    target, drafter = toy_pair("llama", seed=5, block_len=6)
    texts = random_texts(3, 30)
    measurer = Measurer(drafter, target, texts, states_of(target, texts))
    sample = build_sample(texts, {0: [6, 20], 2: [9]})
    candidate = Candidate.of(drafter.spec)
    both = measurer.losses(candidate, sample)
    for layout in (False, True):
        whole = measurer.drafts(replace(candidate, sample_from_anchor=layout), sample)
        np.testing.assert_allclose(both[layout].loss_AJ, whole.loss_AJ[:, :5], atol=1e-4)
    assert not np.allclose(both[False].loss_AJ, both[True].loss_AJ)


def test_tokens_past_the_end_and_outside_a_short_head_have_no_loss():
    target = toy_target("llama")
    drafter = toy_drafter(target, block_len=6, head_size=48)
    texts = random_texts(1, 30)
    measurer = Measurer(drafter, target, texts, states_of(target, texts))
    found = measurer.drafts(Candidate.of(drafter.spec), build_sample(texts, {0: [10, 27]}))
    kept = {i * 97 // 48 for i in range(48)}
    known = [token in kept for token in texts[0].token_ids[11:16]]
    assert (~np.isnan(found.loss_AJ[0])).tolist() == known
    assert np.isnan(found.loss_AJ[1, 2:]).all()


def test_products_by_slot_sum_up_to_fc():
    target = toy_target("llama", num_layers=5)
    drafter = toy_drafter(target, capture_layers=(3, -1, 0))
    texts = random_texts(2, 12)
    states = states_of(target, texts)
    fc = drafter.fc.weight.clone()
    measurer = Measurer(drafter, target, texts, states)
    for layers in ((3, -1, 0), (4, 4, 1)):
        side_by_side = torch.cat([states[:, (i + 1) * 32 : (i + 2) * 32] for i in layers], dim=1)
        torch.testing.assert_close(measurer._fused(layers), side_by_side @ fc.T, atol=1e-4, rtol=1e-4)


def test_products_are_forgotten_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr("truedraft.recovery.measure.PRODUCT_BYTES", 1)
    target, drafter = toy_pair()
    texts = random_texts(1, 12)
    measurer = Measurer(drafter, target, texts, states_of(target, texts))
    first = measurer._fused((0, 2))
    measurer._fused((1, 3))
    assert len(measurer._products) <= measurer.num_slots + 1
    torch.testing.assert_close(measurer._fused((0, 2)), first)


def test_interleaved_rotation_is_that_of_neighbours():
    target, drafter = toy_pair(seed=2)
    texts = random_texts(1, 24)
    before = {name: value.clone() for name, value in drafter.state_dict().items()}
    swap_rotary_order(drafter, to_interleaved=True)
    # After the swap, rotating halves must equal rotating neighbours before it, channels reordered.
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    x = torch.randn(3, 1, 8)
    cos, sin = drafter.stack.rope(torch.tensor([1, 5, 9]))
    halves = torch_ops().rope(x[..., order], cos, sin)
    even, odd = x[..., 0::2], x[..., 1::2]
    c, s = cos[:, None, :4], sin[:, None, :4]
    neighbours = torch.stack((even * c - odd * s, odd * c + even * s), dim=-1).flatten(-2)
    torch.testing.assert_close(halves, neighbours[..., order])
    weight = drafter.stack.in_order[0].attention.qkv.weight
    assert torch.equal(weight[:8], before["stack.layers.0.attention.qkv.weight"][:8][order])
    swap_rotary_order(drafter, to_interleaved=False)
    assert all(torch.equal(value, before[name]) for name, value in drafter.state_dict().items())
    measurer = Measurer(drafter, target, texts, states_of(target, texts))
    sample = build_sample(texts, every_anchor(texts))
    plain = Candidate.of(drafter.spec)
    first = measurer.losses(plain, sample)[False].loss
    other = measurer.losses(replace(plain, interleaved=True), sample)[False].loss
    assert measurer.losses(plain, sample)[False].loss == first != other


def test_states_are_those_of_the_layers():
    target = toy_target("qwen3", num_layers=3)
    texts = random_texts(1, 10)
    states = states_of(target, texts)
    embedded = target.embed(torch.tensor(texts[0].token_ids))
    torch.testing.assert_close(states[:, :32], embedded.bfloat16().float())
    assert states.shape == (10, 4 * 32)


def test_states_and_answers_are_not_made_twice(tmp_path):
    target = toy_target("llama")
    texts = random_texts(3, 10)
    cache = StateCache(tmp_path / "kept")
    cache.save_texts(texts)
    first = states_of(target, texts, cache)
    (tmp_path / "kept" / "states-001.safetensors").write_bytes(b"cut short")
    target_forward, calls = target.forward, []

    def counted(*args, **kwargs):
        calls.append(1)
        return target_forward(*args, **kwargs)

    target.forward = counted
    assert torch.equal(states_of(target, texts, cache), first)
    assert len(calls) == 1, "only the damaged one is made again"
    assert cache.load_texts() == texts


def test_answers_are_the_targets_own():
    target = toy_target("llama", seed=6, agreement="mixed")
    prompts = [(1, 5, 9), (1, 7, 8, 30, 31)]
    heard = []
    texts = write_answers(
        target,
        prompts,
        num_tokens=12,
        ops=target.ops,
        device=CPU,
        on_step=lambda done, total: heard.append((done, total)),
    )
    plain = Driver(target).run(
        [ask(prompt, max_tokens=12, speculation="off", ignore_eos=False) for prompt in prompts]
    )
    for text, prompt, answer in zip(texts, prompts, plain, strict=True):
        assert text.token_ids == (*prompt, *answer.token_ids)
        assert text.num_prompt_tokens == len(prompt)
    assert heard[-1][0] == sum(len(answer.token_ids) for answer in plain)
