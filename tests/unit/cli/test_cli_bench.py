"""`truedraft bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from truedraft.backends.scripted import Answer
from truedraft.cli.bench_view import progress_bar

SHORT = ("--num-per-kind", "1", "--max-tokens", "16")


def test_json_has_what_it_promises(truedraft: Any, composition: Any) -> None:
    ran = truedraft("bench", "--demo", "--json", "--concurrency", "1,2", *SHORT)
    assert ran.code in (0, 3), ran.err
    value = ran.json
    for key in ("plain_tok_per_s", "dflash_tok_per_s", "ratio"):
        assert set(value[key]) == {"value", "low", "high", "num"}
    assert set(value["tau_by_kind"]) == {"code", "maths", "chat", "prose"} == set(value["ratio_by_kind"])
    assert value["tau"]["value"] > 1
    assert len(value["acceptance_by_position"]) == 7
    assert value["cost_curve_ms"] == {"1": 20.0, "8": 24.0}
    assert set(value["by_concurrency"]) == {"1", "2"}
    assert composition.engines[0].closed


def test_tables_for_people(truedraft: Any, composition: Any) -> None:
    ran = truedraft("bench", "--demo", *SHORT)
    for said in ("plain tok/s", "DFlash tok/s", "ratio", "code", "prose", "same answers", "8: 24"):
        assert said in ran.out, said


def test_slower_beyond_doubt_is_code_3(truedraft: Any, composition: Any) -> None:
    def script(prompt: str, request: Any) -> Answer:
        return Answer("some words", delay_s=0.0 if request.speculation == "off" else 0.02)

    composition.script = script
    assert truedraft("bench", "--demo", "--json", *SHORT).code == 3


def test_engine_has_room_for_the_concurrency(truedraft: Any, composition: Any) -> None:
    truedraft("bench", "--demo", "-q", "--concurrency", "12", *SHORT)
    assert composition.loads[0]["engine"].max_num_seqs == 12


def test_own_prompts_fixed_length_and_temperature(truedraft: Any, composition: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    def script(prompt: str, request: Any) -> str:
        seen.append(request)
        return "words"

    composition.script = script
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One", "kind": "law"}\n{"prompt": "Two", "kind": "law"}\n', encoding="utf-8")
    ran = truedraft("bench", "t", "--draft", "d", "--json", "--prompts", str(file), "--speculation", "3",
                    "--temperature", "0.7", "--seed", "9")  # fmt: skip
    assert set(ran.json["tau_by_kind"]) == {"law"}
    assert {request.speculation for request in seen} == {"off", 3}
    assert all(request.sampling.temperature == 0.7 for request in seen)
    assert all(request.sampling.seed is not None for request in seen)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--demo", "--concurrency", "0"], "--concurrency"),
        (["--demo", "--concurrency", "1,x"], "--concurrency"),
        (["--demo", "--concurrency", "2,2"], "--concurrency"),
        (["--demo", "--speculation", "off"], "compares"),
        (["--demo", "--num-per-kind", "0"], "num-per-kind"),
        (["--demo", "--prompts", "no-such-file"], "prompts file"),
        (["--demo", "--temperature", "-1"], "temperature"),
        (["target-alone"], "needs a drafter"),
    ],
)
def test_wrong_input_is_code_2_before_anything_loads(
    truedraft: Any, composition: Any, args: list[str], said: str
) -> None:
    ran = truedraft("bench", *args)
    assert ran.code == 2
    assert said in ran.err
    assert composition.loads == []


def test_progress_bar_draws_where_asked_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    for enabled in (False, True):
        with progress_bar(enabled=enabled) as show:
            show(1, 2)
            show(2, 2)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("2/2" in printed.err) == enabled
