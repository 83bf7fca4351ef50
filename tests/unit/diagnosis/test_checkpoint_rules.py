"""Rules on files, pair, capture layers, layout, positions, windows, heads and number formats.

Each speaks where it must, and is silent on a pair that differs from that by little.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_files import drafter_shapes
from pair_cases import Case, Setup, facts_of

from truedraft.diagnosis.facts import RunFacts
from truedraft.diagnosis.pair import diagnose
from truedraft.diagnosis.table import RULES

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "is_causal": False}
LONG = RunFacts(flags={"max-model-len": 4096})
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
TWO_LISTS = {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}
TWO_LISTS_RIGHT = {"eagle_aux_hidden_state_layer_ids": [2, 5, 7]}
SPECULATORS = {
    "speculators_config": {
        "proposal_methods": [{"speculative_tokens": 7}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"]},
    }
}
PROPOSES_BLOCK = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 8}]}}
OTHER_VERIFIER = {"speculators_config": {"verifier": {"architectures": ["LlamaForCausalLM"]}}}
HEAD = {"lm_head.weight": (100, 64)}
MAP = {"d2t": ("I64", (100,))}
PACKED = {"layers.0.self_attn.k_proj.weight": ("U8", (32, 32))}
QUANTISED = {"quantization_config": {"quant_method": "awq"}}

CASES = (
    Case("file.no_config", Setup(raw_config="oops")),
    Case("file.missing_value", Setup({"block_size": ...}), Setup({"bos_token_id": ...})),
    Case("file.contradiction", Setup({"intermediate_size": 96}), Setup({"intermediate_size": 128})),
    Case(
        "file.two_values", Setup({"dflash_config__block_size": 16}), Setup({"dflash_config__block_size": 8})
    ),
    Case(
        "file.target_contradiction",
        Setup(target={"vocab_size": 300}, target_add={"model.norm.weight": (64,)}),
        Setup(target={"vocab_size": 256}, target_add={"model.norm.weight": (64,)}),
    ),
    Case("file.target_missing", Setup(target={"vocab_size": ...}), Setup(target={"rms_norm_eps": ...})),
    Case(
        "file.tensors_absent",
        Setup(drop=("layers.1.self_attn.k_norm.weight",)),
        Setup(add={"t2d": ("BOOL", (256,))}),
    ),
    Case(
        "file.tensors_unexpected", Setup(add={"layers.0.secret": (3,)}), Setup(add={"t2d": ("BOOL", (256,))})
    ),
    Case("file.no_weights", Setup(shapes=None)),
    Case(
        "file.unknown_format",
        Setup({"architectures": ["Other"], "dflash_config": 1}),
        Setup({"architectures": ["Other"]}),
    ),
    Case("pair.other_target", Setup({"num_target_layers": 9}), Setup({"num_target_layers": 8})),
    Case(
        "pair.fc_width",
        Setup(
            {"dflash_config__target_layer_ids": [1, 4], "target_hidden_size": 96, "num_target_layers": ...}
        ),
        Setup({"target_hidden_size": 64}),
    ),
    Case("pair.vocab_padding", Setup({"vocab_size": 251}), Setup({"vocab_size": 256})),
    Case(
        "pair.own_embedding",
        Setup({"vocab_size": 256}, add={"embed_tokens.weight": (4096, 64), "lm_head.weight": (256, 64)}),
        Setup(add={"embed_tokens.weight": (256, 64)}),
    ),
    Case(
        "pair.tokenizer",
        Setup(draft_tokens=("a", "b"), target_tokens=("a", "c")),
        Setup(draft_tokens=("a", "b"), target_tokens=("a", "b")),
    ),
    Case("pair.depth_unsaid", Setup({"num_target_layers": ...})),
    Case("pair.verifier", Setup(OTHER_VERIFIER), Setup(SPECULATORS)),
    Case(
        "pair.variant_target",
        Setup(target={"_name_or_path": "org/Model-27B-Abliterated"}),
        Setup(target={"_name_or_path": "org/Model-27B-Instruct"}),
    ),
    Case(
        "pair.heads",
        Setup({"num_attention_heads": 5}, shapes=drafter_shapes(heads=5)),
        Setup({"num_attention_heads": 6}, shapes=drafter_shapes(heads=6)),
    ),
    Case(
        "pair.head_dim",
        Setup({"head_dim": 15}, shapes=drafter_shapes(dim=15)),
        Setup({"head_dim": 14}, shapes=drafter_shapes(dim=14)),
    ),
    Case("capture.missing", Setup({"dflash_config__target_layer_ids": ...})),
    Case(
        "capture.count",
        Setup({"dflash_config__target_layer_ids": [1, 2, 4, 6]}),
        Setup({"dflash_config__target_layer_ids": [1, 2, 6]}),
    ),
    Case(
        "capture.out_of_range",
        Setup({"dflash_config__target_layer_ids": [1, 4, 8]}),
        Setup({"dflash_config__target_layer_ids": [1, 4, 6]}),
    ),
    Case(
        "capture.last_layer",
        Setup({"dflash_config__target_layer_ids": [1, 4, 7]}),
        Setup({"dflash_config__target_layer_ids": [1, 4, 6]}),
    ),
    Case(
        "capture.duplicate",
        Setup({"dflash_config__target_layer_ids": [1, 6, 6]}),
        Setup({"dflash_config__target_layer_ids": [1, 5, 6]}),
    ),
    Case("capture.order", Setup({"dflash_config__target_layer_ids": [4, 1, 6]})),
    Case("capture.two_numberings", Setup(TWO_LISTS), Setup(TWO_LISTS_RIGHT)),
    Case(
        "capture.unknown_ids",
        Setup(
            {
                "num_target_layers": 36,
                "hidden_size": 4096,
                "dflash_config__target_layer_ids": [2, 10, 18, 26, 34],
            },
            shapes=None,
            no_target=True,
        ),
        Setup(
            {
                "num_target_layers": 36,
                "hidden_size": 4096,
                "dflash_config__target_layer_ids": [1, 9, 17, 25, 33],
            },
            shapes=None,
            no_target=True,
        ),
    ),
    Case(
        "capture.embedding",
        Setup({"dflash_config__target_layer_ids": [-1, 4, 6]}),
        Setup({"dflash_config__target_layer_ids": [0, 4, 6]}),
    ),
    Case(
        "capture.shallow",
        Setup({"dflash_config__target_layer_ids": [1, 2, 3]}),
        Setup({"dflash_config__target_layer_ids": [1, 2, 4]}),
    ),
    Case(
        "layout.contradiction",
        Setup(PROPOSES_BLOCK | {"sample_from_anchor": False}),
        Setup(PROPOSES_BLOCK | {"sample_from_anchor": True}),
    ),
    Case(
        "layout.unsaid",
        Setup({"dflash_config__projector_type": "dspark"}),
        Setup({"dflash_config__projector_type": "dspark", "sample_from_anchor": True}),
    ),
    Case("layout.tiny_block", Setup({"block_size": 1}), Setup({"block_size": 1, "sample_from_anchor": True})),
    Case("layout.long_block", Setup({"block_size": 64}), Setup({"block_size": 32})),
    Case("layout.causal_full", Setup({"is_causal": True}), Setup({"is_causal": False})),
    Case("layout.causal_unsaid", Setup(SLIDING | {"is_causal": ...}), Setup(SLIDING)),
    Case(
        "rope.two_thetas",
        Setup({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}),
        Setup({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}),
    ),
    Case("rope.theta_differs", Setup({"rope_theta": 1e6}), Setup({"rope_theta": 1e4})),
    Case(
        "rope.partial_differs", Setup({"partial_rotary_factor": 0.5}), Setup({"partial_rotary_factor": 1.0})
    ),
    Case(
        "rope.scaling_differs",
        Setup(target={"rope_scaling": YARN}),
        Setup({"rope_scaling": YARN}, {"rope_scaling": YARN}),
    ),
    Case("rope.short_positions", Setup(run=LONG), Setup({"max_position_embeddings": 4096}, run=LONG)),
    Case("rope.yarn_window", Setup({"rope_scaling": YARN}), Setup({"rope_scaling": YARN | {"factor": 4.0}})),
    Case("rope.interleaved", Setup({"rope_is_neox_style": False}), Setup({"rope_is_neox_style": True})),
    Case("rope.mscale", Setup({"rope_scaling": YARN | {"mscale": 1.0}}), Setup({"rope_scaling": YARN})),
    Case(
        "rope.beyond_training",
        Setup(run=RunFacts(flags={"max-model-len": 32768})),
        Setup(
            SLIDING | {"layer_types": ["sliding_attention"] * 2}, run=RunFacts(flags={"max-model-len": 32768})
        ),
    ),
    Case("window.no_size", Setup(SLIDING | {"sliding_window": None}), Setup(SLIDING)),
    Case(
        "window.switched_off",
        Setup(SLIDING | {"use_sliding_window": False}),
        Setup(SLIDING | {"use_sliding_window": True}),
    ),
    Case("window.unused", Setup({"sliding_window": 64}), Setup(SLIDING)),
    Case(
        "window.smaller_than_block",
        Setup(SLIDING | {"sliding_window": 7}),
        Setup(SLIDING | {"sliding_window": 8}),
    ),
    Case(
        "window.unknown_type", Setup({"layer_types": ["linear_attention", "full_attention"]}), Setup(SLIDING)
    ),
    Case(
        "window.pattern_list", Setup({"sliding_window_pattern": [1, 0]}), Setup({"sliding_window_pattern": 2})
    ),
    Case("head.mask_missing", Setup({"dflash_config__mask_token_id": ...})),
    Case(
        "head.mask_out_of_range",
        Setup({"dflash_config__mask_token_id": 256}),
        Setup({"dflash_config__mask_token_id": 255}),
    ),
    Case(
        "head.mask_is_padding",
        Setup(target_tokens=tuple(f"t{i}" for i in range(250))),
        Setup(target_tokens=tuple(f"t{i}" for i in range(251))),
    ),
    Case(
        "head.mask_is_eos",
        Setup({"dflash_config__mask_token_id": 2}),
        Setup({"dflash_config__mask_token_id": 3}),
    ),
    Case(
        "head.map_without_head",
        Setup({"draft_vocab_size": 100}, add=MAP),
        Setup({"draft_vocab_size": 100}, add=MAP | HEAD),
    ),
    Case(
        "head.reduced_without_map",
        Setup({"draft_vocab_size": 100}, {"vocab_size": 4096}, add=HEAD),
        Setup({"draft_vocab_size": 100}, {"vocab_size": 4096}, add=HEAD | MAP),
    ),
    Case(
        "head.reduced",
        Setup({"draft_vocab_size": 100}, add=HEAD | MAP),
        Setup({"draft_vocab_size": 256}, add={"lm_head.weight": (256, 64), "d2t": ("I64", (256,))}),
    ),
    Case(
        "head.gemma_scale",
        Setup(target={"model_type": "gemma3_text"}),
        Setup({"input_embedding_scale": 8.0, "final_logit_softcapping": 30.0}, {"model_type": "gemma3_text"}),
    ),
    Case(
        "head.softcap_differs",
        Setup({"final_logit_softcapping": 20.0}, {"final_logit_softcapping": 30.0}),
        Setup({"final_logit_softcapping": 30.0}, {"final_logit_softcapping": 30.0}),
    ),
    Case("head.mask_embedding", Setup(add={"mask_embedding": (64,)})),
    Case("quant.packed_local", Setup(add=PACKED), Setup(add=PACKED, run=RunFacts(engine="vllm"))),
    Case("quant.half", Setup({"dtype": "float16"}), Setup({"dtype": "bfloat16"})),
    Case("quant.dtype_differs", Setup({"dtype": "float32"}), Setup({"dtype": "bfloat16"})),
    Case("quant.declared_not_packed", Setup(QUANTISED), Setup(QUANTISED, add=PACKED)),
    Case(
        "quant.target_rotated",
        Setup(target={"quantization_config": {"quant_method": "ascend", "scheme": "QuaRot"}}),
        Setup(target={"quantization_config": {"quant_method": "fp8"}}),
    ),
    Case(
        "quant.target_low_bits",
        Setup(target={"quantization_config": {"quant_method": "q2_k"}}),
        Setup(target={"quantization_config": {"quant_method": "q4_k"}}),
    ),
    Case(
        "quant.target_quantised",
        Setup(target={"quantization_config": {"quant_method": "fp8"}}),
        Setup(target={}),
    ),
    Case(
        "engine.local_algorithm",
        Setup({"architectures": ["DFlash2DraftModel"]}),
        Setup({"architectures": ["DFlash2DraftModel"]}, run=RunFacts(engine="vllm", version=(0, 33))),
    ),
    Case("engine.local_parts", Setup(add={"layers.0.self_attn.g_proj.weight": (4, 64)})),
    Case(
        "engine.local_names",
        Setup(shapes={f"model.{name}": shape for name, shape in drafter_shapes().items()}),
    ),
    Case("engine.local_mask_embedding", Setup(add={"mask_embedding": (64,)})),
    Case(
        "engine.local_fallback",
        Setup(target={"architectures": ["PhiForCausalLM"]}),
        Setup(target={"architectures": ["LlamaForCausalLM"]}),
    ),
)
COVERED = {rule.id: rule.covered_by for rule in RULES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_speaks(case: Case, tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.id == case.rule)
    finding = rule.run(facts_of(tmp_path, case.seen))
    assert finding is not None and finding.rule == case.rule
    assert finding.evidence and all(finding.evidence) and finding.cause and finding.remedy


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_silent(case: Case, tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.id == case.rule)
    assert rule.run(facts_of(tmp_path, case.clean)) is None


def test_the_clean_pair_has_no_findings(tmp_path: Path) -> None:
    assert diagnose(facts_of(tmp_path, Setup())) == ()


def test_a_drafter_for_another_target_is_one_clear_finding(tmp_path: Path) -> None:
    setup = Setup(
        target={
            "num_hidden_layers": 4,
            "hidden_size": 96,
            "vocab_size": 100_000,
            "rope_theta": 5.0,
            "max_position_embeddings": 65536,
        }
    )
    findings = diagnose(facts_of(tmp_path, setup))
    assert [finding.rule for finding in findings] == ["pair.other_target"]
    text = "\n".join(findings[0].evidence)
    for part in (
        "num_target_layers = 8",
        "num_hidden_layers = 4",
        "hidden_size = 96",
        "vocab_size = 100000",
        "[1, 4, 6]",
    ):
        assert part in text


def test_missing_capture_layers_come_with_suggestions(tmp_path: Path) -> None:
    draft = {"num_target_layers": 36, "hidden_size": 4096, "dflash_config__target_layer_ids": ...}
    shapes = drafter_shapes(hidden=4096, captured=5)
    findings = diagnose(facts_of(tmp_path, Setup(draft, shapes=shapes, no_target=True)))
    finding = next(finding for finding in findings if finding.rule == "capture.missing")
    text = "\n".join(finding.evidence)
    assert (
        "there are 5 of them" in text
        and "Qwen3-8B-DFlash-b16: [1, 9, 17, 25, 33]" in text
        and "suggestion" in text
    )


def test_boundary_ids_in_the_wrong_key_are_named(tmp_path: Path) -> None:
    draft = {
        "num_target_layers": 36,
        "hidden_size": 4096,
        "dflash_config__target_layer_ids": [2, 10, 18, 26, 34],
    }
    findings = diagnose(facts_of(tmp_path, Setup(draft, shapes=None, no_target=True)))
    assert "plus one" in next(finding for finding in findings if finding.rule == "capture.unknown_ids").cause


def test_findings_are_json_able_and_sorted(tmp_path: Path) -> None:
    findings = diagnose(
        facts_of(tmp_path, Setup({"block_size": ..., "sliding_window": 9, "rope_theta": 7.0}))
    )
    order = [finding.severity.value for finding in findings]
    assert order == sorted(order, key=["fail", "warn", "info"].index) and len(set(order)) == 3
    json.dumps([finding.evidence for finding in findings])
