"""Whole verdicts on inputs from public reports, by number, and on the pair that this project came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, changed, drafter_shapes
from pair_cases import Setup, facts_of

from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target_files
from truedraft.contract.finding import Finding, Severity
from truedraft.diagnosis.budget import default_sizes, token_budget
from truedraft.diagnosis.facts import GpuFacts, PairFacts, RunFacts
from truedraft.diagnosis.memory import plan_memory, recurrent_bytes
from truedraft.diagnosis.pair import diagnose

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
GIB = 1024**3
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def verdicts(facts: PairFacts) -> dict[str, Severity]:
    return {finding.rule: finding.severity for finding in diagnose(facts)}


def vllm(*version: int, **more: Any) -> RunFacts:
    return RunFacts(engine="vllm", version=version, **more)


@pytest.mark.parametrize(
    ("changes", "run", "rule", "severity"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, vllm(0, 26, 0), "vllm.too_old", FAIL),
        ({"architectures": ["DFlash2DraftModel"]}, vllm(0, 28, 0), "vllm.too_old", None),
        (
            {"architectures": ["DFlash2DraftModel"]},
            RunFacts(engine="sglang", version=(0, 5, 11)),
            "sglang.too_old",
            FAIL,
        ),
        ({}, vllm(0, 19, 1), "vllm.too_old", FAIL),
        ({}, vllm(0, 20, 2), "vllm.too_old", None),
        ({}, vllm(0, 20, 2), "vllm.early", WARN),
        ({"architectures": ["Qwen3DFlashDraftModel"]}, vllm(0, 33), "vllm.unregistered", FAIL),
        ({"architectures": ["Qwen3DFlashDraftModel"]}, vllm(0, 20, 2), "vllm.unregistered", FAIL),
        (
            {"architectures": ["DSparkDraftModel"], "model_type": "qwen3"},
            vllm(0, 28),
            "vllm.other_family",
            FAIL,
        ),
    ],
)
def test_t1_architecture_and_version(
    tmp_path: Path, changes: dict[str, Any], run: RunFacts, rule: str, severity: Severity | None
) -> None:
    assert verdicts(facts_of(tmp_path, Setup(changes, run=run))).get(rule) == severity


@pytest.mark.parametrize(
    ("version", "batched", "seqs", "drafted", "budget"),
    [
        ((0, 26, 0), 2048, 256, 16, -1792),
        ((0, 26), 120, 60, 7, -240),
        ((0, 28, 0), 8192, 1024, 15, -7168),
        ((0, 26, 0), 8192, 1024, 8, 1024),
        ((0, 20, 2), 8192, 256, 15, 4608),
        ((0, 33), 8192, 1024, 15, 8192),
        ((0, 33), 16, 1, 15, 0),
    ],
)
def test_t2_token_budget(
    version: tuple[int, ...], batched: int, seqs: int, drafted: int, budget: int
) -> None:
    result = token_budget(version, batched, seqs, drafted)
    assert result.budget == budget
    assert token_budget(version, result.minimum, seqs, drafted).budget > 0
    assert token_budget(version, result.minimum - 1, seqs, drafted).budget <= 0


def test_t2_dspark_keeps_the_older_rule_and_033_caps_sequences() -> None:
    assert token_budget((0, 28), 8192, 1024, 8, "dspark").budget == 1024
    assert token_budget((0, 33), 8192, 1024, 15).max_seqs == 512


def test_t2_plain_h100_defaults_refuse(tmp_path: Path) -> None:
    gpu = GpuFacts("H100", 80 * GIB, (9, 0))
    assert default_sizes(gpu) == (8192, 1024)
    assert default_sizes(GpuFacts("A100", 80 * GIB)) == (2048, 256)
    assert default_sizes(GpuFacts("GB10", 119 * GIB)) == (2048, 256)
    found = diagnose(facts_of(tmp_path, Setup({"block_size": 16}, run=vllm(0, 28, gpu=gpu))))
    finding = next(one for one in found if one.rule == "budget.too_small")
    assert "8192 − 15 × 1024 = -7168" in "\n".join(finding.evidence) and "15361" in finding.remedy


def test_t2_rows_beyond_the_compiled_range(tmp_path: Path) -> None:
    flags = {"speculative.num_speculative_tokens": 12, "max-num-batched-tokens": 2048, "max-num-seqs": 256}
    found = diagnose(facts_of(tmp_path, Setup({"block_size": 13}, run=vllm(0, 26, flags=flags))))
    assert "budget.too_small" in {one.rule for one in found}, "2048 − 11 × 256 < 0 says more than the range"
    flags["max-num-batched-tokens"] = 3000
    seen = next(
        one
        for one in diagnose(facts_of(tmp_path, Setup(run=vllm(0, 26, flags=flags))))
        if one.rule == "budget.compiled_range"
    )
    assert "3328" in "\n".join(seen.evidence)


@pytest.mark.parametrize(
    ("version", "modules", "fails"),
    [
        ((0, 20, 2), {"flash_attn": True, "flash_attn.ops": False}, True),
        ((0, 24, 0), {"flash_attn": True, "flash_attn.ops": False}, False),
        ((0, 20, 2), {"flash_attn": False}, False),
        ((0, 20, 2), {"flash_attn": True, "flash_attn.ops": True}, False),
    ],
)
def test_t3_environment(
    tmp_path: Path, version: tuple[int, ...], modules: dict[str, bool], fails: bool
) -> None:
    run = vllm(*version, modules=modules, packages={"torch": "2.11.0"}, gpu=GpuFacts("H20", 96 * GIB, (9, 0)))
    found = verdicts(facts_of(tmp_path, Setup(run=run)))
    assert ("env.flash_attn_namespace" in found) is fails and "env.vllm_torch" not in found


def test_t4_padded_vocabulary(tmp_path: Path) -> None:
    draft, target = {"vocab_size": 152064}, {"vocab_size": 152576}
    old = verdicts(facts_of(tmp_path, Setup(draft, target, run=vllm(0, 24, 0))))
    new = verdicts(facts_of(tmp_path, Setup(draft, target, run=vllm(0, 26, 0))))
    assert old["head.padded_vocab"] is FAIL
    assert "head.padded_vocab" not in new and new["pair.vocab_padding"] is INFO
    assert not [
        rule for rule, severity in new.items() if severity is FAIL and rule.startswith(("pair", "head"))
    ]


@pytest.mark.parametrize(("engine", "severity"), [("vllm", FAIL), ("sglang", WARN), ("local", FAIL)])
def test_t6_no_mask_token(tmp_path: Path, engine: Any, severity: Severity) -> None:
    found = verdicts(facts_of(tmp_path, Setup({"dflash_config": ...}, run=RunFacts(engine=engine))))
    assert found["head.mask_missing"] is severity


def test_t6_mask_token_and_embedding_rows(tmp_path: Path) -> None:
    rows = {"vocab_size": 200064}
    beyond = verdicts(facts_of(tmp_path, Setup(rows | {"dflash_config__mask_token_id": 200064}, rows)))
    assert beyond["head.mask_out_of_range"] is FAIL
    tokens = tuple(f"t{i}" for i in range(200054))
    padding = verdicts(
        facts_of(tmp_path, Setup(rows | {"dflash_config__mask_token_id": 200054}, rows, target_tokens=tokens))
    )
    assert padding["head.mask_is_padding"] is WARN and "head.mask_out_of_range" not in padding


FOUR_B = {
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
}
FOUR_B_SHAPES = drafter_shapes(hidden=2560, heads=32, kv=8, dim=128, mlp=9728, captured=5)
FOUR_B_DRAFT = FOUR_B | {"dflash_config__target_layer_ids": [1, 9, 17, 25, 33]}


@pytest.mark.parametrize(
    ("depth", "said", "rule"),
    [(36, 36, None), (32, ..., "capture.out_of_range"), (32, 36, "pair.other_target")],
)
def test_t7_layers_and_the_targets_depth(tmp_path: Path, depth: int, said: Any, rule: str | None) -> None:
    setup = Setup(
        FOUR_B_DRAFT | {"num_target_layers": said},
        FOUR_B | {"num_hidden_layers": depth},
        shapes=FOUR_B_SHAPES,
    )
    fails = {one for one, severity in verdicts(facts_of(tmp_path, setup)).items() if severity is FAIL}
    assert fails == ({rule} if rule else set())


def test_t7_six_ids_for_five_places(tmp_path: Path) -> None:
    draft = {"dflash_config__target_layer_ids": [1, 2, 3, 4, 5, 6]}
    found = diagnose(facts_of(tmp_path, Setup(draft, shapes=drafter_shapes(captured=5))))
    finding = next(one for one in found if one.rule == "capture.count")
    assert "5 layers" in "\n".join(finding.evidence)


@pytest.mark.parametrize("engine", ["local", "vllm", "sglang"])
def test_t7_depth_is_compared_for_every_engine(tmp_path: Path, engine: Any) -> None:
    setup = Setup({"num_target_layers": 36}, {"num_hidden_layers": 28}, run=RunFacts(engine=engine))
    assert verdicts(facts_of(tmp_path, setup))["pair.other_target"] is FAIL


LAYERS_5 = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
}


@pytest.mark.parametrize(
    ("run", "rule", "severity"),
    [
        (vllm(0, 20, 2), "vllm.mixed_old", WARN),
        (vllm(0, 24), "vllm.mixed_v1", FAIL),
        (vllm(0, 26), "vllm.mixed_needs_v2", INFO),
        (vllm(0, 26), "vllm.mixed_v1", None),
        (vllm(0, 33, environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}), "vllm.mixed_v1", FAIL),
        (RunFacts(engine="vllm-ascend", version=(0, 26)), "vllm.mixed_v1", FAIL),
        (
            RunFacts(engine="vllm-ascend", version=(0, 26), environment={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
            "vllm.mixed_v1",
            None,
        ),
    ],
)
def test_t8_windows_and_runner(tmp_path: Path, run: RunFacts, rule: str, severity: Severity | None) -> None:
    setup = Setup(LAYERS_5, shapes=drafter_shapes(layers=5), run=run)
    assert verdicts(facts_of(tmp_path, setup)).get(rule) == severity


def test_t8_no_window_size(tmp_path: Path) -> None:
    setup = Setup(LAYERS_5 | {"sliding_window": None}, shapes=drafter_shapes(layers=5), run=vllm(0, 33))
    assert verdicts(facts_of(tmp_path, setup))["window.no_size"] is FAIL


@pytest.mark.parametrize(("version", "fails"), [((0, 30), True), ((0, 32), True), ((0, 33), False)])
def test_t9_served_length_beyond_the_drafters_table(
    tmp_path: Path, version: tuple[int, ...], fails: bool
) -> None:
    positions = {"max_position_embeddings": 131072}
    run = vllm(*version, flags={"max-model-len": 393216})
    assert ("vllm.short_table" in verdicts(facts_of(tmp_path, Setup(positions, positions, run=run)))) is fails


PACKED_4BIT = {
    "layers.0.self_attn.k_proj.weight": ("U8", (1024, 2560)),
    "layers.0.self_attn.k_proj.weight_scale": ("BF16", (1024, 160)),
}
PACKED_INT = {"layers.0.self_attn.k_proj.weight_packed": ("I32", (32, 8))}


@pytest.mark.parametrize(
    ("add", "run", "rule", "severity"),
    [
        (PACKED_4BIT, vllm(0, 30), "quant.packed_vllm", FAIL),
        (PACKED_4BIT, vllm(0, 32), "quant.packed_vllm", WARN),
        (PACKED_INT, RunFacts(engine="sglang", version=(0, 5, 23)), "quant.packed_sglang", WARN),
        (PACKED_INT, RunFacts(), "quant.packed_local", FAIL),
        ({}, vllm(0, 30), "quant.packed_vllm", None),
        ({}, RunFacts(), "quant.packed_local", None),
    ],
)
def test_t12_quantised_drafter(
    tmp_path: Path, add: dict[str, Any], run: RunFacts, rule: str, severity: Severity | None
) -> None:
    assert verdicts(facts_of(tmp_path, Setup(add=add, run=run))).get(rule) == severity


def test_t12_declared_dtype(tmp_path: Path) -> None:
    assert verdicts(facts_of(tmp_path, Setup({"dtype": "float16"})))["quant.dtype_differs"] is WARN


def inspect_27b(run: RunFacts, folder: Path | None = None, **changes: Any) -> tuple[Finding, ...]:
    drafter = CONFIGS / "qwen3.6-27b-dflash"
    if folder is not None:
        config = changed(json.loads((drafter / "config.json").read_text()), **changes)
        shutil.rmtree(folder / "draft", ignore_errors=True)
        (folder / "draft").mkdir()
        (folder / "draft" / "config.json").write_text(json.dumps(config))
        drafter = folder / "draft"
    return diagnose(PairFacts(read_drafter_files(drafter), read_target_files(CONFIGS / "qwen3.6-27b"), run))


def test_the_27b_pair_on_vllm_0251_is_refused_with_a_remedy() -> None:
    found = {finding.rule: finding for finding in inspect_27b(vllm(0, 25, 1))}
    assert found["vllm.mixed_v1"].severity is FAIL and "0.26" in found["vllm.mixed_v1"].remedy


def test_the_27b_pair_is_fine_on_a_new_vllm_and_h200() -> None:
    flags = {"max-num-batched-tokens": 32768, "max-num-seqs": 64, "speculative.num_speculative_tokens": 15}
    run = vllm(0, 33, flags=flags | {"speculative.method": "dflash"}, gpu=GpuFacts("H200", 141 * GIB, (9, 0)))
    assert [finding.rule for finding in inspect_27b(run) if finding.severity is FAIL] == []


def test_guessed_capture_layers_of_the_27b_pair(tmp_path: Path) -> None:
    findings = inspect_27b(vllm(0, 33), tmp_path, dflash_config__target_layer_ids=[1, 17, 33, 49, 63])
    found = {finding.rule: finding for finding in findings}
    unknown, last = found["capture.unknown_ids"], found["capture.last_layer"]
    assert unknown.severity is WARN and "truedraft recover" in unknown.remedy
    assert "Qwen3.6-27B-DFlash: [1, 16, 31, 46, 61]" in "\n".join(unknown.evidence)
    assert "63 is the last layer" in "\n".join(last.evidence)


def test_memory_of_the_27b_pair() -> None:
    drafter, target = (
        read_drafter_files(CONFIGS / "qwen3.6-27b-dflash"),
        read_target_files(CONFIGS / "qwen3.6-27b"),
    )
    plan = plan_memory(PairFacts(drafter, target), num_tokens=32768)
    assert plan is not None
    assert plan.drafter_weights_bytes == pytest.approx(3.46e9, rel=0.001)
    assert plan.target_weights_bytes == pytest.approx(54e9, rel=0.02), "55.6 GB with vision and MTP"
    assert plan.target_cache_per_token == 65536 and plan.drafter_cache_per_token == 4096
    assert plan.windowed_bytes == pytest.approx(33.6e6, rel=0.01)
    assert recurrent_bytes(target) == pytest.approx(154e6, rel=0.01)
    assert plan.total_bytes == pytest.approx(
        plan.target_weights_bytes + plan.drafter_weights_bytes + plan.cache_bytes + plan.features_bytes
    )


def test_an_unusable_config_gives_everything_that_shapes_say(tmp_path: Path) -> None:
    shapes = drafter_shapes(layers=5, hidden=5120, heads=32, kv=8, dim=128, mlp=17408, captured=5)
    found = {
        f.rule: f for f in diagnose(facts_of(tmp_path, Setup(raw_config="{", shapes=shapes, no_target=True)))
    }
    said = "\n".join(found["file.no_config"].evidence)
    for part in (
        "num_layers = 5",
        "num_heads = 32",
        "num_kv_heads = 8",
        "head_dim = 128",
        "mlp_size = 17408",
        "5 capture layers",
    ):
        assert part in said
    assert "rope_theta" in found["file.no_config"].cause and "layer_types" in found["file.no_config"].cause
    assert "Qwen3.6-27B-DFlash" in "\n".join(found["capture.missing"].evidence)
    assert "248070" in "\n".join(found["head.mask_missing"].evidence)
    assert DRAFTER["hidden_size"] == 64, "the shared config is untouched"
