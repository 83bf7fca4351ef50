"""Rules on SGLang, memory and environment: each speaks, and is silent nearby."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair_cases import Case, Setup, facts_of
from run_cases import H100, HYBRID, LINEAR, MIXED, PACKED, RTX4090, run_pair, sglang, vllm

from truedraft.diagnosis.facts import GpuFacts, RunFacts
from truedraft.diagnosis.table import RULES

SGLANG = (
    run_pair("sglang.too_old", sglang(0, 5, 10), sglang(0, 5, 11)),
    run_pair(
        "sglang.dflash2_unsure",
        sglang(0, 5, 19),
        sglang(0, 5, 23),
        draft={"architectures": ["DFlash2DraftModel"]},
    ),
    run_pair(
        "sglang.other_algorithm",
        sglang(flags={"speculative-algorithm": "EAGLE"}),
        sglang(flags={"speculative-algorithm": "DFLASH"}),
    ),
    run_pair(
        "sglang.no_drafter",
        sglang(flags={"speculative-algorithm": "DFLASH"}),
        sglang(flags={"speculative-algorithm": "DFLASH", "speculative-draft-model-path": "x"}),
    ),
    run_pair(
        "sglang.block_differs",
        sglang(flags={"speculative-num-draft-tokens": 7}),
        sglang(flags={"speculative-num-draft-tokens": 8}),
    ),
    run_pair(
        "sglang.two_blocks",
        sglang(flags={"speculative-num-draft-tokens": 8, "speculative-dflash-block-size": 16}),
        sglang(flags={"speculative-num-draft-tokens": 8, "speculative-dflash-block-size": 8}),
    ),
    run_pair(
        "sglang.block_unsaid",
        sglang(),
        sglang(flags={"speculative-num-draft-tokens": 8}),
        draft={"block_size": ...},
    ),
    run_pair("sglang.pipeline", sglang(flags={"pp-size": 2}), sglang(flags={"pp-size": 1})),
    run_pair(
        "sglang.short_window",
        sglang(flags={"speculative-draft-window-size": 4}),
        sglang(flags={"speculative-draft-window-size": 8}),
    ),
    Case(
        "sglang.last_layer",
        Setup(
            {"dflash_config__target_layer_ids": [1, 4, 7]},
            {"model_type": "qwen3_5_text"},
            run=sglang(0, 5, 23),
        ),
        Setup({"dflash_config__target_layer_ids": [1, 4, 7]}, run=sglang(0, 5, 23)),
    ),
    Case(
        "sglang.shadowed_hook",
        Setup(target={"architectures": ["Qwen3_5ForCausalLM"]}, run=sglang()),
        Setup(target={"architectures": ["Qwen3_5ForConditionalGeneration"]}, run=sglang()),
    ),
    Case(
        "sglang.no_hook",
        Setup(target={"model_type": "phi3"}, run=sglang()),
        Setup(target={"model_type": "qwen3_5_text"}, run=sglang()),
    ),
    run_pair(
        "sglang.old_mamba_flag",
        sglang(0, 5, 23, flags={"mamba-scheduler-strategy": "x"}),
        sglang(0, 5, 23, flags={"mamba-radix-cache-strategy": "x"}),
    ),
    run_pair(
        "sglang.dead_variables",
        sglang(0, 5, 15, environment={"SGLANG_ENABLE_SPEC_V2": "1"}),
        sglang(0, 5, 13, environment={"SGLANG_ENABLE_SPEC_V2": "1"}),
    ),
    run_pair(
        "sglang.old_window_flag",
        sglang(0, 5, 13, flags={"speculative-dflash-draft-window-size": 64}),
        sglang(0, 5, 11, flags={"speculative-dflash-draft-window-size": 64}),
    ),
    run_pair(
        "sglang.data_attention",
        sglang(flags={"enable-dp-attention": True}),
        sglang(flags={"enable-dp-attention": True, "enable-dp-lm-head": True}),
    ),
    run_pair("sglang.data_attention_memory", sglang(flags={"enable-dp-attention": True}), sglang()),
    run_pair(
        "sglang.unknown_backend",
        sglang(flags={"speculative-draft-attention-backend": "torch_native"}),
        sglang(flags={"speculative-draft-attention-backend": "fa3"}),
    ),
    Case(
        "sglang.trtllm_backend",
        Setup(run=sglang(flags={"speculative-draft-attention-backend": "trtllm_mha"})),
        Setup({"is_causal": True}, run=sglang(flags={"speculative-draft-attention-backend": "trtllm_mha"})),
    ),
    run_pair(
        "sglang.lossy",
        sglang(flags={"speculative-accept-threshold-acc": 0.9}),
        sglang(flags={"speculative-accept-threshold-acc": 1.0}),
    ),
    run_pair(
        "sglang.simulated",
        sglang(environment={"SGLANG_SIMULATE_ACC_LEN": "4"}),
        sglang(environment={"HOME": "/"}),
    ),
    run_pair("sglang.greedy_only", sglang(platform="npu"), sglang(platform="cuda")),
    Case("quant.packed_sglang", Setup(add=PACKED, run=sglang()), Setup(run=sglang())),
    run_pair(
        "sglang.track_interval",
        sglang(flags={"mamba-track-interval": 4}),
        sglang(flags={"mamba-track-interval": 256}),
    ),
    run_pair(
        "sglang.hybrid_strategy",
        sglang(),
        sglang(flags={"mamba-radix-cache-strategy": "extra_buffer"}),
        target=HYBRID,
    ),
    run_pair(
        "sglang.prefill_role",
        sglang(flags={"disaggregation-mode": "prefill", "speculative-algorithm": "DFLASH"}),
        sglang(flags={"disaggregation-mode": "decode", "speculative-algorithm": "DFLASH"}),
    ),
    run_pair("sglang.early_windows", sglang(0, 5, 11), sglang(0, 5, 13), draft=MIXED),
)
BROKEN_FLASH = {"flash_attn": True, "flash_attn.ops": False}
OTHERS = (
    run_pair(
        "env.flash_attn_namespace", vllm(0, 20, 2, modules=BROKEN_FLASH), vllm(0, 24, modules=BROKEN_FLASH)
    ),
    run_pair(
        "env.vllm_torch",
        vllm(0, 33, packages={"torch": "2.13.0+cu130"}),
        vllm(0, 33, packages={"torch": "2.14.0"}),
    ),
    run_pair(
        "env.vllm_transformers",
        vllm(0, 33, packages={"transformers": "5.24.0"}),
        vllm(0, 33, packages={"transformers": "5.20.1"}),
    ),
    run_pair(
        "env.vllm_python",
        vllm(0, 33, packages={"python": "3.10.4"}),
        vllm(0, 33, packages={"python": "3.11.2"}),
    ),
    run_pair(
        "env.sglang_pins",
        sglang(0, 5, 23, packages={"torch": "2.13.0"}),
        sglang(0, 5, 23, packages={"torch": "2.14.1"}),
    ),
    run_pair(
        "env.both_engines",
        vllm(packages={"vllm": "0.33.0", "sglang": "0.5.23"}),
        vllm(packages={"vllm": "0.33.0"}),
    ),
    run_pair(
        "env.engine_differs",
        vllm(0, 33, packages={"vllm": "0.32.0"}),
        vllm(0, 33, packages={"vllm": "0.33.1"}),
    ),
    run_pair(
        "env.old_driver",
        vllm(
            packages={"nvidia-cuda-runtime": "13.0.96"},
            gpu=GpuFacts("H100", 80 * 2**30, (9, 0), 1, "570.86.15"),
        ),
        vllm(
            packages={"nvidia-cuda-runtime": "13.0.96"},
            gpu=GpuFacts("H100", 80 * 2**30, (9, 0), 1, "580.65.06"),
        ),
    ),
    run_pair("env.unknown_version", vllm(), vllm(0, 33)),
    run_pair("env.rebuilt", vllm(packages={"vllm": "0.19.1rc1"}), vllm(packages={"vllm": "0.33.0"})),
    run_pair("memory.too_large", RunFacts(gpu=GpuFacts("tiny", 100_000)), RunFacts(gpu=H100)),
    run_pair("memory.tight", RunFacts(gpu=GpuFacts("small", 10_000_000)), RunFacts(gpu=H100)),
    run_pair(
        "memory.no_head_room",
        vllm(gpu=RTX4090, flags={"gpu-memory-utilization": 0.95}),
        vllm(gpu=RTX4090, flags={"gpu-memory-utilization": 0.9}),
    ),
    run_pair(
        "memory.long_context",
        vllm(flags={"max-model-len": 524288}),
        vllm(flags={"max-model-len": 524288, "gpu-memory-utilization": 0.8}),
    ),
    Case("memory.draft_cache", Setup(target={"num_key_value_heads": 1}), Setup()),
    Case("memory.recurrent", Setup(target=HYBRID | LINEAR), Setup(target=LINEAR)),
)
CASES = SGLANG + OTHERS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_speaks(case: Case, tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.id == case.rule)
    finding = rule.run(facts_of(tmp_path, case.seen))
    assert (
        finding is not None
        and finding.evidence
        and all(finding.evidence)
        and finding.cause
        and finding.remedy
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_silent(case: Case, tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.id == case.rule)
    assert rule.run(facts_of(tmp_path, case.clean)) is None
