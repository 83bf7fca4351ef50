"""Runs of engines for rules, and cases in which only the run differs."""

from __future__ import annotations

from typing import Any

from pair_cases import Case, Setup

from truedraft.diagnosis.facts import GpuFacts, RunFacts

GIB = 1024**3
H100 = GpuFacts("H100", 80 * GIB, (9, 0))
B200 = GpuFacts("B200", 180 * GIB, (10, 0))
RTX4090 = GpuFacts("RTX 4090", 24 * GIB, (8, 9))
GB10 = GpuFacts("GB10", 119 * GIB, (12, 1))
V100 = GpuFacts("V100", 32 * GIB, (7, 0))
SPEC = {
    "speculative.method": "dflash",
    "speculative.model": "x-dflash",
    "speculative.num_speculative_tokens": 7,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
PACKED = {"layers.0.self_attn.k_proj.weight": ("U8", (32, 32))}
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 4, "model_type": "qwen3_5_text"}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
GEMMA4 = {"model_type": "gemma4_text"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def vllm(*version: int, flags: dict[str, Any] | None = None, engine: Any = "vllm", **more: Any) -> RunFacts:
    return RunFacts(engine=engine, version=version or None, flags=flags or {}, **more)


def sglang(*version: int, flags: dict[str, Any] | None = None, **more: Any) -> RunFacts:
    return RunFacts(engine="sglang", version=version or None, flags=flags or {}, **more)


def spec(**changes: Any) -> dict[str, Any]:
    """The plain speculative config with keys set; `...` removes."""
    changed = SPEC | {f"speculative.{key}": value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not ...}


def run_pair(rule: str, seen: RunFacts, clean: RunFacts, **same: Any) -> Case:
    """A case in which only the run differs."""
    return Case(rule, Setup(run=seen, **same), Setup(run=clean, **same))
