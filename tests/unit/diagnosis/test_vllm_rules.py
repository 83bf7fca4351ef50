"""Rules on vLLM's releases, command, backends and budget: each speaks, and is silent nearby."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair_cases import Case, Setup, facts_of
from run_cases import (
    B200,
    GB10,
    GEMMA4,
    H100,
    HYBRID,
    MIXED,
    PACKED,
    RTX4090,
    SPEC,
    V1,
    V2,
    V100,
    run_pair,
    sglang,
    spec,
    vllm,
)

from truedraft.diagnosis.table import RULES

RELEASES = (
    run_pair("vllm.too_old", vllm(0, 26), vllm(0, 28), draft={"architectures": ["DFlash2DraftModel"]}),
    run_pair("vllm.early", vllm(0, 20, 2), vllm(0, 22, 1)),
    run_pair("vllm.release_025", vllm(0, 25, 1), vllm(0, 26)),
    Case(
        "vllm.unregistered",
        Setup({"architectures": ["Qwen3DFlashDraftModel"]}, run=vllm(0, 33)),
        Setup({"architectures": ["MuseGlimmerAssistantModel"]}, run=vllm(0, 33)),
    ),
    Case(
        "vllm.other_family",
        Setup({"architectures": ["DSparkDraftModel"]}, run=vllm(0, 28)),
        Setup({"architectures": ["Qwen3DSparkModel"]}, run=vllm(0, 28)),
    ),
    run_pair(
        "vllm.speculators_shift", vllm(0, 20, 2), vllm(0, 22, 1), draft={"speculators_model_type": "dflash"}
    ),
    run_pair(
        "vllm.speculators_dflash2", vllm(0, 29), vllm(0, 30), draft={"speculators_model_type": "dflash2"}
    ),
    Case(
        "vllm.anchor_layout",
        Setup({"sample_from_anchor": True}, run=vllm(0, 33)),
        Setup({"sample_from_anchor": False}, run=vllm(0, 33)),
    ),
    Case("vllm.no_domino", Setup({"dflash_config__projector_type": "domino"}, run=vllm()), Setup(run=vllm())),
    Case("vllm.no_captured_states", Setup(target={"model_type": "qwen4_exp"}, run=vllm()), Setup(run=vllm())),
    run_pair("vllm.refused_sampling", vllm(0, 33), sglang(0, 5, 23)),
    Case("vllm.mask_hidden", Setup(add={"mask_hidden": (64,)}, run=vllm()), Setup(run=vllm())),
    run_pair("vllm.mixed_old", vllm(0, 20, 2), vllm(0, 26), draft=MIXED),
    run_pair("vllm.mixed_v1", vllm(0, 24), vllm(0, 26), draft=MIXED),
    run_pair("vllm.mixed_v2_early", vllm(0, 24, environment=V2), vllm(0, 26, environment=V2), draft=MIXED),
    Case("vllm.mixed_needs_v2", Setup(MIXED, run=vllm(0, 26)), Setup(run=vllm(0, 26))),
    run_pair(
        "vllm.dflash2_v1",
        vllm(0, 28, environment=V1),
        vllm(0, 28),
        draft={"architectures": ["DFlash2DraftModel"]},
    ),
    run_pair("vllm.causal_mix", vllm(0, 25), vllm(0, 26), draft=MIXED),
    run_pair(
        "vllm.short_table",
        vllm(0, 32, flags={"max-model-len": 4096}),
        vllm(0, 33, flags={"max-model-len": 4096}),
    ),
    Case(
        "vllm.lowered_length",
        Setup(
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            run=vllm(0, 33, flags={"max-model-len": 4096}),
        ),
        Setup(run=vllm(0, 33, flags={"max-model-len": 4096})),
    ),
    run_pair("head.padded_vocab", vllm(0, 24), vllm(0, 26), draft={"vocab_size": 254}),
    Case(
        "head.own_head_lost",
        Setup(add={"lm_head.weight": (100, 64)}, run=vllm(engine="vllm-ascend")),
        Setup(add={"lm_head.weight": (256, 64)}, run=vllm(engine="vllm-ascend")),
    ),
    run_pair(
        "head.nested", vllm(0, 25), vllm(0, 26), target={"architectures": ["Qwen3_5ForConditionalGeneration"]}
    ),
    Case("quant.packed_vllm", Setup(add=PACKED, run=vllm(0, 30)), Setup(run=vllm(0, 30))),
    Case(
        "quant.dflash2_head",
        Setup(
            {"architectures": ["DFlash2DraftModel"]},
            {"quantization_config": {"quant_method": "fp8"}},
            run=vllm(0, 33),
        ),
        Setup(target={"quantization_config": {"quant_method": "fp8"}}, run=vllm(0, 33)),
    ),
    Case(
        "hybrid.page_sizes",
        Setup(target=HYBRID | {"head_dim": 24}, run=vllm(0, 20, 1)),
        Setup(target=HYBRID | {"head_dim": 32}, run=vllm(0, 20, 1)),
    ),
    Case("hybrid.prefix_reuse", Setup(target=HYBRID, run=vllm(0, 33)), Setup(run=vllm(0, 33))),
    Case("head.gemma4_fix", Setup(target=GEMMA4, run=vllm()), Setup(run=vllm())),
)
COMMANDS = (
    Case("command.no_speculation", Setup(run=vllm(flags={"port": 1})), Setup(run=vllm(flags=SPEC))),
    run_pair("command.no_tokens", vllm(flags=spec(num_speculative_tokens=...)), vllm(flags=SPEC)),
    run_pair("command.too_many_tokens", vllm(flags=spec(num_speculative_tokens=15)), vllm(flags=SPEC)),
    run_pair("command.fewer_tokens", vllm(flags=spec(num_speculative_tokens=4)), vllm(flags=SPEC)),
    run_pair(
        "command.guessed_method",
        vllm(flags=spec(method=..., model="my-draft")),
        vllm(flags=spec(method=..., model="my-DFlash")),
    ),
    run_pair("command.other_method", vllm(flags=spec(method="eagle3")), vllm(flags=SPEC)),
    run_pair("command.twice", vllm(flags=SPEC | {"spec-tokens": 7}), vllm(flags={"spec-tokens": 7})),
    run_pair(
        "command.new_shortcuts", vllm(0, 32, flags={"spec-tokens": 7}), vllm(0, 33, flags={"spec-tokens": 7})
    ),
    run_pair(
        "command.gone_values",
        vllm(0, 33, flags=spec(rejection_sample_method="strict")),
        vllm(0, 33, flags=spec(rejection_sample_method="standard")),
    ),
    run_pair(
        "command.lossy",
        vllm(flags=spec(rejection_sample_method="fly")),
        vllm(flags=spec(rejection_sample_method="block")),
    ),
    run_pair(
        "command.synthetic",
        vllm(flags=spec(rejection_sample_method="synthetic")),
        vllm(flags=spec(rejection_sample_method="synthetic", synthetic_acceptance_length=3.0)),
    ),
    run_pair("command.dead_length", vllm(flags=spec(max_model_len=4096)), vllm(flags=SPEC)),
    run_pair(
        "command.refused_keys",
        vllm(flags=spec(tensor_parallel_size=2)),
        vllm(flags=spec(draft_tensor_parallel_size=1)),
    ),
    run_pair(
        "command.early_keys",
        vllm(0, 24, flags=spec(kv_cache_dtype="bfloat16")),
        vllm(0, 26, flags=spec(kv_cache_dtype="bfloat16")),
    ),
    run_pair(
        "command.ignored_backend",
        vllm(0, 25, flags=spec(attention_backend="FLASH_ATTN")),
        vllm(0, 26, flags=spec(attention_backend="FLASH_ATTN")),
    ),
    run_pair(
        "command.dynamic_parallel",
        vllm(flags=spec(num_speculative_tokens_per_batch_size=[[1, 8, 7]]) | {"data-parallel-size": 2}),
        vllm(flags=spec(num_speculative_tokens_per_batch_size=[[1, 8, 7]])),
    ),
    run_pair(
        "command.draft_parallel",
        vllm(flags=spec(draft_tensor_parallel_size=2) | {"tensor-parallel-size": 4}),
        vllm(flags=spec(draft_tensor_parallel_size=4) | {"tensor-parallel-size": 4}),
    ),
    run_pair(
        "command.heads_split",
        vllm(flags={"tensor-parallel-size": 3}),
        vllm(flags={"tensor-parallel-size": 4}),
    ),
    Case(
        "command.pipeline",
        Setup(target={"model_type": "qwen3_5_text"}, run=vllm(flags={"pipeline-parallel-size": 2})),
        Setup(run=vllm(flags={"pipeline-parallel-size": 2})),
    ),
    run_pair("command.sleep_mode", vllm(flags={"enable-sleep-mode": True}), vllm(flags=SPEC)),
    run_pair("command.lora", vllm(flags={"enable-lora": True}), vllm(flags=SPEC)),
    Case(
        "command.expert_parallel",
        Setup({"num_experts": 128}, {"num_experts": 384}, run=vllm(flags={"enable-expert-parallel": True})),
        Setup({"num_experts": 128}, {"num_experts": 128}, run=vllm(flags={"enable-expert-parallel": True})),
    ),
    Case(
        "command.dp_hang",
        Setup({"num_experts": 8}, run=vllm(flags={"data-parallel-size": 2})),
        Setup(run=vllm(flags={"data-parallel-size": 2})),
    ),
    run_pair(
        "command.prefill_node",
        vllm(flags=SPEC | {"kv-transfer-config": '{"kv_role": "kv_producer"}'}),
        vllm(flags=SPEC | {"kv-transfer-config": '{"kv_role": "kv_consumer"}'}),
    ),
    run_pair("command.eager", vllm(flags={"enforce-eager": True}), vllm(flags=SPEC)),
    run_pair(
        "backend.causal_only",
        vllm(flags=spec(attention_backend="ROCM_AITER_UNIFIED_ATTN")),
        vllm(flags=spec(attention_backend="FLASH_ATTN")),
    ),
    run_pair(
        "backend.gemma_inherits", vllm(), vllm(flags=spec(attention_backend="FLASH_ATTN")), target=GEMMA4
    ),
    run_pair("backend.blackwell", vllm(0, 24, gpu=B200), vllm(0, 26, gpu=B200)),
    run_pair(
        "backend.fp8_flash",
        vllm(0, 33, gpu=RTX4090, flags={"kv-cache-dtype": "fp8"}),
        vllm(0, 33, gpu=RTX4090, flags={"kv-cache-dtype": "fp8"} | spec(kv_cache_dtype="bfloat16")),
    ),
    run_pair(
        "backend.fp8_early",
        vllm(0, 21, flags={"kv-cache-dtype": "fp8"}),
        vllm(0, 26, flags={"kv-cache-dtype": "fp8"}),
    ),
    run_pair(
        "backend.nvfp4_cache", vllm(flags={"kv-cache-dtype": "nvfp4"}), vllm(flags={"kv-cache-dtype": "auto"})
    ),
    run_pair(
        "backend.context_parallel",
        vllm(flags={"decode-context-parallel-size": 2}),
        vllm(flags={"decode-context-parallel-size": 2} | spec(attention_backend="FLASH_ATTN")),
    ),
    run_pair("backend.rocm_mla", vllm(platform="rocm"), vllm(platform="cuda"), target={"kv_lora_rank": 512}),
    run_pair("backend.sm12x", vllm(gpu=GB10), vllm(gpu=H100)),
    run_pair("backend.before_ampere", vllm(gpu=V100), vllm(gpu=H100)),
    run_pair(
        "budget.too_small",
        vllm(
            0,
            26,
            flags=spec(num_speculative_tokens=16) | {"max-num-batched-tokens": 2048, "max-num-seqs": 256},
        ),
        vllm(
            0,
            26,
            flags=spec(num_speculative_tokens=16) | {"max-num-batched-tokens": 8192, "max-num-seqs": 256},
        ),
    ),
    run_pair(
        "budget.small",
        vllm(0, 26, flags=SPEC | {"max-num-batched-tokens": 8192, "max-num-seqs": 256}),
        vllm(0, 26, flags=SPEC | {"max-num-batched-tokens": 16384, "max-num-seqs": 256}),
    ),
    run_pair(
        "budget.compiled_range",
        vllm(0, 26, flags=SPEC | {"max-num-batched-tokens": 1024, "max-num-seqs": 130}),
        vllm(0, 26, flags=SPEC | {"max-num-batched-tokens": 1024, "max-num-seqs": 128}),
    ),
    run_pair(
        "budget.capped",
        vllm(0, 33, flags=SPEC | {"max-num-batched-tokens": 1024, "max-num-seqs": 256}),
        vllm(0, 33, flags=SPEC | {"max-num-batched-tokens": 2048, "max-num-seqs": 256}),
    ),
    run_pair("budget.unknown", vllm(0, 33), vllm(0, 33, gpu=H100)),
)
CASES = RELEASES + COMMANDS


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


def test_the_drafter_as_main_model(tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.id == "command.main_is_drafter")
    drafter = str(tmp_path / "drafter")
    assert rule.run(facts_of(tmp_path, Setup(run=vllm(flags={"model": drafter})))) is not None
    assert rule.run(facts_of(tmp_path, Setup(run=vllm(flags={"model": "target"})))) is None
