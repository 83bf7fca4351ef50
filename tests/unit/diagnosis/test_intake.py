"""Every kind of source is known by its content, alone and in a mix; any bytes are survived."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from diagnosis_cases import SERVING, sorted_texts, vllm_line, vllm_metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.diagnosis import intake as intake_module
from truedraft.diagnosis.bench import read_bench, speed_up, unfair
from truedraft.diagnosis.evidence import gather, run_of
from truedraft.diagnosis.explain import explain
from truedraft.diagnosis.facts import RunFacts
from truedraft.diagnosis.intake import Sorter

BENCH = {
    "backend": "vllm",
    "dataset_name": "spec_bench",
    "max_concurrency": 8,
    "completed": 80,
    "failed": 0,
    "output_throughput": 812.5,
    "mean_tpot_ms": 9.1,
    "spec_decode_acceptance_length": 5.28,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 7000,
    "spec_decode_accepted_tokens": 4276,
    "spec_decode_per_position_acceptance_rates": [0.929, 0.816, 0.684, 0.571, 0.490, 0.429, 0.357],
}
PLAIN = {key: value for key, value in BENCH.items() if not key.startswith("spec_")} | {
    "output_throughput": 400.0
}
COMMAND = """VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/target \\
    --max-num-seqs 64 \\
    --speculative-config '{"method": "dflash", "model": "org/draft", "num_speculative_tokens": 7}'
"""


def test_a_mix_pasted_together() -> None:
    config = json.dumps({"architectures": ["DFlashDraftModel"], "block_size": 8}, indent=2)
    text = f"$ {COMMAND}{SERVING}{config}\n{vllm_metrics(10, (5,), generated=15)}{json.dumps(BENCH)}\nINFO fine\n"
    found = sorted_texts(text)
    assert found.kinds == (("text-0", ("command", "log", "config", "metrics", "benchmark")),)
    assert len(found.commands) == len(found.metrics) == len(found.benches) == len(found.configs) == 1
    assert found.log is not None and found.log.num_lines == 3 and found.log.phase == "serving"
    run, notes = run_of(found, RunFacts())
    assert notes == () and (run.engine, run.version) == ("vllm", (0, 33, 0))
    assert run.flags["speculative.num_speculative_tokens"] == 7 and run.flags["max-num-seqs"] == 64
    assert run.environment == {"VLLM_USE_V2_MODEL_RUNNER": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m",
        "$ python3 -m sglang.launch_server --model-path m",
        "sudo docker run --gpus all vllm/vllm-openai:v0.26.0 --model m",
        "/opt/llama.cpp/build/bin/llama-server -m target.gguf -md draft.gguf",
        "CUDA_VISIBLE_DEVICES=0 nohup /venv/bin/vllm serve m",
    ],
)
def test_commands(text: str) -> None:
    assert sorted_texts(text).commands == (text.removeprefix("$ "),)


def test_a_command_that_cannot_be_judged_is_said() -> None:
    run, notes = run_of(sorted_texts("llama-server -m target.gguf"), RunFacts())
    assert run == RunFacts() and "no launch command of a known engine" in notes[0]


def test_arguments_that_the_log_prints() -> None:
    text = (
        "INFO vLLM API server version 0.26.0\nINFO non-default args: {'model_tag': 'org/t', 'max_num_seqs': 4, "
        "'speculative_config': {'method': 'dflash', 'num_speculative_tokens': 15}}\n"
    )
    run, _ = run_of(sorted_texts(text), RunFacts())
    assert run.flags == {
        "model": "org/t",
        "max-num-seqs": 4,
        "speculative.method": "dflash",
        "speculative.num_speculative_tokens": 15,
    }
    broken = sorted_texts("INFO non-default args: {'model_tag': 'org/t', 'x': <object at 0x1>}\n").log
    assert broken is not None and broken.flags == {}


def test_llama_cpp() -> None:
    text = """build: 10066 (0a1b2c3) with cc for x86_64-linux-gnu
llama_model_loader: loaded meta data with 38 key-value pairs
common_speculative_impl_draft_dflash: adding speculative implementation 'draft-dflash'
  - block_size=16, mask_token_id=248070, n_extract=5 (5 target layers)
main: server is listening on http://127.0.0.1:8080
draft acceptance rate = 0.06781 (  178 accepted /  2625 generated)
statistics dflash: #calls(b,g,a) = 4 750 454, #gen drafts = 750, #acc drafts = 454, #gen tokens = 11250, #acc tokens = 844, dur(b,g,a) = 0.003, 6842.287, 0.077 ms
"""
    found = sorted_texts(text)
    assert found.log is not None and (found.log.engine, found.log.phase) == ("llama.cpp", "serving")
    assert found.log.version == (10066,) and found.log.flags["mask_token_id"] == 248070
    evidence = gather(found, run_of(found, RunFacts())[0])
    assert evidence.acceptance is not None and evidence.acceptance.num_rounds == 750
    assert evidence.acceptance.mean_committed == pytest.approx(2.125, abs=0.001)
    assert explain(evidence).state == "poor_match"


def test_sglang_by_context_length() -> None:
    lines = ["[2026] The server is fired up and ready to roll!"]
    for number in range(60):
        tokens = 400 + 150 * number
        tau = 4.2 if tokens < 4000 else 1.4
        lines.append(
            f"[2026] Decode batch, #running-req: 2, #token: {2 * tokens}, token usage: 0.01, accept len: {tau:.2f}, "
            f"accept rate: 0.21, cuda graph: True, gen throughput (token/s): 93.10, #queue-req: 0"
        )
    found = gather(sorted_texts("\n".join(lines)), RunFacts(engine="sglang", version=(0, 5, 23)))
    assert found.fall is not None and "up to 1,024 tokens of context" in found.fall.said
    diagnosis = explain(found)
    assert diagnosis.state == "fell_with_context" and diagnosis.causes[0].id == "window"


def test_benchmarks_and_their_ratio() -> None:
    [one], [other] = (sorted_texts(json.dumps(run)).benches for run in (BENCH, PLAIN))
    ratio = speed_up((one, other))
    assert ratio is not None and ratio[0] == pytest.approx(2.03, abs=0.01) and unfair(one, other) == ()
    assert speed_up((one, one)) is None
    failed = read_bench(PLAIN | {"failed": 3, "dataset_name": "random"}, "b")
    assert len(unfair(one, failed)) == 2


def test_the_printed_table_of_a_benchmark() -> None:
    text = """============ Serving Benchmark Result ============
Successful requests:                     80
Maximum request concurrency:             8
Output token throughput (tok/s):         812.50
Mean TPOT (ms):                          9.10
Acceptance rate (%):                     61.09
Acceptance length:                       5.28
Drafts:                                  1000
Draft tokens:                            7000
Accepted tokens:                         4276
"""
    [bench] = sorted_texts(text).benches
    assert bench.tok_per_s == 812.5 and bench.acceptance is not None and bench.acceptance.num_accepted == 4276


@pytest.mark.parametrize(
    ("value", "tau"),
    [
        ({"internal_states": [{"avg_spec_accept_length": 3.2}]}, 3.2),
        ({"internal_states": [{"avg_spec_accept_length": 0}]}, None),
        ({"internal_states": [{"avg_spec_accept_length": "x"}]}, None),
        ({"internal_states": 5}, None),
    ],
)
def test_sglangs_server_info(value: dict[str, Any], tau: float | None) -> None:
    found = sorted_texts(json.dumps(value))
    evidence = gather(found, run_of(found, RunFacts())[0])
    assert (None if evidence.acceptance is None else evidence.acceptance.tau) == tau
    assert tau is None or evidence.run.engine == "sglang"


def test_structured_logs_and_colours() -> None:
    text = (
        '{"level": "error", "message": "ValueError: DFLASH fc.weight shape mismatch"}\n'
        "\x1b[1;31mERROR\x1b[0m \x1b[33mtorch.OutOfMemoryError\x1b[0m: CUDA out of memory\n{not json}\n"
    )
    log = sorted_texts(text).log
    assert log is not None and log.first_error is not None
    assert log.first_error.signature.id == "capture.fc" and log.others[0].signature.id == "memory.out"


def test_huge_objects_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "MAX_JSON_LEN", 1000)
    found = sorted_texts("{\n" + '"a": 1,\n' * 500 + '"b": 2\n}\n')
    assert found.benches == () and "more than 1000 characters" in found.notes[0]


def test_a_wrong_type_counts_as_absent() -> None:
    bench = read_bench(
        {
            "output_throughput": "fast",
            "completed": True,
            "failed": float("nan"),
            "spec_decode_num_drafts": [1],
        },
        "b",
    )
    assert (bench.tok_per_s, bench.num_completed, bench.num_failed, bench.acceptance) == (
        None,
        None,
        None,
        None,
    )


LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "{", "}", '{"a": 1}', '{"spec_decode_x": 1}', "vllm serve m \\", "$ vllm serve 'm", "\\",
            'vllm:x{position="1"} 1', "# TYPE x", "ValueError: x", "draft acceptance = 0.1 (1 accepted / 2 generated)",
            vllm_line(100, (0.5, 0.6)).strip(), "INFO non-default args: {'a': (", '{"architectures": 5}', "\x00\ufffd",
        ]
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, max_size=15), st.lists(LINES, max_size=5))
def test_any_lines_give_a_diagnosis(first: list[str], second: list[str]) -> None:
    found = sorted_texts("\n".join(first), "\n".join(second))
    run, notes = run_of(found, RunFacts())
    diagnosis = explain(gather(found, run, notes=notes))
    assert diagnosis.headline and all(cause.next_step for cause in diagnosis.causes)


@pytest.mark.parametrize(
    "line",
    [
        "A=b " * 20_000 + "vllm",
        "vllm:x{" * 5_000,
        "Decode batch #running-req: 1, #token: 1 accept len: " * 300,
        "statistics dflash: #gen drafts = 1" * 300,
        "non-default args: {" + "[" * 15_000,
        "sudo " * 10_000,
        "{" * 100_000,
        "set_dflash_layers_to_capture IndexError " * 400,
        "draft " * 3_000 + "falling",
    ],
)
def test_absurd_lines_take_no_time(line: str) -> None:
    started = time.perf_counter()
    sorter = Sorter()
    sorter.text("x", [line] * 5)
    assert sorter.done().kinds and time.perf_counter() - started < 4
