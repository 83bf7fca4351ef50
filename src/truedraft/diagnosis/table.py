"""All rules, in the order in which they are listed and documented."""

from __future__ import annotations

from truedraft.diagnosis.rule import Rule
from truedraft.diagnosis.topics import (
    backends,
    capture,
    environment,
    files,
    head_vocab,
    layout,
    local_engine,
    memory_size,
    pairing,
    quantisation,
    rope,
    sglang_command,
    sglang_release,
    token_budget,
    vllm_parallel,
    vllm_release,
    vllm_runner,
    vllm_speculative,
    vllm_weights,
    window,
)

TOPICS: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("Files", files.RULES),
    ("Pair", pairing.RULES),
    ("Capture layers", capture.RULES),
    ("Block layout", layout.RULES),
    ("Positions", rope.RULES),
    ("Windows", window.RULES),
    ("Head, vocabulary, mask", head_vocab.RULES),
    ("Number formats", quantisation.RULES),
    ("Memory", memory_size.RULES),
    ("Local engine", local_engine.RULES),
    ("vLLM: releases", vllm_release.RULES),
    ("vLLM: model runners", vllm_runner.RULES),
    ("vLLM: heads, weights, caches", vllm_weights.RULES),
    ("vLLM: speculative config", vllm_speculative.RULES),
    ("vLLM: parallelism and modes", vllm_parallel.RULES),
    ("vLLM: attention backends", backends.RULES),
    ("vLLM: token budget", token_budget.RULES),
    ("SGLang: releases", sglang_release.RULES),
    ("SGLang: command", sglang_command.RULES),
    ("Environment", environment.RULES),
)
RULES: tuple[Rule, ...] = tuple(rule for _, rules in TOPICS for rule in rules)
