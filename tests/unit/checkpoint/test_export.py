"""Converting between formats is exact both ways; certain corrections and nothing beyond them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, changed, drafter_shapes, write_checkpoint

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.checkpoint.drafter import read_drafter, read_drafter_files
from truedraft.checkpoint.export import export_config, write_folder
from truedraft.checkpoint.fix import apply_corrections, certain_corrections
from truedraft.contract.specs import DrafterSpec
from truedraft.errors import CheckpointError, ConfigError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
OWN = {
    "embed_tokens.weight": (256, 64),
    "lm_head.weight": (100, 64),
    "d2t": ("I64", (100,)),
    "t2d": ("BOOL", (256,)),
}


def same(first: DrafterSpec, second: DrafterSpec) -> None:
    def plain(spec: DrafterSpec) -> DrafterSpec:
        return dataclasses.replace(spec, source="", path="", format="unknown", architecture="", origins={})

    assert plain(first) == plain(second)


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({}, {}),
        (SLIDING, {}),
        (SLIDING | {"is_causal": False}, {}),
        ({"is_causal": True, "layer_types": ["sliding_attention"] * 2, "sliding_window": 32}, {}),
        ({"sample_from_anchor": True}, {}),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, {}),
        ({"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "attention_bias": False}, {}),
        ({"dflash_config__input_embedding_scale": 8.0, "dflash_config__final_logit_softcapping": 30.0}, {}),
        ({"draft_vocab_size": 100}, OWN),
        ({"num_target_layers": ...}, {}),
    ],
)
def test_round_trips(tmp_path: Path, changes: dict[str, Any], extra: dict[str, Any]) -> None:
    shapes = drafter_shapes() | extra
    first = read_drafter_files(write_checkpoint(tmp_path / "zlab", changed(DRAFTER, **changes), shapes))
    assert first.spec is not None
    there = write_folder(first, export_config(first, "speculators"), tmp_path / "speculators")
    second = read_drafter_files(there)
    assert second.spec is not None and second.format == "speculators" and second.conflicts == ()
    same(first.spec, second.spec)
    back = write_folder(second, export_config(second, "zlab"), tmp_path / "back")
    third = read_drafter(back)
    assert third.format == "zlab"
    same(first.spec, third)


def test_the_27b_drafter_round_trips_too(tmp_path: Path) -> None:
    first = read_drafter_files(CONFIGS / "qwen3.6-27b-dflash")
    second = read_drafter_files(write_folder(first, export_config(first, "speculators"), tmp_path / "s"))
    assert first.spec is not None and second.spec is not None
    same(first.spec, second.spec)
    assert second.config["aux_hidden_state_layer_ids"] == [2, 17, 32, 47, 62]
    assert second.config["truedraft"]["capture_layers"] == [1, 16, 31, 46, 61]
    assert second.config["truedraft"]["boundary_ids"] == [2, 17, 32, 47, 62]


def test_weights_are_linked(tmp_path: Path) -> None:
    reading = read_drafter_files(demo_drafter_path())
    out = write_folder(reading, export_config(reading, "speculators"), tmp_path / "out")
    assert (out / "model.safetensors").is_symlink()
    assert (out / "model.safetensors").resolve() == (demo_drafter_path() / "model.safetensors").resolve()
    assert read_drafter(out).capture_layers == (1, 8, 14, 20, 27)


def test_a_list_edited_in_one_place_is_noticed(tmp_path: Path) -> None:
    reading = read_drafter_files(demo_drafter_path())
    config = export_config(reading, "zlab")
    config["dflash_config"]["target_layer_ids"] = [2, 9, 15, 21, 28]
    edited = read_drafter_files(write_folder(reading, config, tmp_path / "out"))
    assert [conflict.name for conflict in edited.conflicts] == ["capture_layers"]


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    reading = read_drafter_files(
        write_checkpoint(tmp_path / "d", changed(DRAFTER, architectures=["DFlash2DraftModel"]))
    )
    with pytest.raises(CheckpointError, match="dflash2"):
        export_config(reading, "zlab")
    gap = read_drafter_files(write_checkpoint(tmp_path / "g", changed(DRAFTER, block_size=...)))
    with pytest.raises(CheckpointError, match="block_len"):
        export_config(gap, "speculators")
    with pytest.raises(ConfigError, match="format"):
        export_config(gap, "gguf")  # type: ignore[arg-type]


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    reading = read_drafter_files(demo_drafter_path())
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_folder(reading, {}, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    reading = read_drafter_files(demo_drafter_path())
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_folder(reading, {}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "key", "new"),
    [
        ({"intermediate_size": 96}, "intermediate_size", 128),
        ({"num_attention_heads": ...}, "num_attention_heads", 4),
        ({"dtype": "float16"}, "dtype", "bfloat16"),
        ({"architectures": ["Qwen3DFlashDraftModel"]}, "architectures", ["DFlashDraftModel"]),
    ],
)
def test_certain_corrections(tmp_path: Path, changes: dict[str, Any], key: str, new: object) -> None:
    config = changed(DRAFTER, **changes)
    reading = read_drafter_files(write_checkpoint(tmp_path / "d", config, drafter_shapes()))
    corrections = certain_corrections(reading)
    assert [(one.key, one.new) for one in corrections] == [(key, new)]
    fixed = apply_corrections(config, corrections)
    assert fixed[key] == new and config != fixed
    again = read_drafter_files(write_folder(reading, fixed, tmp_path / "fixed"))
    assert certain_corrections(again) == () and again.spec is not None


def test_dspark_gets_its_layout_key(tmp_path: Path) -> None:
    shapes = drafter_shapes() | {"markov_head.markov_w1.weight": (256, 8)}
    reading = read_drafter_files(write_checkpoint(tmp_path, DRAFTER, shapes))
    assert [(one.key, one.new) for one in certain_corrections(reading)] == [("sample_from_anchor", True)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dflash_config__target_layer_ids": ...},
        {"dflash_config__target_layer_ids": [1, 2]},
        {"rope_theta": ...},
    ],
)
def test_what_only_measuring_can_tell_is_left(tmp_path: Path, changes: dict[str, Any]) -> None:
    reading = read_drafter_files(write_checkpoint(tmp_path, changed(DRAFTER, **changes), drafter_shapes()))
    assert certain_corrections(reading) == ()


def test_a_null_where_an_object_belongs(tmp_path: Path) -> None:
    config = changed(DRAFTER, hidden_size=None, transformer_layer_config=None)
    reading = read_drafter_files(write_checkpoint(tmp_path, config, drafter_shapes()))
    fixed = apply_corrections(config, certain_corrections(reading))
    assert (
        fixed["transformer_layer_config"] == {"hidden_size": 64}
        and config["transformer_layer_config"] is None
    )


def test_nested_keys_of_speculators(tmp_path: Path) -> None:
    reading = read_drafter_files(write_checkpoint(tmp_path / "z", DRAFTER, drafter_shapes()))
    config = export_config(reading, "speculators")
    config["transformer_layer_config"]["intermediate_size"] = 96
    wrong = read_drafter_files(write_folder(reading, config, tmp_path / "w"))
    fixed = apply_corrections(config, certain_corrections(wrong))
    assert fixed["transformer_layer_config"]["intermediate_size"] == 128
    assert (
        json.loads((tmp_path / "w" / "config.json").read_text())["transformer_layer_config"][
            "intermediate_size"
        ]
        == 96
    )
