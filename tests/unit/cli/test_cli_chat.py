"""`truedraft chat`: origins of text, commands, and what is printed where."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from truedraft.backends.scripted import Answer, ScriptedBackend
from truedraft.cli.chat_local import LocalSource, OriginSplitter
from truedraft.cli.chat_turn import Origin, Piece, TurnStats
from truedraft.cli.chat_view import ChatView, stats_line
from truedraft.contract.request import RoundTrace, SamplingParams, TokenDelta

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


def delta(
    backend: ScriptedBackend, text: str, kept: int, *, drafted: int, shown: str | None = None
) -> TokenDelta:
    ids = backend.encode(text, add_special_tokens=False)
    trace = RoundTrace(draft_ids=(1,) * drafted, num_accepted=kept)
    return TokenDelta("r", token_ids=ids, text=text if shown is None else shown, trace=trace)


def merged(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Neighbours of one origin joined."""
    out: list[tuple[str, str]] = []
    for piece in pieces:
        if out and out[-1][1] == piece.origin:
            out[-1] = (out[-1][0] + piece.text, piece.origin)
        else:
            out.append((piece.text, piece.origin.value))
    return out


async def test_splitter_cuts_where_the_target_speaks_itself() -> None:
    backend = ScriptedBackend()
    splitter = OriginSplitter(backend)
    pieces = [
        *splitter.push(delta(backend, "H", 0, drafted=0)),
        *splitter.push(delta(backend, "ello", 3, drafted=7)),
    ]
    assert merged(pieces) == [("H", "plain"), ("ell", "drafted"), ("o", "own")]


async def test_splitter_keeps_origins_when_text_comes_late() -> None:
    backend = ScriptedBackend()
    splitter = OriginSplitter(backend)
    pieces = [
        *splitter.push(delta(backend, "abc", 2, drafted=7, shown="")),  # held back: may start a stop string
        *splitter.push(delta(backend, "def", 2, drafted=7, shown="abcdef")),
    ]
    assert merged(pieces) == [("ab", "drafted"), ("c", "own"), ("de", "drafted"), ("f", "own")]


async def test_splitter_gives_a_split_character_to_one_origin() -> None:
    backend = ScriptedBackend()
    splitter = OriginSplitter(backend)
    ids = backend.encode("ü", add_special_tokens=False)
    assert len(ids) == 2
    trace = RoundTrace(draft_ids=(1, 2), num_accepted=1)
    pieces = splitter.push(TokenDelta("r", token_ids=ids, text="ü", trace=trace))
    assert merged(pieces) == [("ü", "own")]


async def test_local_source_gives_all_text_and_figures_that_add_up() -> None:
    backend = ScriptedBackend(lambda prompt, request: "A longer answer with an ü in it, and more words.")
    parts = [
        part async for part in LocalSource(backend).stream([{"role": "user", "content": "x"}], GREEDY, "auto")
    ]
    pieces = [part for part in parts if isinstance(part, Piece)]
    stats = parts[-1]
    assert isinstance(stats, TurnStats)
    assert "".join(piece.text for piece in pieces) == "A longer answer with an ü in it, and more words."
    assert {piece.origin for piece in pieces} == {Origin.PLAIN, Origin.DRAFTED, Origin.OWN}
    assert stats.num_committed == stats.num_tokens - 1
    drafted_chars = sum(len(piece.text.encode()) for piece in pieces if piece.origin is Origin.DRAFTED)
    assert stats.num_drafted_kept >= drafted_chars > 0


async def test_plain_decoding_has_no_drafted_text() -> None:
    backend = ScriptedBackend()
    parts = [
        part async for part in LocalSource(backend).stream([{"role": "user", "content": "x"}], GREEDY, "off")
    ]
    assert {part.origin for part in parts if isinstance(part, Piece)} == {Origin.PLAIN}
    assert parts[-1].drafted_frac == 0.0


def shown(colour: bool, marks: bool) -> str:
    file = io.StringIO()
    view = ChatView(file, colour=colour, marks=marks)
    for piece in (
        Piece("A", Origin.PLAIN),
        Piece("bc", Origin.DRAFTED),
        Piece("d", Origin.DRAFTED),
        Piece("e", Origin.OWN),
    ):
        view.write(piece)
    view.end_answer()
    return file.getvalue()


def test_colours_marks_and_plain_text() -> None:
    assert shown(False, False) == "Abcde\n"
    assert shown(False, True) == "A‹bcd›e\n"
    assert shown(True, False) == "A\x1b[32mbc\x1b[0m\x1b[32md\x1b[0m\x1b[33me\x1b[0m\n"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ChatView(Terminal()).colour
    assert not ChatView(io.StringIO()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ChatView(Terminal()).colour


def test_control_characters_of_the_model_are_shown_harmless() -> None:
    file = io.StringIO()
    ChatView(file, colour=False).write(Piece("a\x1b[2Jb", Origin.OWN))
    assert file.getvalue() == "a\ufffd[2Jb"


def test_stats_line() -> None:
    stats = TurnStats(42, 28, 13, 41, 0.6, "stop")
    assert stats_line(stats) == "42 tokens · τ 3.15 · 70 tok/s · 67% drafted"
    assert (
        stats_line(TurnStats(10, 0, 0, 0, 1.0, "length")) == "10 tokens · 10 tok/s · plain · ended by length"
    )


def talk(truedraft: Any, monkeypatch: pytest.MonkeyPatch, lines: str, *args: str) -> Any:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return truedraft("chat", "--demo", *args)


def test_a_conversation_remembers_clears_and_ends(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    def script(prompt: str, request: Any) -> str:
        prompts.append(prompt)
        return f"answer number {len(prompts)}"

    composition.script = script
    ran = talk(
        truedraft, monkeypatch, "first\nsecond\n/clear\nthird\n/stats\n/quit\nnever\n", "--system", "Be kind."
    )
    assert ran.code == 0
    assert len(prompts) == 3
    assert "answer number 1" in prompts[1]
    assert "first" in prompts[1]
    assert "first" not in prompts[2]
    assert all("Be kind." in prompt for prompt in prompts)
    assert "answer number 3" in ran.out
    assert "3 answers" in ran.out
    assert "\x1b" not in ran.out
    assert composition.engines[0].closed


def test_speculation_can_be_changed_in_the_chat(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def script(prompt: str, request: Any) -> str:
        asked.append(request.speculation)
        return "words"

    composition.script = script
    ran = talk(
        truedraft, monkeypatch, "a\n/speculation off\nb\n/speculation 3\nc\n/speculation often\n/dance\nd\n"
    )
    assert asked == ["auto", "off", 3, 3]
    assert "plain" in ran.out
    assert "error:" in ran.out
    assert "unknown command /dance" in ran.out


def test_marks_show_what_was_drafted_without_colours(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    composition.script = lambda prompt, request: "a fairly long answer with many words in it"
    ran = talk(truedraft, monkeypatch, "x\n", "--marks")
    assert "‹" in ran.out
    assert ran.out.count("‹") == ran.out.count("›")


def test_one_failed_answer_does_not_end_the_chat(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(prompt: str, request: Any) -> Answer | str:
        return Answer("broken off", fail_after=1) if "bad" in prompt else "fine"

    composition.script = script
    ran = talk(truedraft, monkeypatch, "bad\ngood\n")
    assert ran.code == 0
    assert "error: The engine failed" in ran.out
    assert "fine" in ran.out


def test_interrupt_stops_the_answer_only(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(prompt: str, request: Any) -> str:
        if "slow" in prompt:
            raise KeyboardInterrupt
        return "fine"

    composition.script = script
    ran = talk(truedraft, monkeypatch, "slow\ngood\n")
    assert "[stopped]" in ran.out
    assert "fine" in ran.out


def test_json_mode_answers_line_by_line(
    truedraft: Any, composition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    composition.script = lambda prompt, request: "It is so."
    ran = talk(truedraft, monkeypatch, "one\n\ntwo\n", "--json")
    values = [json.loads(line) for line in ran.out.splitlines()]
    assert [value["text"] for value in values] == ["It is so.", "It is so."]
    assert all(value["num_rounds"] > 0 and value["finish_reason"] == "stop" for value in values)


def test_url_and_pair_exclude_each_other(truedraft: Any, composition: Any) -> None:
    ran = truedraft("chat", "--demo", "--url", "http://127.0.0.1:1")
    assert ran.code == 2
    assert composition.loads == []


def test_url_refuses_flags_of_an_engine_by_name(truedraft: Any, composition: Any) -> None:
    ran = truedraft("chat", "--url", "http://127.0.0.1:1", "--threads", "2", "--max-num-seqs", "3")
    assert ran.code == 2
    assert "--threads, --max-num-seqs" in ran.err


def test_a_source_that_is_closed_early_lets_go(composition: Any) -> None:
    async def go() -> ScriptedBackend:
        backend = ScriptedBackend(lambda prompt, request: Answer("long " * 50, delay_s=0.001))
        stream = LocalSource(backend).stream([{"role": "user", "content": "x"}], GREEDY, "auto")
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.01)
        return backend

    assert asyncio.run(go()).stats().num_running == 0
