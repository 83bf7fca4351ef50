"""The official client, sync and async, streaming and not, against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from http_server import HttpServer

ASK = [{"role": "user", "content": "Hello there"}]
NAME = "scripted"


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": NAME, "messages": ASK, "temperature": 0.0} | fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": NAME, "prompt": "Hello", "temperature": 0.0} | fields)


def streamed_text(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_chat_answers_with_usage_and_speculation(client: openai.OpenAI) -> None:
    answer = chat(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.model == NAME
    assert choice.message.role == "assistant"
    assert choice.message.content.endswith(".")
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    spec = usage.model_extra["speculation"]
    assert spec["rounds"] > 0
    assert spec["tau"] == pytest.approx(spec["committed"] / spec["rounds"])
    assert sum(spec["accepted_by_position"]) == spec["accepted"] <= spec["drafted"]


def test_streams_equal_whole_answers(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=40)
    chunks = list(chat(client, max_tokens=40, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert streamed_text(chunks) == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["length"]
    assert reasons[-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert chunks[-1].usage.model_extra["speculation"]["rounds"] > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_continuous_usage_grows(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, max_tokens=30, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 30


def test_the_stream_helper_of_the_client_works(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=NAME, messages=ASK, temperature=0.0) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == chat(client).choices[0].message.content


def test_n_choices_differ_and_repeat_with_a_seed(client: openai.OpenAI) -> None:
    one = [c.message.content for c in chat(client, n=3, seed=11, temperature=1.0).choices]
    two = [c.message.content for c in chat(client, n=3, seed=11, temperature=1.0).choices]
    assert one == two
    assert len(set(one)) == 3
    # Choice i is what seed + i gives alone.
    assert chat(client, seed=12, temperature=1.0).choices[0].message.content == one[1]
    chunks = chat(client, n=3, seed=11, temperature=1.0, stream=True)
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == one


def test_usage_counts_the_prompt_once_for_all_choices(client: openai.OpenAI) -> None:
    alone, both = chat(client, max_tokens=5), chat(client, n=2, max_tokens=5)
    assert both.usage.prompt_tokens == alone.usage.prompt_tokens
    assert both.usage.completion_tokens == 10


def test_chat_logprobs_have_openai_shape(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2, max_tokens=6)
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert bytes(content[0].bytes).decode() == content[0].token
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    chunks = list(chat(client, logprobs=True, top_logprobs=2, max_tokens=6, stream=True))
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_bytes_are_null_for_parts_of_characters(client: openai.OpenAI) -> None:
    answer = complete(client, prompt="x", max_tokens=1, extra_body={"guided_choice": ["é"]})
    assert answer.choices[0].finish_reason == "length"
    scored = client.chat.completions.create(
        model=NAME, messages=ASK, max_tokens=1, logprobs=True, extra_body={"guided_choice": ["é"]}
    )
    assert scored.choices[0].logprobs.content[0].bytes is None


def test_stop_strings(client: openai.OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stop = whole[4:7]
    for given in (stop, ["no such text", stop]):
        choice = chat(client, stop=given).choices[0]
        assert choice.message.content == whole[: whole.find(stop)]
        assert choice.finish_reason == "stop"
        assert choice.model_extra["stop_reason"] == stop
        assert streamed_text(chat(client, stop=given, stream=True)) == choice.message.content


def test_speculation_can_be_chosen_and_traced(client: openai.OpenAI) -> None:
    plain = chat(client, extra_body={"speculation": "off"})
    assert plain.usage.model_extra["speculation"]["rounds"] == 0
    assert plain.usage.model_extra["speculation"]["tau"] is None
    three = chat(
        client, seed=5, extra_body={"speculation": 3, "speculation_trace": True, "return_token_ids": True}
    )
    assert len(three.usage.model_extra["speculation"]["accepted_by_position"]) == 3
    choice = three.choices[0]
    assert plain.choices[0].message.content == choice.message.content
    rounds = choice.model_extra["speculation_trace"]
    origins = [origin for entry in rounds for origin in entry["origins"]]
    assert len(origins) == len(choice.model_extra["token_ids"])
    assert sum(origin > 0 for origin in origins) == three.usage.model_extra["speculation"]["accepted"]
    assert max(origins) <= 3
    chunks = chat(client, seed=5, stream=True, extra_body={"speculation": 3, "speculation_trace": True})
    streamed = [
        origin
        for chunk in chunks
        for origin in (chunk.choices[0].model_extra.get("speculation") or {"origins": []})["origins"]
    ]
    assert streamed == origins


def test_completions_take_every_form_of_prompt(client: openai.OpenAI) -> None:
    ids = list(b"Hello")
    by_text = complete(client, prompt=["Hello", "World"], max_tokens=5)
    by_ids = complete(client, prompt=[[256, *ids], [256, *b"World"]], max_tokens=5)
    assert [c.text for c in by_text.choices] == [c.text for c in by_ids.choices]
    assert [c.index for c in by_text.choices] == [0, 1]
    one = complete(client, prompt=[256, *ids], max_tokens=5)
    assert one.choices[0].text == by_text.choices[0].text
    assert one.usage.prompt_tokens == 6


def test_completions_default_to_sixteen_tokens(client: openai.OpenAI) -> None:
    assert complete(client).usage.completion_tokens == 16


def test_echo_with_logprobs(client: openai.OpenAI) -> None:
    fields = {"prompt": ["Hé", "B"], "echo": True, "logprobs": 2, "n": 2, "max_tokens": 4}
    answer = complete(client, **fields)
    for choice in answer.choices:
        shaped = choice.logprobs
        assert choice.text.startswith("Hé" if choice.index < 2 else "B")
        assert shaped.token_logprobs[0] is None
        assert None not in shaped.token_logprobs[1:]
        assert len(shaped.tokens) == len(shaped.text_offset) == len(shaped.top_logprobs)
    texts, tokens = [""] * 4, [[] for _ in range(4)]
    for chunk in complete(client, **fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
    assert texts == [choice.text for choice in answer.choices]
    assert tokens == [choice.logprobs.tokens for choice in answer.choices]


def test_echo_alone_scores_the_prompt(client: openai.OpenAI) -> None:
    fields = {"prompt": "Score", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = complete(client, **fields)
    choice = answer.choices[0]
    assert choice.text == "Score"
    assert choice.logprobs.tokens == ["<|bos|>", *"Score"]
    assert len(choice.logprobs.token_logprobs) == 6
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    chunks = list(complete(client, **fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Score"
    assert chunks[-1].choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError):
        complete(client, max_tokens=0)


def test_prompt_logprobs_in_vllm_shape(client: openai.OpenAI) -> None:
    answer = complete(client, prompt=[1, 2, 3], max_tokens=1, extra_body={"prompt_logprobs": 1})
    scored = answer.choices[0].model_extra["prompt_logprobs"]
    assert scored[0] is None
    assert scored[1]["2"]["rank"] == 1
    assert set(scored[2]["3"]) == {"logprob", "rank", "decoded_token"}
    chatted = chat(client, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert len(chatted.model_extra["prompt_logprobs"]) == chatted.usage.prompt_tokens


def test_structured_outputs_reach_the_backend(client: openai.OpenAI) -> None:
    picked = chat(client, extra_body={"structured_outputs": {"choice": ["left", "right"]}})
    assert picked.choices[0].message.content == "left"
    schema = {"name": "place", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    shaped = chat(client, response_format={"type": "json_schema", "json_schema": schema})
    assert shaped.choices[0].message.content == '{"city": "Bern"}'
    assert chat(client, response_format={"type": "json_object"}).choices[0].message.content == "{}"
    assert chat(client, response_format={"type": "text"}).choices[0].message.content.endswith(".")


def test_messages_in_all_forms(client: openai.OpenAI, server: HttpServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    answer = chat(client, messages=messages, extra_body={"return_token_ids": True}, max_tokens=1)
    prompt = bytes(i for i in answer.model_extra["prompt_token_ids"] if i < 256).decode()
    assert "one\ntwo" in prompt
    assert '"arguments": {"a": 1}' in prompt
    assert prompt.startswith("system\nBe brief.")


def test_an_answer_can_go_back_as_history(client: openai.OpenAI) -> None:
    message = chat(client).choices[0].message
    again = chat(client, messages=[*ASK, message, {"role": "user", "content": "More"}])
    assert again.choices[0].message.content


def test_final_message_is_continued(client: openai.OpenAI) -> None:
    messages = [*ASK, {"role": "assistant", "content": "Well"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    answer = chat(client, messages=messages, extra_body=extra, max_tokens=1)
    assert bytes(answer.model_extra["prompt_token_ids"][-4:]) == b"Well"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    model = client.models.retrieve(NAME)
    assert model.model_extra["max_model_len"] == 4096
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-9")


async def test_async_client_with_many_at_once(server: HttpServer) -> None:
    async with server.async_client() as client:

        async def whole(i: int) -> str:
            ask = [{"role": "user", "content": f"Question {i}"}]
            answer = await client.chat.completions.create(model=NAME, messages=ask, temperature=0.0)
            return answer.choices[0].message.content or ""

        async def streamed(i: int) -> str:
            ask = [{"role": "user", "content": f"Question {i}"}]
            stream = await client.chat.completions.create(
                model=NAME, messages=ask, temperature=0.0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        wholes = await asyncio.gather(*(whole(i) for i in range(12)))
        streams = await asyncio.gather(*(streamed(i) for i in range(12)))
    assert wholes == streams
    assert len(set(wholes)) == 12
