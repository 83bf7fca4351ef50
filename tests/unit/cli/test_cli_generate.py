"""`truedraft generate`."""

from __future__ import annotations

import io
from typing import Any

import pytest

from truedraft.backends.scripted import Answer
from truedraft.errors import RequestError


def test_prints_the_text_and_a_summary_apart(truedraft: Any, composition: Any) -> None:
    composition.script = lambda prompt, request: "Blue light scatters more."
    ran = truedraft("generate", "--demo", "--prompt", "Why is the sky blue?")
    assert ran.code == 0
    assert ran.out == "Blue light scatters more.\n"
    assert "loaded:" in ran.err
    assert "tokens" in ran.err
    assert "τ" in ran.err
    assert composition.engines[0].closed


def test_json_has_the_promised_keys_and_adds_up(truedraft: Any, composition: Any) -> None:
    ran = truedraft("generate", "--demo", "--prompt", "Hello", "--json", "--max-tokens", "40")
    value = ran.json
    assert set(value) == {
        "text", "num_prompt_tokens", "num_tokens", "num_rounds", "tau", "accepted_by_position",
        "tok_per_s", "finish_reason",
    }  # fmt: skip
    assert value["num_tokens"] <= 40
    assert value["num_rounds"] > 0
    assert value["tau"] == pytest.approx((value["num_tokens"] - 1) / value["num_rounds"])
    assert value["accepted_by_position"] == sorted(value["accepted_by_position"], reverse=True)
    assert value["tok_per_s"] > 0


def test_quiet_prints_only_the_text(truedraft: Any, composition: Any) -> None:
    composition.script = lambda prompt, request: "Yes."
    ran = truedraft("generate", "--demo", "--prompt", "x", "-q")
    assert (ran.out, ran.err) == ("Yes.\n", "")


def test_options_reach_request_and_engine(truedraft: Any, composition: Any) -> None:
    seen: list[Any] = []

    def script(prompt: str, request: Any) -> str:
        seen.append((prompt, request))
        return "text stop more"

    composition.script = script
    ran = truedraft(
        "generate", "folder", "--draft", "drafter", "--prompt", "Hi", "--system", "Be brief.", "--temperature",
        "0.7", "--top-p", "0.9", "--top-k", "40", "--stop", "stop", "--stop", "end", "--seed", "3",
        "--speculation", "4", "--dtype", "float32", "--device", "cpu", "--threads", "1", "--kernels", "torch",
        "--max-model-len", "512", "--max-tokens", "99",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.out == "text \n"
    [(prompt, request)] = seen
    assert "Be brief." in prompt
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.7, 0.9, 40, 3)
    assert (sampling.stop, sampling.max_tokens, request.speculation) == (("stop", "end"), 99, 4)
    engine = composition.loads[0]["engine"]
    assert (engine.dtype, engine.device, engine.threads, engine.kernels) == ("float32", "cpu", 1, "torch")
    assert (engine.max_model_len, engine.speculation) == (512, 4)


def test_raw_continues_the_text_itself(truedraft: Any, composition: Any) -> None:
    seen: list[str] = []

    def script(prompt: str, request: Any) -> str:
        seen.append(prompt)
        return "x"

    composition.script = script
    truedraft("generate", "--demo", "--prompt", "Once upon", "--raw")
    truedraft("generate", "--demo", "--prompt", "Once upon")
    assert seen[0].endswith("Once upon")
    assert "user" not in seen[0]
    assert seen[1] != seen[0]


def test_dash_reads_stdin(truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    composition.script = lambda prompt, request: "read" if "from a pipe" in prompt else "not read"
    stdin = io.TextIOWrapper(io.BytesIO(b"words from a pipe"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert truedraft("generate", "--demo", "--prompt", "-").out == "read\n"


@pytest.mark.parametrize("content", [b"\xff\xfe bad", b"  \n"])
def test_bad_stdin_is_refused(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    ran = truedraft("generate", "--demo", "--prompt", "-")
    assert ran.code == 2
    assert composition.loads == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--demo"], "No prompt"),
        (["--prompt", "x"], "No target"),
        (["folder", "--demo", "--prompt", "x"], "brings its own pair"),
        (["--demo", "--prompt", "x", "--temperature", "nan"], "temperature"),
        (["--demo", "--prompt", "x", "--top-p", "7"], "top_p"),
        (["--demo", "--prompt", "x", "--max-tokens", "-3"], "max_tokens"),
        (["--demo", "--prompt", "x", "--raw", "--system", "y"], "chat template"),
        (["--demo", "--prompt", "x", "--dtype", "float12"], "dtype"),
        (["--demo", "--prompt", "x", "--speculation", "often"], "speculation"),
        (["--demo", "--prompt", "x", "--device", "tpu"], "device"),
        (["--demo", "--prompt", "x", "--threads", "0"], "threads"),
    ],
)
def test_wrong_input_is_code_2_before_anything_loads(
    truedraft: Any, composition: Any, args: list[str], said: str
) -> None:
    ran = truedraft("generate", *args, "--json")
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert said in ran.json["error"]["message"]
    assert composition.loads == []


def test_refused_request_is_code_2_and_closes_the_engine(truedraft: Any, composition: Any) -> None:
    composition.script = lambda prompt, request: Answer("", refuse=RequestError("Too odd"))
    ran = truedraft("generate", "--demo", "--prompt", "x")
    assert ran.code == 2
    assert composition.engines[0].closed


def test_engine_failure_is_code_6(truedraft: Any, composition: Any) -> None:
    composition.script = lambda prompt, request: Answer("some words", fail_after=1)
    ran = truedraft("generate", "--demo", "--prompt", "x", "--json")
    assert ran.code == 6
    assert ran.json["error"]["type"] == "BackendError"
    assert "told to fail" in ran.err
    assert composition.engines[0].closed


def test_interrupt_is_code_130(truedraft: Any, composition: Any) -> None:
    def script(prompt: str, request: Any) -> str:
        raise KeyboardInterrupt

    composition.script = script
    ran = truedraft("generate", "--demo", "--prompt", "x")
    assert ran.code == 130


def test_terminal_controls_of_a_model_do_not_reach_a_terminal(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    composition.script = lambda prompt, request: "a\x1b[31mred\x07\nend"
    assert "\x1b" in truedraft("generate", "--demo", "--prompt", "x").out  # a pipe gets the text as it is
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = truedraft("generate", "--demo", "--prompt", "x").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\nend" in shown
