"""Rules on engines, releases, commands, memory and environment: each speaks, and is silent nearby."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pair_cases import Case, Setup, facts_of

from truedraft.diagnosis.facts import GpuFacts, RunFacts
from truedraft.diagnosis.table import RULES

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
CASES = RELEASES + COMMANDS + SGLANG + OTHERS


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
