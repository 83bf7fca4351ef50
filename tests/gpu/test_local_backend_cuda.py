"""One GPU from the same install: the local backend on CUDA says what it says on the CPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from toy import toy_pair
from toy_files import FILE_VOCAB, save_pair

from truedraft.backends.local import LocalBackend
from truedraft.checkpoint.drafter import read_drafter
from truedraft.checkpoint.target import read_target
from truedraft.config.schema import EngineConfig
from truedraft.contract.request import GenerateRequest, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPTS = ["Hello", "one two three four five six seven", "x" * 90]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def paths(request, tmp_path_factory):
    pair = toy_pair(
        request.param,
        agreement="mixed",
        vocab_size=FILE_VOCAB,
        window=12 if request.param == "qwen3" else None,
    )
    return save_pair(Path(tmp_path_factory.mktemp("pair")), *pair)


def load(paths, device: str, dtype: str = "float32") -> LocalBackend:
    config = EngineConfig(device=device, dtype=dtype, kernels="torch", max_num_seqs=4, page_len=16)
    return LocalBackend.load(
        read_target(str(paths.target)), read_drafter(str(paths.drafter)), config, name="toy"
    )


async def answer(backend: LocalBackend, prompt: str, speculation, **sampling):
    params = SamplingParams(max_tokens=48, ignore_eos=True, **{"temperature": 0.0, **sampling})
    request = GenerateRequest("r", backend.encode(prompt), params, speculation)
    tokens: list[int] = []
    async for delta in backend.generate(request):
        tokens.extend(delta.token_ids)
    assert delta.error is None
    return tokens, delta.usage.speculation


async def answers(backend: LocalBackend, speculation, **sampling) -> list[list[int]]:
    together = await asyncio.gather(*(answer(backend, prompt, speculation, **sampling) for prompt in PROMPTS))
    return [tokens for tokens, _ in together]


def run(backend: LocalBackend, *calls: tuple) -> list:
    async def all_of_them():
        try:
            return [await answers(backend, speculation, **sampling) for speculation, sampling in calls]
        finally:
            await backend.close()

    return asyncio.run(all_of_them())


def test_cuda_says_what_the_cpu_says_with_and_without_drafts(paths):
    (expected,) = run(load(paths, "cpu"), ("off", {}))
    plain, drafted, adaptive = run(load(paths, "cuda"), ("off", {}), (7, {}), ("auto", {}))
    assert plain == expected
    assert drafted == plain
    assert adaptive == plain


def test_sampling_on_cuda_does_not_depend_on_drafts(paths):
    options = {"temperature": 0.9, "seed": 5, "top_p": 0.9, "top_k": 30}
    plain, drafted = run(load(paths, "cuda"), ("off", options), (7, options))
    assert drafted == plain


def test_bfloat16_drafts_are_accepted(paths):
    async def go():
        backend = load(paths, "cuda", "bfloat16")
        _, stats = await answer(backend, PROMPTS[0], 7)
        await backend.close()
        return stats

    stats = asyncio.run(go())
    assert stats.num_accepted > 0
