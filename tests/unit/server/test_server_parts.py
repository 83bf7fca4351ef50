"""Pure parts of the server: bodies, admission, errors, grammars, schemas of calls, logprobs."""

from __future__ import annotations

import inspect
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truedraft import errors
from truedraft.backends.byte_tokenizer import Utf8Stream
from truedraft.contract.acceptance import merge_speculation
from truedraft.contract.request import PositionLogprobs, SpeculationStats, TokenLogprob
from truedraft.errors import RequestError, TruedraftError
from truedraft.server import http_errors, ignored_fields
from truedraft.server.admission import Admission
from truedraft.server.body import MAX_DEPTH, parse_json
from truedraft.server.constraints import grammar_of
from truedraft.server.histogram import WeightedHistogram
from truedraft.server.http_errors import DrainingError, QueueFullError, error_body, fault_of
from truedraft.server.logprobs import chat_logprobs
from truedraft.server.schema_chat import ChatBody
from truedraft.server.schema_completion import CompletionBody
from truedraft.server.tool_choice import plan_tools
from truedraft.server.validation import parse_body


def chat_body(**fields: Any) -> ChatBody:
    raw = {"messages": [{"role": "user", "content": "x"}]} | fields
    return parse_body(ChatBody, raw, ignored_fields.CHAT)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_request_error(data: bytes) -> None:
    try:
        assert isinstance(parse_json(data), dict)
    except RequestError as error:
        assert str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from(
    [*ChatBody.model_fields, *CompletionBody.model_fields, *ignored_fields.CHAT, "unheard_of"]
)


@given(st.dictionaries(field_names, json_values, max_size=5))
def test_any_fields_give_a_body_or_a_request_error(fields: dict[str, Any]) -> None:
    for model, ignored in ((ChatBody, ignored_fields.CHAT), (CompletionBody, ignored_fields.COMPLETION)):
        try:
            body = parse_body(model, fields, ignored)
        except RequestError as error:
            assert str(error)
            assert error.param
        else:
            assert body.model_fields_set <= fields.keys()


def test_depth_is_limited_at_the_stated_number() -> None:
    deepest = b'{"a":' * (MAX_DEPTH - 1) + b"1" + b"}" * (MAX_DEPTH - 1)
    parse_json(deepest)
    with pytest.raises(RequestError, match="64 levels"):
        parse_json(b'{"a":' + deepest + b"}")


def test_no_field_is_both_served_and_ignored() -> None:
    assert not ChatBody.model_fields.keys() & ignored_fields.CHAT.keys()
    assert not CompletionBody.model_fields.keys() & ignored_fields.COMPLETION.keys()


def test_ignored_values_are_compared_with_their_type() -> None:
    assert chat_body(priority=0, store=False)
    for fields in ({"priority": False}, {"store": 0}, {"best_of": True}):
        with pytest.raises(RequestError):
            chat_body(**fields)


def test_every_error_class_has_a_place_in_the_table() -> None:
    for module in (errors, http_errors):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, TruedraftError):
                error = cls("what went wrong")
                fault = fault_of(error)
                assert 400 <= fault.status <= 599
                assert error_body(error)["error"]["message"] == "what went wrong."
    assert fault_of(KeyError()).status == 500


def test_admission_counts_and_drains() -> None:
    running = 0
    admission = Admission(max_queue_len=3, num_running=lambda: running)
    first = admission.enter(3)
    with pytest.raises(QueueFullError):
        admission.enter(1)
    running = 3
    second = admission.enter(2)
    with pytest.raises(RequestError, match="4 sequences"):
        admission.enter(4)
    assert admission.in_flight == 5
    first.release()
    first.release()
    assert admission.in_flight == 2
    admission.start_drain()
    with pytest.raises(DrainingError):
        admission.enter(1)
    second.release()
    assert admission.in_flight == 0


def test_a_queue_of_no_length_still_lets_one_in() -> None:
    admission = Admission(max_queue_len=0, num_running=lambda: admission.in_flight)
    admission.enter(1)
    admission.enter(1)
    assert admission.in_flight == 2


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"guided_json": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"guided_json": '{"type":"object"}'}, "json_schema", '{"type": "object"}'),
        ({"guided_regex": "[a-z]+"}, "regex", "[a-z]+"),
        ({"guided_choice": ["ä", "b"]}, "choice", '["ä", "b"]'),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", '{"type": "null"}'),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a"),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
    ],
)
def test_grammars(fields: dict[str, Any], kind: str, source: str) -> None:
    grammar = grammar_of(chat_body(**fields))
    assert grammar is not None
    assert (grammar.kind, grammar.source) == (kind, source)


def test_definitions_of_tools_move_to_the_root() -> None:
    place = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/P"}},
        "$defs": {"P": {"type": "string"}},
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": place}} for name in ("f", "g")]
    plan = plan_tools(chat_body(tools=tools, tool_choice="required", parallel_tool_calls=False))
    assert plan.grammar is not None
    schema = json.loads(plan.grammar.source)
    assert schema["$defs"] == {"P": {"type": "string"}}
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert "$defs" not in schema["items"]["anyOf"][0]["properties"]["parameters"]
    other = json.loads(json.dumps(tools))
    other[1]["function"]["parameters"]["$defs"]["P"] = {"type": "number"}
    with pytest.raises(RequestError, match="differently"):
        plan_tools(chat_body(tools=other, tool_choice="required"))


def test_minus_infinity_stays_json() -> None:
    position = PositionLogprobs(TokenLogprob(1, float("-inf"), 5), (TokenLogprob(2, -0.1, 1),))
    shaped = chat_logprobs([position], lambda token_id: "a" if token_id == 1 else "�")
    assert shaped["content"][0]["logprob"] == -9999.0
    assert shaped["content"][0]["bytes"] == [97]
    assert shaped["content"][0]["top_logprobs"][0]["bytes"] is None
    json.dumps(shaped, allow_nan=False)


def test_merged_statistics_add_up() -> None:
    one = SpeculationStats(2, 8, 3, 5, 1, (2, 1), (2, 2))
    two = SpeculationStats(1, 3, 3, 4, 0, (1, 1, 1), (1, 1, 1))
    assert merge_speculation([one, two]) == SpeculationStats(3, 11, 6, 9, 1, (3, 2, 1), (3, 3, 1))
    assert merge_speculation([]) == SpeculationStats()


def test_histogram_takes_weights() -> None:
    histogram = WeightedHistogram("h", "doc", (1.0, 2.0))
    histogram.observe(1.0, weight=3)
    histogram.observe(5.0)
    samples = {(s.name, s.labels.get("le")): s.value for s in histogram.family().samples}
    assert samples[("h_bucket", "1.0")] == 3
    assert samples[("h_bucket", "2.0")] == 3
    assert samples[("h_bucket", "+Inf")] == samples[("h_count", None)] == 4
    assert samples[("h_sum", None)] == 8.0


@given(st.text(), st.lists(st.integers(0, 400), max_size=20))
def test_characters_stay_whole(text: str, places: list[int]) -> None:
    data = text.encode()
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    stream = Utf8Stream()
    pieces = [stream.feed(data[a:b]) for a, b in itertools.pairwise(marks)]
    assert "".join(pieces) + stream.feed(b"", final=True) == text
    assert all("�" not in piece for piece in pieces) or "�" in text
