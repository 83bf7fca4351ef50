"""Targets: values and where they come from, gaps, contradictions, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, TARGET, changed, target_shapes, write_checkpoint

from truedraft.checkpoint.target import read_target, read_target_files
from truedraft.errors import CheckpointError, PairingError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"


def test_plain_target(tmp_path: Path) -> None:
    spec = read_target(write_checkpoint(tmp_path / "t", TARGET, target_shapes()))
    assert (spec.num_layers, spec.hidden_size, spec.mlp_size, spec.vocab_size) == (8, 64, 128, 256)
    assert spec.qk_norm and spec.tied_head and not spec.attention_bias
    assert spec.attention.windows == (None,) * 8 and spec.attention.rope.theta == 10_000.0
    assert spec.origins["num_layers"].where == "config.json: num_hidden_layers"
    assert spec.dtype == "BF16" and spec.eos_ids == (2,) and spec.bos_id == 1


def test_hybrid_multimodal_config() -> None:
    reading = read_target_files(CONFIGS / "qwen3.6-27b")
    assert reading.spec is not None and reading.spec.architecture == "Qwen3_5ForConditionalGeneration"
    assert (reading.spec.num_layers, reading.spec.attention.head_dim) == (64, 256)
    assert reading.spec.attention.rope.partial_frac == 0.25 and reading.spec.attention.rope.scaling is None
    assert reading.layer_types.count("full_attention") == 16 and reading.layer_types[3] == "full_attention"
    assert reading.origins["num_layers"].where == "config.json: text_config.num_hidden_layers"


def test_generation_config_adds_end_tokens(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "t", TARGET, target_shapes())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_target(folder).eos_ids == (7, 2)


@pytest.mark.parametrize(
    ("changes", "theta", "kind"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 7e5, "rope_type": "default"}}, 7e5, None),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 1e4, "llama3"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 1e4, "yarn"),
        (
            {
                "rope_theta": ...,
                "rope_parameters": {
                    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
                    "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                },
            },
            1e6,
            None,
        ),
    ],
)
def test_rope_in_both_spellings(
    tmp_path: Path, changes: dict[str, Any], theta: float, kind: str | None
) -> None:
    rope = read_target(
        write_checkpoint(tmp_path, changed(TARGET, **changes)), needs_weights=False
    ).attention.rope
    assert rope.theta == theta
    assert (rope.scaling or {}).get("rope_type", (rope.scaling or {}).get("type")) == kind


def test_sliding_layers(tmp_path: Path) -> None:
    kinds = ["sliding_attention"] * 7 + ["full_attention"]
    spec = read_target(
        write_checkpoint(tmp_path, changed(TARGET, layer_types=kinds, sliding_window=512)),
        needs_weights=False,
    )
    assert spec.attention.windows == (512,) * 7 + (None,)


def test_qwen_windows_start_at_max_window_layers(tmp_path: Path) -> None:
    config = changed(TARGET, use_sliding_window=True, sliding_window=64, max_window_layers=6)
    spec = read_target(write_checkpoint(tmp_path, config), needs_weights=False)
    assert spec.attention.windows == (None,) * 6 + (64, 64)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"vocab_size": 300}, "vocab_size"),
        ({"hidden_size": 32}, "hidden_size"),
        ({"num_hidden_layers": 9}, "num_layers"),
    ],
)
def test_config_against_shapes(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    folder = write_checkpoint(tmp_path, changed(TARGET, **changes), target_shapes())
    reading = read_target_files(folder)
    assert [conflict.name for conflict in reading.conflicts if conflict.hard] == [name]
    with pytest.raises(CheckpointError, match=f"{name} contradicts itself"):
        read_target(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 1e300}, "hidden_size"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"num_hidden_layers": 10**8}, "number of layers"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta"),
        ({"partial_rotary_factor": 7}, "partial_rotary_factor"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": [1] * 8}, "layer_types"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"sliding_window": [1, 2]}, "sliding_window"),
        ({"num_hidden_layers": ...}, "num_hidden_layers missing"),
        ({"rope_theta": ...}, "rope_theta missing"),
        ({"layer_types": ["full_attention"] * 3}, "num_layers contradicts"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_checkpoint(tmp_path, changed(TARGET, **changes))
    with pytest.raises(CheckpointError, match=message):
        read_target(folder, needs_weights=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"hidden_size": NaN}', "NaN"),
        ('{"rope_theta": Infinity}', "Infinity"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_config(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_target(write_checkpoint(tmp_path, text), needs_weights=False)


def test_a_drafter_in_the_targets_place(tmp_path: Path) -> None:
    with pytest.raises(PairingError, match="is a drafter"):
        read_target(write_checkpoint(tmp_path, DRAFTER), needs_weights=False)


def test_no_config_and_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_target(tmp_path)
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        read_target(write_checkpoint(tmp_path, TARGET))


def test_cyclic_link(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_target(tmp_path)


def test_tokenizer_facts(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TARGET)
    tokens = {"a": 0, "b": 1}
    added = [{"id": 5, "content": "<mask>", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": added}))
    facts = read_target_files(folder).tokenizer
    assert facts is not None and facts.num_tokens == 6 and facts.special_ids == {"<mask>": 5}
