"""32 clients at once, some of which leave: every request ends exactly once, and nothing is left."""

from __future__ import annotations

import asyncio
import random
import time

import httpx
import openai
import psutil
import pytest
from http_script import scripted_backend
from http_server import HttpServer, http_server

NUM_CLIENTS = 32
REQUESTS_EACH = 4


async def one_request(client: openai.AsyncOpenAI, rng: random.Random, text: str, leaves: bool) -> str | None:
    """→ the answer; None where the client left before it was complete."""
    fields = {"model": "scripted", "messages": [{"role": "user", "content": text}], "temperature": 0.0}
    patience_s = rng.uniform(0.0, 0.06)
    if rng.random() < 0.5:
        task = asyncio.create_task(client.chat.completions.create(**fields))
        if leaves:
            await asyncio.sleep(patience_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        return (await task).choices[0].message.content
    stream = await client.chat.completions.create(**fields, stream=True)
    said = ""
    async with stream:
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            if leaves and len(said) > 5:
                return None
    return said


async def one_client(server: HttpServer, number: int) -> list[tuple[str, str | None]]:
    rng = random.Random(number)
    results = []
    async with server.async_client() as client:
        for i in range(REQUESTS_EACH):
            text = f"Client {number}, question {i}"
            results.append((text, await one_request(client, rng, text, leaves=rng.random() < 0.4)))
    return results


@pytest.mark.parametrize("max_running", [4, 64])
async def test_every_request_ends_exactly_once_and_nothing_leaks(max_running: int) -> None:
    with http_server(lambda: scripted_backend(max_running=max_running, delay_s=0.004)) as server:
        async with server.async_client() as client:
            warm = [await one_request(client, random.Random(1), "Warm up", leaves=False) for _ in range(2)]
            assert warm[0] == warm[1]
        process = psutil.Process()
        await settle(server)
        num_tasks, num_fds = server.num_tasks(), process.num_fds()

        results = await asyncio.gather(*(one_client(server, number) for number in range(NUM_CLIENTS)))

        await settle(server)
        stats = server.backend.stats()
        assert stats.num_requests == stats.num_finished
        assert (stats.num_running, stats.num_waiting, stats.kv_used_frac) == (0, 0, 0.0)
        await until(lambda: server.num_tasks() <= num_tasks)
        await until(lambda: process.num_fds() <= num_fds)
        ended = finished_by_reason(server)
        assert sum(ended.values()) == stats.num_requests
        answers = [entry for client_results in results for entry in client_results]
        whole = [(text, said) for text, said in answers if said is not None]
        assert ended["error"] == 0
        assert ended["stop"] + ended["length"] >= len(whole) + 2
        assert 0 < len(whole) < len(answers)
        await check_answers_alone(server, whole[::7])


async def check_answers_alone(server: HttpServer, answers: list[tuple[str, str]]) -> None:
    async with server.async_client() as client:
        for text, said in answers:
            assert await one_request(client, random.Random(2), text, leaves=False) == said


async def settle(server: HttpServer) -> None:
    await until(lambda: not server.backend.stats().num_running and not server.backend.stats().num_waiting)


async def until(condition: object) -> None:
    deadline_s = time.monotonic() + 5.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not come to pass"
        await asyncio.sleep(0.02)


def finished_by_reason(server: HttpServer) -> dict[str, int]:
    name = "truedraft_requests_finished_total"
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith(name)]
    return {label.split('"')[1]: int(float(value)) for label, value in counts}
