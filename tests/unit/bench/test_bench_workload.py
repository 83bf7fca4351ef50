"""Prompts: the built-in set, files of the user, and what is refused."""

from pathlib import Path

import pytest

from truedraft.bench.workload import (
    KINDS,
    WARM_UP_TEXTS,
    Prompt,
    first_of_each_kind,
    load_builtin,
    load_file,
    parse_lines,
    take_turns,
)
from truedraft.errors import ConfigError


def test_builtin_prompts_are_forty_and_more_ten_a_kind_and_distinct() -> None:
    prompts = load_builtin()
    assert len(prompts) >= 40
    for kind in KINDS:
        assert sum(prompt.kind == kind for prompt in prompts) >= 10
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert len({prompt.prompt_id for prompt in prompts}) == len(prompts)
    assert not {prompt.text for prompt in prompts} & set(WARM_UP_TEXTS)


def test_builtin_prompts_take_turns_by_kind() -> None:
    assert [prompt.kind for prompt in load_builtin()[:8]] == [*KINDS, *KINDS]


def test_take_turns_keeps_what_is_left_of_longer_groups() -> None:
    one = [Prompt("a1", "a", "x"), Prompt("a2", "a", "y")]
    other = [Prompt("b1", "b", "z")]
    assert [prompt.prompt_id for prompt in take_turns([one, other])] == ["a1", "b1", "a2"]


def test_first_of_each_kind() -> None:
    chosen = first_of_each_kind(load_builtin(), 2)
    assert [prompt.kind for prompt in chosen] == [*KINDS, *KINDS]


def test_file_with_and_without_kind_and_id(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One"}\n\n{"prompt": "Two", "kind": "law", "id": "x"}\n', encoding="utf-8")
    assert load_file(file) == (Prompt("line-1", "own", "One"), Prompt("x", "law", "Two"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"not json\n", "line 1: not JSON"),
        (b'{"prompt": "ok"}\n["list"]\n', "line 2: no prompt"),
        (b'{"prompt": "  "}\n', "no prompt"),
        (b'{"prompt": 3}\n', "no prompt"),
        (b'{"prompt": "a", "kind": 3}\n', "must be text"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_file(file)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_file(tmp_path / "none.jsonl")


def test_same_id_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="same id"):
        parse_lines('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', source="s")
