"""The commands on a toy pair and the real engine; what signals and pipes decide, in processes of their own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from toy import toy_pair
from toy_files import FILE_VOCAB, PairPaths, save_pair

ENGINE = (
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--kernels",
    "torch",
    "--threads",
    "1",
    "--max-model-len",
    "256",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairPaths:
    return save_pair(tmp_path_factory.mktemp("pair"), *toy_pair(vocab_size=FILE_VOCAB, agreement="all"))


def named(pair: PairPaths) -> tuple[str, ...]:
    return (str(pair.target), "--draft", str(pair.drafter), *ENGINE)


def test_speculation_changes_the_rounds_and_not_the_text(pair: PairPaths, truedraft: Any) -> None:
    plain, drafted = (
        truedraft(
            "generate",
            *named(pair),
            "--prompt",
            "Hello",
            "--max-tokens",
            "40",
            "--json",
            "--speculation",
            how,
        ).json
        for how in ("off", "4")
    )
    assert drafted["text"] == plain["text"]
    assert plain["num_rounds"] == 0
    assert plain["tau"] is None
    assert drafted["num_rounds"] > 0
    assert drafted["tau"] > 1


def test_bench_measures_the_real_engine(pair: PairPaths, truedraft: Any) -> None:
    ran = truedraft("bench", *named(pair), "--json", "--num-per-kind", "1", "--max-tokens", "12",
                    "--concurrency", "1,2", "--speculation", "3")  # fmt: skip
    assert ran.code in (0, 3), ran.err
    value = ran.json
    assert value["tau"]["value"] > 1
    assert value["by_concurrency"]["2"]["num_answers"] == 4
    assert value["by_concurrency"]["1"]["num_same_answers"] == 4
    assert len(value["cost_curve_ms"]) >= 2
    assert len(value["acceptance_by_position"]) == 3


def test_chat_answers_lines(pair: PairPaths, truedraft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    ran = truedraft("chat", *named(pair), "--max-tokens", "8", "--json")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 2


def test_request_that_the_engine_refuses_is_code_2(pair: PairPaths, truedraft: Any) -> None:
    ran = truedraft("generate", *named(pair), "--prompt", "long " * 400, "--json")
    assert ran.code == 2, ran.err
    assert ran.json["error"]["type"] == "PromptTooLongError"


def test_too_many_drafts_are_refused(pair: PairPaths, truedraft: Any) -> None:
    ran = truedraft("generate", *named(pair), "--prompt", "x", "--speculation", "99")
    assert ran.code == 2, ran.err
    assert "99" in ran.err


def test_serve_starts_answers_and_stops_by_ctrl_c(pair: PairPaths, tmp_path: Path) -> None:
    said = tmp_path / "stderr"
    command = [
        sys.executable,
        "-m",
        "truedraft",
        "serve",
        *named(pair),
        "--port",
        "0",
        "--json",
        "--skip-self-check",
    ]
    with (
        said.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            started = json.loads(server.stdout.readline())
            body = {
                "model": started["model"],
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 9,
            }
            answer = httpx.post(f"{started['url']}/v1/chat/completions", json=body, timeout=60).json()
            assert answer["usage"]["completion_tokens"] <= 9
            assert started["verdict"] == "not checked"
        finally:
            os.kill(server.pid, signal.SIGINT)
            code = server.wait(60)
    assert code == 0, said.read_text("utf-8")
    assert "serving" in said.read_text("utf-8")


def test_closed_pipe_is_quiet(pair: PairPaths) -> None:
    command = [
        sys.executable,
        "-m",
        "truedraft",
        "generate",
        *named(pair),
        "--prompt",
        "x",
        "--max-tokens",
        "200",
        "-q",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        complaint = running.stderr.read()
        code = running.wait(120)
    assert "Traceback" not in complaint
    assert code == 141, complaint
