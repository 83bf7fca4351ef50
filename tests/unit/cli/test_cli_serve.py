"""`truedraft serve`: what it says, what it refuses, and how it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from truedraft.backends.scripted import Answer
from truedraft.cli import serve
from truedraft.cli.serve_options import read_api_keys
from truedraft.cli.serve_view import curl_example, ready_lines
from truedraft.contract.backend import ReadyReport
from truedraft.errors import ConfigError

BROKEN = ReadyReport(
    ready=False,
    verdict="broken",
    checks={"lossless": {"ok": False, "num_prompts": 3, "faults": [{"prompt": 0, "position": 7}]}},
)


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], Event]:
    """Runs a visitor on a thread once the server announces its URL, then sends Ctrl-C."""
    threads: list[Thread] = []

    def arrange(visitor: Callable[[str], None]) -> Event:
        done = Event()

        def announced(value: Any) -> None:
            print(value)

            def go() -> None:
                try:
                    visitor(value["url"])
                    done.set()
                finally:
                    os.kill(os.getpid(), signal.SIGINT)

            threads.append(Thread(target=go))
            threads[-1].start()

        monkeypatch.setattr(serve, "print_json", announced)
        return done

    yield arrange  # type: ignore[misc]
    for thread in threads:
        thread.join(20)


def test_serves_says_so_and_stops_cleanly(truedraft: Any, composition: Any, visit: Any) -> None:
    answers: list[Any] = []

    def visitor(url: str) -> None:
        answers.append(httpx.get(f"{url}/v1/models").json()["data"][0]["id"])
        body = {"model": answers[0], "messages": [{"role": "user", "content": "Hi"}]}
        answers.append(httpx.post(f"{url}/v1/chat/completions", json=body).json())

    composition.script = lambda prompt, request: "Hello."
    done = visit(visitor)
    ran = truedraft("serve", "--demo", "--port", "0", "--json")
    assert done.is_set()
    assert ran.code == 0, ran.err
    assert answers[1]["choices"][0]["message"]["content"] == "Hello."
    for said in (
        "lossless on 3 prompts",
        "τ 3.00",
        "plain 30 tok/s, DFlash 66 tok/s, ratio 2.20",
        "proven",
        "curl http",
    ):
        assert said in ran.err, said
    assert "'verdict': 'proven'" in ran.out
    assert composition.engines[0].closed


def test_name_and_key_are_the_servers(truedraft: Any, composition: Any, visit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\nfrom-file\n", encoding="utf-8")
    seen: list[Any] = []

    def visitor(url: str) -> None:
        seen.append(httpx.get(f"{url}/v1/models").status_code)
        for key in ("from-file", "from-option"):
            listed = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
            seen.append(listed.json()["data"][0]["id"])

    done = visit(visitor)
    ran = truedraft(
        "serve", "--demo", "--port", "0", "--json", "--api-key-file", str(keys), "--api-key", "from-option",
        "--served-model-name", "mine",
    )  # fmt: skip
    assert done.is_set()
    assert seen == [401, "mine", "mine"]
    assert "from-file" not in ran.err + ran.out
    assert "Authorization: Bearer KEY" in ran.err
    assert "serving mine" in ran.err


def test_answers_cut_off_at_the_end_are_code_130(truedraft: Any, composition: Any, visit: Any) -> None:
    composition.script = lambda prompt, request: Answer("long " * 100, delay_s=0.2)

    def read(url: str, begun: Event) -> None:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response,
        ):
            for _ in response.iter_lines():
                begun.set()

    readers: list[Thread] = []

    def visitor(url: str) -> None:
        begun = Event()
        readers.append(Thread(target=read, args=(url, begun)))
        readers[0].start()
        assert begun.wait(10)

    done = visit(visitor)
    ran = truedraft("serve", "--demo", "--port", "0", "--json", "--drain-s", "0")
    assert done.is_set()
    readers[0].join(10)
    assert ran.code == 130
    assert "cut off" in ran.err


def test_broken_pair_is_not_served_code_4(truedraft: Any, composition: Any) -> None:
    composition.report = BROKEN
    ran = truedraft("serve", "--demo", "--port", "0", "--json")
    assert ran.code == 4
    assert "NOT lossless" in ran.err
    assert ran.json["url"] is None
    assert ran.json["verdict"] == "broken"
    assert composition.engines[0].closed


def test_self_check_can_be_skipped(truedraft: Any, composition: Any, visit: Any) -> None:
    composition.report = BROKEN  # what the check would say
    done = visit(lambda url: None)
    ran = truedraft("serve", "--demo", "--port", "0", "--json", "--skip-self-check")
    assert done.is_set()
    assert ran.code == 0
    assert composition.loads[0]["engine"].self_check is False


def test_taken_port_is_known_before_anything_loads(truedraft: Any, composition: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = truedraft("serve", "--demo", "--port", str(taken.getsockname()[1]))
    assert ran.code == 2
    assert "taken" in ran.err
    assert composition.loads == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "99999"], "port"),
        (["--host", "no such host"], "host"),
        (["--drain-s", "-1"], "drain_s"),
        (["--max-queue-len", "-1"], "max_queue_len"),
        (["--api-key", " "], "api_keys"),
        (["--api-key-file", "/no/such/file"], "API key file"),
        (["--served-model-name", ""], "served_model_name"),
    ],
)
def test_wrong_settings_are_code_2(truedraft: Any, composition: Any, args: list[str], said: str) -> None:
    ran = truedraft("serve", "--demo", *args)
    assert ran.code == 2
    assert said in ran.err
    assert composition.loads == []


def test_no_pair_is_code_2(truedraft: Any) -> None:
    assert truedraft("serve", "--port", "0").code == 2


def test_empty_key_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no key"):
        read_api_keys(None, file)


def test_public_address_without_a_key_is_warned_of(truedraft: Any, composition: Any, visit: Any) -> None:
    visit(lambda url: None)
    ran = truedraft("serve", "--demo", "--host", "0.0.0.0", "--port", "0", "--json")
    assert "warning" in ran.err
    assert "http://127.0.0.1:" in ran.err


@pytest.mark.parametrize("verdict", ["proven", "unprofitable", "broken", "plain", "not checked"])
def test_every_verdict_has_its_words(verdict: str) -> None:
    [line] = ready_lines(ReadyReport(ready=True, verdict=verdict, checks={}))
    assert line.startswith(f"verdict: {verdict}")


def test_failed_basics_are_said() -> None:
    report = ReadyReport(False, "broken", {"alive": {"ok": False, "errors": ["boom"]}})
    assert "not alive: errors = ['boom']" in ready_lines(report)


def test_curl_example_can_be_pasted() -> None:
    import json
    import shlex

    words = shlex.split(curl_example("http://127.0.0.1:1", "m", with_key=False))
    assert words[0] == "curl"
    assert json.loads(words[-1])["model"] == "m"
