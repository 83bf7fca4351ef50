"""Runs: arms take turns, groups fill the streams, figures add up, failures end the run."""

from dataclasses import dataclass, field

import pytest

from truedraft.backends.scripted import Answer, ScriptedBackend
from truedraft.bench.measure import BenchSettings, Group, group_prompts, measure
from truedraft.bench.report import acceptance_by_position, build_report, pooled_tau, report_json
from truedraft.bench.workload import Prompt
from truedraft.contract.request import GenerateRequest, SamplingParams, SpeculationStats
from truedraft.errors import BackendError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def prompts_of(num: int) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"p{index}", "code" if index % 2 else "chat", f"Prompt {index}") for index in range(num)
    )


@dataclass
class Recorder:
    """A script that notes what was asked, and how many answers ran at once."""

    asked: list[tuple[str, object]] = field(default_factory=list)

    def __call__(self, prompt: str, request: GenerateRequest) -> str:
        self.asked.append((request.request_id.rsplit("-", 1)[0], request.speculation))
        return f"answer to {prompt[-20:]}"


async def run(num: int, widths: tuple[int, ...], **backend_options: object) -> tuple[list[Group], Recorder]:
    recorder = Recorder()
    backend = ScriptedBackend(recorder, **backend_options)  # type: ignore[arg-type]
    return await measure(backend, prompts_of(num), BenchSettings(GREEDY, widths)), recorder


async def test_arms_take_turns_at_going_first() -> None:
    groups, recorder = await run(4, (1,))
    measured = [name for name, _ in recorder.asked if "warm-up" not in name]
    assert measured == [
        "bench-plain-p0", "bench-dflash-p0",
        "bench-dflash-p1", "bench-plain-p1",
        "bench-plain-p2", "bench-dflash-p2",
        "bench-dflash-p3", "bench-plain-p3",
    ]  # fmt: skip
    assert len(groups) == 4


async def test_plain_arm_asks_for_no_speculation_and_dflash_for_the_setting() -> None:
    recorder = Recorder()
    settings = BenchSettings(GREEDY, (1,), speculation=4)
    groups = await measure(ScriptedBackend(recorder), prompts_of(2), settings)
    assert {spec for name, spec in recorder.asked if "plain" in name} == {"off"}
    assert {spec for name, spec in recorder.asked if "dflash" in name} == {4}
    assert all(answer.usage.speculation.num_rounds == 0 for group in groups for answer in group.plain)
    assert all(answer.usage.speculation.num_rounds > 0 for group in groups for answer in group.dflash)


async def test_warm_up_comes_first_for_every_width_and_is_not_measured() -> None:
    groups, recorder = await run(8, (1, 2))
    names = [name for name, _ in recorder.asked]
    assert "warm-up" in names[0]
    assert sum("warm-up" in name for name in names) == 2 * 2 * 1 + 2 * 2 * 2
    assert not any(answer.prompt.kind == "warm-up" for group in groups for answer in group.dflash)


async def test_concurrency_keeps_that_many_streams_busy() -> None:
    most = 0

    def script(prompt: str, request: GenerateRequest) -> Answer:
        nonlocal most
        most = max(most, backend.stats().num_running + backend.stats().num_waiting)
        return Answer("a few words to say", delay_s=0.002)

    backend = ScriptedBackend(script)
    await measure(backend, prompts_of(8), BenchSettings(GREEDY, (4,)))
    assert most == 3  # the fourth is being accepted


async def test_answers_come_in_the_prompts_order_and_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    groups = await measure(
        ScriptedBackend(),
        prompts_of(8),
        BenchSettings(GREEDY, (2,)),
        on_progress=lambda *now: seen.append(now),
    )
    ids = [answer.prompt.prompt_id for group in groups for answer in group.plain]
    assert ids == [f"p{index}" for index in range(8)]
    assert seen == [(done, 16) for done in range(1, 17)]


async def test_seeds_differ_by_prompt_and_agree_between_arms() -> None:
    seeds: dict[str, set[int | None]] = {}

    def script(prompt: str, request: GenerateRequest) -> str:
        if "warm-up" not in request.request_id:
            seeds.setdefault(request.request_id.split("-")[2], set()).add(request.sampling.seed)
        return "text"

    settings = BenchSettings(SamplingParams(temperature=0.7, max_tokens=8, seed=5), (1,))
    await measure(ScriptedBackend(script), prompts_of(3), settings)
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 3


async def test_a_failed_answer_ends_the_run_with_its_reason() -> None:
    backend = ScriptedBackend(lambda prompt, request: Answer("words and words", fail_after=1))
    with pytest.raises(BackendError, match="told to fail"):
        await measure(backend, prompts_of(4), BenchSettings(GREEDY, (2,)))


async def test_a_refused_request_ends_the_run_as_itself() -> None:
    backend = ScriptedBackend(lambda prompt, request: Answer("", refuse=RequestError("too odd")))
    with pytest.raises(RequestError, match="too odd"):
        await measure(backend, prompts_of(2), BenchSettings(GREEDY, (1,)))


def test_groups_of_one_for_one_stream_and_of_two_widths_otherwise() -> None:
    assert [len(group) for group in group_prompts(prompts_of(5), 1)] == [1, 1, 1, 1, 1]
    assert [len(group) for group in group_prompts(prompts_of(18), 4)] == [8, 10]
    assert [len(group) for group in group_prompts(prompts_of(3), 8)] == [3]


def test_pooled_tau_weighs_by_rounds() -> None:
    many = SpeculationStats(num_rounds=9, num_committed=18)
    few = SpeculationStats(num_rounds=1, num_committed=7)
    assert pooled_tau([many, few]) == 2.5
    assert pooled_tau([SpeculationStats()]) is None


def test_acceptance_by_position_counts_only_rounds_that_verified_the_position() -> None:
    short = SpeculationStats(accepted_by_position=(3, 1), drafted_by_position=(4, 4))
    long = SpeculationStats(accepted_by_position=(1, 1, 1), drafted_by_position=(4, 2, 2))
    assert acceptance_by_position([short, long]) == (0.5, 2 / 6, 0.5)
    assert acceptance_by_position([SpeculationStats()]) == ()


async def test_report_adds_up() -> None:
    backend = ScriptedBackend()
    settings = BenchSettings(GREEDY, (1, 2))
    groups = await measure(backend, prompts_of(8), settings)
    report = build_report(groups, backend.info, settings, {1: 2.0, 8: 2.5})
    value = report_json(report)
    committed = rounds = 0
    for group in groups:
        if group.concurrency == 1:
            for answer in group.dflash:
                committed += answer.usage.speculation.num_committed
                rounds += answer.usage.speculation.num_rounds
    assert value["tau"]["value"] == pytest.approx(committed / rounds, abs=1e-4)
    assert value["num_rounds"] == rounds
    assert set(value["tau_by_kind"]) == {"chat", "code"} == set(value["ratio_by_kind"])
    assert value["by_concurrency"]["1"]["num_same_answers"] == 8
    assert value["plain_tok_per_s"] == value["by_concurrency"]["1"]["plain_tok_per_s"]
    assert value["plain_tok_per_s"]["low"] <= value["plain_tok_per_s"]["value"]
    assert value["cost_curve_ms"] == {"1": 2.0, "8": 2.5}
    assert value["verdict"] in ("faster", "even", "slower")
    assert len(value["acceptance_by_position"]) == 7
