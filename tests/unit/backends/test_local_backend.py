"""Loading and closing the local backend: odd sizes, settings that cannot be, an engine that is gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from local_pair import engine_config, local_backend, pair_specs

from truedraft.backends.local import LocalBackend
from truedraft.contract.request import FinishReason, GenerateRequest, Grammar, SamplingParams, TokenDelta
from truedraft.errors import BackendError, CapacityError, ConfigError


def request(backend: LocalBackend, text: str = "Hello", **fields: Any) -> GenerateRequest:
    sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": 8} | fields))
    return GenerateRequest("r", backend.encode(text), sampling)


async def deltas_of(backend: LocalBackend, asked: GenerateRequest) -> list[TokenDelta]:
    async with asyncio.timeout(20.0):
        return [delta async for delta in backend.generate(asked)]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_model_len": 2, "max_num_seqs": 1},
        {"max_model_len": 16, "max_num_seqs": 1},
        {"max_model_len": 33, "page_len": 1, "max_num_seqs": 2},
        {"page_len": 512, "num_pages": 2},
    ],
)
async def test_costs_are_measured_in_caches_of_any_size(fields: dict[str, Any]) -> None:
    backend = local_backend(measure_costs=True, **fields)
    curve = backend.cost_curve()
    assert list(curve) == sorted(curve)
    assert min(curve) == 1
    assert all(ms > 0 for ms in curve.values())
    [*_, last] = await deltas_of(backend, GenerateRequest("r", (5,), SamplingParams(max_tokens=1)))
    assert last.finish_reason is not None
    await backend.close()


@pytest.mark.parametrize(
    ("fields", "error", "part"),
    [
        ({"max_model_len": 513}, ConfigError, "at most 512"),
        ({"num_pages": 32}, CapacityError, "at least 33 pages"),
        ({"kv_memory_bytes": 1000}, CapacityError, "--max-model-len"),
        ({"speculation": 8}, ConfigError, "1 to 7"),
        ({"device": "cuda:99"}, ConfigError, "CUDA"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    fields: dict[str, Any], error: type[Exception], part: str
) -> None:
    target, drafter = pair_specs()
    with pytest.raises(error, match=part):
        LocalBackend.load(target, drafter, engine_config(**fields), name="toy")


async def test_requests_without_a_seed_follow_the_configured_one() -> None:
    texts = []
    for seed in (1, 1, 2):
        backend = local_backend(seed=seed)
        asked = [request(backend, temperature=1.0, max_tokens=24) for _ in range(2)]
        texts.append([[d.token_ids for d in await deltas_of(backend, one)] for one in asked])
        await backend.close()
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]


async def test_closing_lets_answers_end_and_takes_no_new_ones() -> None:
    backend = local_backend()
    running = asyncio.create_task(deltas_of(backend, request(backend, max_tokens=60, ignore_eos=True)))
    while not backend.stats().num_running:
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(backend.close(drain_s=20.0))
    await asyncio.sleep(0)
    with pytest.raises(BackendError, match="shutting down"):
        await deltas_of(backend, request(backend))
    assert (await running)[-1].finish_reason is FinishReason.LENGTH
    await closing
    await backend.close()
    assert not await backend.alive()


async def test_tokens_past_a_stop_string_do_not_count() -> None:
    backend = local_backend()
    whole = "".join(d.text for d in await deltas_of(backend, request(backend, max_tokens=20)))
    before = backend.stats().num_tokens
    deltas = await deltas_of(backend, request(backend, max_tokens=20, stop=(whole[2],)))
    num_tokens = sum(len(delta.token_ids) for delta in deltas)
    assert deltas[-1].usage is not None
    assert backend.stats().num_tokens - before == num_tokens == deltas[-1].usage.num_tokens <= 3
    await backend.close()


async def test_an_engine_that_has_stopped_says_so() -> None:
    backend = local_backend()
    await asyncio.to_thread(backend._loop.close)
    assert not await backend.alive()
    with pytest.raises(BackendError, match="has stopped"):
        await deltas_of(backend, request(backend))
    await backend.close()


async def test_compiling_a_grammar_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = local_backend()
    compile_whole = backend._grammars.compile

    gate = threading.Event()

    def slowly(grammar: Grammar) -> Any:
        assert gate.wait(20.0)
        return compile_whole(grammar)

    monkeypatch.setattr(backend._grammars, "compile", slowly)
    asked = request(backend, grammar=Grammar("regex", "[ab]{4}"))
    waiting = asyncio.create_task(deltas_of(backend, asked))
    other = await deltas_of(backend, request(backend))
    assert not waiting.done()
    assert other[-1].finish_reason is not None
    gate.set()
    text = "".join(delta.text for delta in await waiting)
    assert len(text) == 4
    assert set(text) <= set("ab")
    gate.clear()
    waiting = asyncio.create_task(deltas_of(backend, asked))
    await asyncio.sleep(0.01)
    waiting.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert backend.stats().num_requests == 2
    await backend.close()
