"""Tool calls are found whatever the pieces the text comes in."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from truedraft.server.tools import AutoParser, Call, NamedParser, Piece, RequiredParser, Text, ToolParser

NAMES = frozenset({"weather", "add"})
CALL = '{"name": "weather", "arguments": {"city": "Zürich"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
ANSWERS = [
    "Just text.",
    "",
    "   \n",
    "  indented",
    TAGGED,
    f"Let me see.\n{TAGGED}",
    f"{TAGGED}\n{TAGGED}\nThat is all. ",
    f"{TAGGED} and then text {TAGGED}",
    CALL,
    CALL.replace("arguments", "parameters"),
    f"<|python_tag|>{CALL}; {CALL}",
    f"{CALL}\n{CALL}",
    '{"name": "unknown", "arguments": {}}',
    '{"not": "a call"}',
    "{ broken json",
    "<tool_call>{broken</tool_call> after",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    f"<tool_call>\n{CALL}",
    "<tool_call>{",
    "a < b and <tool is no tag <tool_",
    "<",
    "<|python",
    '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<tool_call>{"name": ["add"], "arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>',
    f"text first {CALL}",
]


def parse(parser: ToolParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """→ (text, calls) of an answer that comes in `pieces`."""
    found: list[Piece] = []
    for piece in pieces:
        found += parser.feed(piece)
    found += parser.finish()
    calls: list[list[str]] = []
    for entry in found:
        if isinstance(entry, Call):
            if entry.name is not None:
                assert entry.index == len(calls)
                calls.append([entry.name, ""])
            calls[entry.index][1] += entry.arguments
    text = "".join(entry.text for entry in found if isinstance(entry, Text))
    return text, [(name, arguments) for name, arguments in calls]


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 500), max_size=30))
def test_pieces_do_not_matter(answer: str, places: list[int]) -> None:
    assert parse(AutoParser(NAMES), cut(answer, places)) == parse(AutoParser(NAMES), [answer])


def test_what_each_answer_means() -> None:
    expected = {
        "Just text.": ("Just text.", 0),
        "  indented": ("  indented", 0),
        TAGGED: ("", 1),
        f"Let me see.\n{TAGGED}": ("Let me see.\n", 1),
        f"{TAGGED}\n{TAGGED}\nThat is all. ": ("\nThat is all. ", 2),
        CALL: ("", 1),
        f"<|python_tag|>{CALL}; {CALL}": ("", 2),
        '{"not": "a call"}': ('{"not": "a call"}', 0),
        "{ broken json": ("{ broken json", 0),
        "<tool_call>{broken</tool_call> after": ("<tool_call>{broken</tool_call> after", 0),
        f"<tool_call>\n{CALL}": ("", 1),
        "<tool_call>{": ("<tool_call>{", 0),
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>': (
            '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
            0,
        ),
        f"text first {CALL}": (f"text first {CALL}", 0),
    }
    for answer, (text, num_calls) in expected.items():
        said, calls = parse(AutoParser(NAMES), [answer])
        assert (said, len(calls)) == (text, num_calls), answer
        assert all(json.loads(arguments) == {"city": "Zürich"} for _, arguments in calls)


@given(
    st.text(alphabet='<>{}tool_ca/"name: weather,\n;[]|', max_size=60),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_nothing_is_lost_without_calls(answer: str, places: list[int]) -> None:
    text, calls = parse(AutoParser(NAMES), cut(answer, places))
    assert calls or text == answer


@given(st.lists(st.integers(0, 300), max_size=20))
def test_required_calls_come_one_by_one(places: list[int]) -> None:
    answer = '[{"name": "add", "parameters": {"a": [1, 2]}},\n {"name": "weather", "parameters": {}}]'
    expected = ("", [("add", '{"a": [1, 2]}'), ("weather", "{}")])
    assert parse(RequiredParser(NAMES), cut(answer, places)) == expected


def test_required_cut_short() -> None:
    assert parse(RequiredParser(NAMES), ['[{"name": "add", "par']) == ('[{"name": "add", "par', [])
    whole_then_cut = ['[{"name": "add", "parameters": {}}, {"na']
    assert parse(RequiredParser(NAMES), whole_then_cut) == ("", [("add", "{}")])


def test_named_takes_everything() -> None:
    assert parse(NamedParser("add"), ["", '{"a"', ": 1}"]) == ("", [("add", '{"a": 1}')])
    assert parse(NamedParser("add"), []) == ("", [])


def test_half_a_surrogate_pair_stays_escaped() -> None:
    answer = '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>'
    assert parse(AutoParser(NAMES), [answer])[1] == [("add", '{"a": "\\ud800"}')]
