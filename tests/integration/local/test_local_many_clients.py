"""32 clients at once on the real engine, some of which leave: every answer is that of a request alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import openai
import psutil
import pytest
from http_server import HttpServer, http_server
from local_http import check_nothing_held, is_idle, local, until_async
from local_pair import local_backend

NUM_CLIENTS = 32
REQUESTS_EACH = 2
LEAVERS_FRAC = 0.3


def fields_of(number: int, i: int) -> dict[str, Any]:
    """One of few requests, so that each is checked alone but once: greedy and sampled, short and long."""
    kind = (number * REQUESTS_EACH + i) % 8
    return {
        "model": "toy",
        "prompt": f"Question {kind}: " + "why? " * kind,
        "temperature": 0.8 if kind % 2 else 0.0,
        "seed": kind,
        "max_tokens": 12 + 4 * kind,
        "extra_body": {"ignore_eos": True, "speculation": ("auto", "off", 3, None)[kind // 2]},
    }


async def one_request(
    client: openai.AsyncOpenAI, rng: random.Random, fields: dict[str, Any], *, leaves: bool
) -> str | None:
    """→ the answer; None where the client left before it was complete."""
    if rng.random() < 0.5:
        task = asyncio.create_task(client.completions.create(**fields))
        if leaves:
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        return (await task).choices[0].text
    said = ""
    async with await client.completions.create(**fields, stream=True) as stream:
        async for chunk in stream:
            said += chunk.choices[0].text
            if leaves and said:
                return None
    return said


async def one_client(server: HttpServer, number: int) -> list[tuple[int, int, str | None]]:
    rng = random.Random(number)
    results = []
    async with server.async_client() as client:
        for i in range(REQUESTS_EACH):
            leaves = rng.random() < LEAVERS_FRAC
            said = await one_request(client, rng, fields_of(number, i), leaves=leaves)
            results.append((number, i, said))
    return results


# The second has too few pages for eight sequences at full length, so that some are preempted.
@pytest.mark.parametrize("engine", [{}, {"num_pages": 40, "page_len": 4, "max_model_len": 120}])
async def test_answers_equal_those_alone_and_nothing_leaks(engine: dict[str, Any]) -> None:
    with http_server(lambda: local_backend(**engine)) as server:
        async with server.async_client() as client:
            alone = [
                await one_request(client, random.Random(1), fields_of(kind, 0), leaves=False)
                for kind in range(8 // REQUESTS_EACH)
            ] + [
                await one_request(client, random.Random(1), fields_of(kind, 1), leaves=False)
                for kind in range(8 // REQUESTS_EACH)
            ]
        expected = {str(fields_of(k, i)): alone[i * 4 + k] for i in range(REQUESTS_EACH) for k in range(4)}
        assert len(expected) == 8
        process = psutil.Process()
        await until_async(lambda: is_idle(server))
        num_tasks, num_fds = server.num_tasks(), process.num_fds()

        results = await asyncio.gather(*(one_client(server, number) for number in range(NUM_CLIENTS)))

        await until_async(lambda: is_idle(server))
        check_nothing_held(local(server))
        await until_async(lambda: server.num_tasks() <= num_tasks)
        await until_async(lambda: process.num_fds() <= num_fds)
        flat = [entry for client_results in results for entry in client_results]
        whole = [entry for entry in flat if entry[2] is not None]
        assert 0 < len(whole) < len(flat)
        for number, i, said in whole:
            assert said == expected[str(fields_of(number, i))]
        ended = finished_by_reason(server)
        stats = server.backend.stats()
        assert ended["error"] == 0
        assert sum(ended.values()) == stats.num_requests
        assert ended["length"] >= len(whole) + len(alone)
        assert (stats.num_preempted > 0) == bool(engine)


def finished_by_reason(server: HttpServer) -> dict[str, int]:
    name = "truedraft_requests_finished_total"
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith(name)]
    return {label.split('"')[1]: int(float(value)) for label, value in counts}
