"""Launch commands as people paste them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.diagnosis.command import parse_command
from truedraft.diagnosis.facts import RunFacts
from truedraft.errors import ConfigError

VLLM = """VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/target \\
  --speculative-config '{"method": "dflash", "model": "org/draft", "num_speculative_tokens": 15}' \\
  --max-num-batched-tokens 32768 --gpu-memory-utilization=0.9 --enforce-eager -tp 2 --port 8000
"""
SGLANG = (
    "python -m sglang.launch_server --model-path org/target --speculative-algorithm DFLASH "
    "--speculative-draft-model-path org/draft --speculative-num-draft-tokens 16 --mem-fraction-static 0.75"
)


def test_vllm() -> None:
    run = parse_command(VLLM)
    assert run.engine == "vllm" and run.environment == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert run.flags["model"] == "org/target" and run.flags["speculative.num_speculative_tokens"] == 15
    assert run.flags["speculative.method"] == "dflash" and run.flags["tensor-parallel-size"] == 2
    assert run.flags["gpu-memory-utilization"] == 0.9 and run.flags["enforce-eager"] is True
    assert run.flag_int("max-num-batched-tokens") == 32768 and run.flag_text("speculative.method") == "dflash"


def test_sglang() -> None:
    run = parse_command(SGLANG)
    assert run.engine == "sglang" and run.flags["model"] == "org/target"
    assert run.flags["speculative-num-draft-tokens"] == 16 and run.flags["mem-fraction-static"] == 0.75


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("vllm serve m --speculative-config.method dflash", "speculative.method", "dflash"),
        ("vllm serve m -sc.num-speculative-tokens 7", "speculative.num_speculative_tokens", 7),
        ("/opt/bin/vllm serve m --max_num_seqs 8", "max-num-seqs", 8),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "model", "m"),
        ("export A=1\nvllm serve m --seed -1", "seed", -1),
        ("docker run --gpus all image vllm serve m --enable-lora", "enable-lora", True),
        ("vllm serve m --no-enable-prefix-caching # without reuse", "no-enable-prefix-caching", True),
        ("sglang serve --model-path m --enable-dp-attention", "enable-dp-attention", True),
    ],
)
def test_spellings(text: str, name: str, value: Any) -> None:
    assert parse_command(text).flags[name] == value


def test_facts_that_are_known_already_stay() -> None:
    run = parse_command(
        "vllm serve m --seed 1", RunFacts(engine="vllm-ascend", version=(0, 26), flags={"x": 1})
    )
    assert (
        run.engine == "vllm-ascend"
        and run.version == (0, 26)
        and run.flags == {"x": 1, "model": "m", "seed": 1}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no launch command"),
        ("ls -la", "no launch command"),
        ("vllm serve 'm", "unbalanced quotes"),
        ("vllm serve m --speculative-config {method:dflash}", "not valid JSON"),
        ("vllm serve m --speculative-config '[1]'", "JSON object"),
        ("vllm " * 20_000, "too long"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_command(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=120), st.sampled_from(["", "vllm serve ", "python -m sglang.launch_server "]))
def test_any_text_gives_facts_or_a_config_error(text: str, start: str) -> None:
    try:
        parse_command(start + text)
    except ConfigError:
        return
