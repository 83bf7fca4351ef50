"""What every Backend promises. A new one joins by a line in `BACKENDS`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
import pytest_asyncio
from local_pair import local_backend

from truedraft.backends.scripted import ScriptedBackend
from truedraft.contract.backend import Backend
from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    SpeculationStats,
    TokenDelta,
)
from truedraft.errors import PromptTooLongError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
TEXTS = ("Hello, world", "naïve café — Ω ≈ 3.14", "日本語のテキスト", "🦜🚀 emoji", "tabs\tand\nnewlines", "")


@dataclass(frozen=True)
class Case:
    """How to make a backend."""

    make: Callable[[], Backend]
    marks: tuple[pytest.MarkDecorator, ...] = field(default=())


BACKENDS: dict[str, Case] = {
    "scripted": Case(lambda: ScriptedBackend(delay_s=0.001)),
    "scripted-plain": Case(lambda: ScriptedBackend(num_drafted=0)),
    "local": Case(local_backend),
    "local-plain": Case(lambda: local_backend(drafter=False)),
}


@pytest_asyncio.fixture(
    params=[pytest.param(case, id=name, marks=case.marks) for name, case in BACKENDS.items()]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    made = request.param.make()
    yield made
    await made.close(drain_s=0.0)


def ask(backend: Backend, text: str, name: str = "r", **fields: object) -> GenerateRequest:
    asked = GenerateRequest(name, backend.encode(text), GREEDY)
    sampling = {key: fields.pop(key) for key in list(fields) if hasattr(GREEDY, key)}
    return dataclasses.replace(asked, sampling=dataclasses.replace(GREEDY, **sampling), **fields)


def ask_long(backend: Backend) -> GenerateRequest:
    """A request that runs for a while: it never ends by itself."""
    room = backend.info.max_model_len - len(backend.encode("Long."))
    return ask(backend, "Long.", ignore_eos=True, max_tokens=min(400, room))


async def deltas_of(backend: Backend, request: GenerateRequest) -> list[TokenDelta]:
    async with asyncio.timeout(30.0):
        return [delta async for delta in backend.generate(request)]


def text_of(deltas: list[TokenDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[TokenDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


async def until_idle(backend: Backend) -> None:
    async with asyncio.timeout(5.0):
        while backend.stats().num_running or backend.stats().num_waiting:
            await asyncio.sleep(0.005)


def check_stats(stats: SpeculationStats) -> None:
    assert 0 <= stats.num_accepted <= stats.num_drafted
    assert stats.num_rounds == 0 or stats.tau == stats.num_committed / stats.num_rounds
    assert stats.tau is None or stats.num_rounds > 0
    assert stats.num_committed <= stats.num_accepted + stats.num_rounds
    accepted, drafted = stats.accepted_by_position, stats.drafted_by_position
    assert list(accepted) == sorted(accepted, reverse=True)
    assert list(drafted) == sorted(drafted, reverse=True)
    assert len(accepted) == len(drafted)
    assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    assert sum(accepted) == stats.num_accepted
    assert sum(drafted) == stats.num_drafted


async def test_one_terminal_delta_and_usage_adds_up(backend: Backend) -> None:
    request = ask(backend, "Say something about blocks.")
    deltas = await deltas_of(backend, request)
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert {delta.request_id for delta in deltas} == {request.request_id}
    usage = deltas[-1].usage
    assert usage is not None
    assert usage.num_tokens == len(ids_of(deltas)) <= 24
    assert usage.num_prompt_tokens == len(request.prompt_token_ids)
    assert usage.ttft_s is not None
    assert usage.total_s is not None
    assert 0 <= usage.ttft_s <= usage.total_s
    check_stats(usage.speculation)
    assert usage.speculation.num_committed <= usage.num_tokens


async def test_counters_move_with_requests(backend: Backend) -> None:
    before = backend.stats()
    deltas = await deltas_of(backend, ask(backend, "Count me."))
    await until_idle(backend)
    after = backend.stats()
    assert after.num_requests == before.num_requests + 1
    assert after.num_finished == before.num_finished + 1
    assert after.num_tokens == before.num_tokens + len(ids_of(deltas))
    check_stats(after.speculation)


async def test_max_tokens_ends_in_length(backend: Backend) -> None:
    deltas = await deltas_of(backend, ask(backend, "Talk.", max_tokens=5, ignore_eos=True))
    assert len(ids_of(deltas)) == 5
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_greedy_answers_repeat_and_do_not_depend_on_speculation(backend: Backend) -> None:
    answers = [ids_of(await deltas_of(backend, ask(backend, "Again.", speculation="auto"))) for _ in range(2)]
    answers.append(ids_of(await deltas_of(backend, ask(backend, "Again.", speculation="off"))))
    if backend.info.num_drafted:
        answers.append(ids_of(await deltas_of(backend, ask(backend, "Again.", speculation=1))))
    assert all(answer == answers[0] for answer in answers)


async def test_speculation_off_has_no_rounds(backend: Backend) -> None:
    deltas = await deltas_of(backend, ask(backend, "Plainly.", speculation="off"))
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.speculation.num_rounds == 0
    assert deltas[-1].usage.speculation.num_drafted == 0


async def test_trace_marks_drafted_tokens(backend: Backend) -> None:
    deltas = await deltas_of(backend, ask(backend, "Trace this.", ignore_eos=True))
    for delta in deltas:
        if delta.trace is not None and delta.token_ids:
            kept = delta.trace.num_accepted
            assert kept <= len(delta.token_ids)
            assert delta.trace.draft_ids[:kept] == delta.token_ids[:kept]


async def test_seed_repeats_a_sampled_answer(backend: Backend) -> None:
    one, two = [
        ids_of(await deltas_of(backend, ask(backend, "Dice.", temperature=1.0, seed=7))) for _ in range(2)
    ]
    assert one == two


async def test_stop_string_cuts_the_text(backend: Backend) -> None:
    whole = text_of(await deltas_of(backend, ask(backend, "Stop me.")))
    assert len(whole) > 4
    stop = whole[3:5]
    deltas = await deltas_of(backend, ask(backend, "Stop me.", stop=(stop,)))
    assert text_of(deltas) == whole[: whole.find(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop
    kept = await deltas_of(backend, ask(backend, "Stop me.", stop=(stop,), include_stop_str_in_output=True))
    assert text_of(kept) == whole[: whole.find(stop) + len(stop)]


async def test_stop_token_ids_end_the_answer(backend: Backend) -> None:
    ids = ids_of(await deltas_of(backend, ask(backend, "Stop id.")))
    stop_id = ids[3]
    deltas = await deltas_of(backend, ask(backend, "Stop id.", stop_token_ids=(stop_id,)))
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop_id
    assert len(ids_of(deltas)) <= ids.index(stop_id) + 1


async def test_logprobs_come_for_every_token(backend: Backend) -> None:
    deltas = await deltas_of(backend, ask(backend, "Score.", logprobs=3, max_tokens=6))
    for delta in deltas:
        assert len(delta.logprobs or ()) == len(delta.token_ids)
        for token_id, position in zip(delta.token_ids, delta.logprobs or (), strict=True):
            assert position.chosen.token_id == token_id
            assert position.chosen.logprob <= 0
            assert position.chosen.rank >= 1
            assert len(position.top) == 3
            scores = [entry.logprob for entry in position.top]
            assert scores == sorted(scores, reverse=True)


async def test_prompt_logprobs_come_with_the_first_delta(backend: Backend) -> None:
    request = ask(backend, "Score the prompt.", prompt_logprobs=0, max_tokens=2)
    deltas = await deltas_of(backend, request)
    scored = deltas[0].prompt_logprobs
    assert scored is not None
    assert len(scored) == len(request.prompt_token_ids)
    assert scored[0] is None
    chosen = [position.chosen.token_id for position in scored[1:] if position is not None]
    assert chosen == list(request.prompt_token_ids[1:])


async def test_closing_the_iterator_frees(backend: Backend) -> None:
    generator = cast(
        AsyncGenerator[TokenDelta, None],
        backend.generate(ask_long(backend)),
    )
    await anext(generator)
    assert backend.stats().num_running == 1
    await generator.aclose()
    await until_idle(backend)
    stats = backend.stats()
    assert stats.num_requests == stats.num_finished
    assert stats.kv_used_frac == 0.0


async def test_cancelling_the_reader_frees(backend: Backend) -> None:
    request = ask_long(backend)
    task = asyncio.create_task(deltas_of(backend, request))
    async with asyncio.timeout(5.0):
        while not backend.stats().num_running:
            await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(backend)


async def test_requests_at_once_equal_requests_alone(backend: Backend) -> None:
    requests = [ask(backend, f"Question {i}: " + "why? " * i, name=f"r{i}") for i in range(6)]
    alone = [ids_of(await deltas_of(backend, request)) for request in requests]
    together = await asyncio.gather(*(deltas_of(backend, request) for request in requests))
    assert [ids_of(deltas) for deltas in together] == alone
    for request, deltas in zip(requests, together, strict=True):
        assert {delta.request_id for delta in deltas} == {request.request_id}
    await until_idle(backend)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop_token_ids": (10**9,)}, "stop_token_ids"),
        ({"speculation": 10_000}, "speculation"),
        ({"prompt_token_ids": ()}, "prompt"),
        ({"prompt_token_ids": (-1,)}, "prompt"),
    ],
)
async def test_bad_requests_raise_before_the_first_delta(
    backend: Backend, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await deltas_of(backend, ask(backend, "Bad.", **fields))
    assert caught.value.param == param
    assert backend.stats().num_running == 0


async def test_prompts_over_the_limit_are_refused_with_both_numbers(backend: Backend) -> None:
    token_id = backend.encode("a")[-1]
    limit = backend.info.max_model_len
    with pytest.raises(PromptTooLongError) as caught:
        await deltas_of(backend, ask(backend, "", prompt_token_ids=(token_id,) * (limit + 1)))
    assert str(limit) in str(caught.value)
    assert str(limit + 1) in str(caught.value)


@pytest.mark.parametrize("text", TEXTS)
async def test_text_survives_the_tokenizer(backend: Backend, text: str) -> None:
    ids = backend.encode(text, add_special_tokens=False)
    assert backend.decode(ids, skip_special_tokens=False) == text


async def test_deltas_add_up_to_the_decoded_answer(backend: Backend) -> None:
    deltas = await deltas_of(backend, ask(backend, "Whole characters only."))
    assert text_of(deltas) == backend.decode(ids_of(deltas))


async def test_chat_template_refuses_or_renders(backend: Backend) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    plain = backend.encode_chat(messages, add_generation_prompt=False)
    asked = backend.encode_chat(messages)
    assert len(asked) > len(plain)
    assert "Hello" in backend.decode(asked, skip_special_tokens=False)
    continued = backend.encode_chat(
        [*messages, {"role": "assistant", "content": "Well then"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert backend.decode(continued, skip_special_tokens=False).rstrip().endswith("Well then")


async def test_alive_until_closed_and_running_ones_abort(backend: Backend) -> None:
    assert await backend.alive()
    request = ask_long(backend)
    task = asyncio.create_task(deltas_of(backend, request))
    async with asyncio.timeout(5.0):
        while not backend.stats().num_running:
            await asyncio.sleep(0.001)
    await backend.close(drain_s=0.0)
    deltas = await task
    assert deltas[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
    assert not await backend.alive()
