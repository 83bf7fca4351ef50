"""Drafters of every format: one spec, origins, gaps and contradictions, never a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    DRAFTER,
    TARGET,
    changed,
    drafter_shapes,
    target_shapes,
    write_checkpoint,
    write_safetensors,
)

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.checkpoint.drafter import read_drafter, read_drafter_files
from truedraft.contract.reading import DrafterReading
from truedraft.errors import CheckpointError, PairingError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
SLIDING = ["sliding_attention", "full_attention"]
SPECULATORS: dict[str, Any] = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "speculators_version": "0.6.0",
    "block_size": 8,
    "draft_vocab_size": 100,
    "aux_hidden_state_layer_ids": [2, 5, 7],
    "mask_token_id": 250,
    "target_hidden_size": 64,
    "transformer_layer_config": {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 256,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "max_position_embeddings": 4096,
    },
    "speculators_config": {
        "algorithm": "dflash",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "verifier": {"name_or_path": "some/model", "architectures": ["Qwen3ForCausalLM"]},
    },
}
OWN_PARTS = {
    "embed_tokens.weight": (256, 64),
    "lm_head.weight": (100, 64),
    "d2t": ("I64", (100,)),
    "t2d": ("BOOL", (256,)),
}


def reading(tmp_path: Path, config: Any = DRAFTER, shapes: dict[str, Any] | None = None) -> DrafterReading:
    return read_drafter_files(
        write_checkpoint(tmp_path, config, drafter_shapes() if shapes is None else shapes)
    )


def test_demo_drafter() -> None:
    spec = read_drafter(demo_drafter_path())
    assert (spec.format, spec.algorithm, spec.block_len, spec.num_drafted) == ("zlab", "dflash", 8, 7)
    assert spec.capture_layers == (1, 8, 14, 20, 27) and spec.mask_token_id == 16
    assert not (spec.own_embedding or spec.own_head or spec.has_d2t or spec.sample_from_anchor)
    assert spec.origins["mask_token_id"].where == "config.json: dflash_config.mask_token_id"
    assert spec.origins["block_len"].where == "config.json: block_size"


def test_sliding_layers_are_causal_and_full_ones_are_not() -> None:
    spec = read_drafter(CONFIGS / "qwen3.6-27b-dflash", needs_weights=False)
    assert spec.attention.windows == (2048, 2048, 2048, 2048, None)
    assert spec.causal == (True, True, True, True, False)
    assert spec.capture_layers == (1, 16, 31, 46, 61) and spec.num_target_layers == 64


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({"layer_types": SLIDING, "sliding_window": 32}, (True, False)),
        ({"layer_types": SLIDING, "sliding_window": 32, "is_causal": False}, (False, False)),
        ({"layer_types": SLIDING, "sliding_window": 32, "is_causal": True}, (True, True)),
        ({"layer_types": SLIDING, "sliding_window": 32, "dflash_config__causal": False}, (False, False)),
        ({"is_causal": False, "dflash_config__causal": True}, (False, False)),
        (
            {"dflash_config__use_swa": True, "dflash_config__swa_window_size": 64, "layer_types": ...},
            (False, False),
        ),
        ({"layer_types": SLIDING, "sliding_window": 32, "sliding_window_non_causal": True}, (False, False)),
    ],
)
def test_causality(tmp_path: Path, changes: dict[str, Any], causal: tuple[bool, ...]) -> None:
    spec = reading(tmp_path, changed(DRAFTER, **changes)).spec
    assert spec is not None and spec.causal == causal


def test_use_swa_gives_every_layer_its_window(tmp_path: Path) -> None:
    config = changed(DRAFTER, dflash_config__use_swa=True, dflash_config__swa_window_size=64, layer_types=...)
    spec = reading(tmp_path, config).spec
    assert spec is not None and spec.attention.windows == (64, 64)


def test_dflash_config_comes_before_the_top_level(tmp_path: Path) -> None:
    found = reading(tmp_path, changed(DRAFTER, dflash_config__block_size=16))
    assert found.spec is not None and found.spec.block_len == 16
    assert found.origins["block_len"].where == "config.json: dflash_config.block_size"
    assert [(c.name, c.used, c.other, c.hard) for c in found.conflicts] == [("block_len", 16, 8, False)]


def test_theta_in_rope_parameters_and_a_second_one(tmp_path: Path) -> None:
    found = reading(tmp_path, changed(DRAFTER, rope_parameters={"rope_theta": 77.0, "rope_type": "default"}))
    assert found.spec is not None and found.spec.attention.rope.theta == 10_000.0
    assert [(c.name, c.other) for c in found.conflicts] == [("rope_theta", 77.0)]


def test_speculators(tmp_path: Path) -> None:
    spec = read_drafter(write_checkpoint(tmp_path, SPECULATORS, drafter_shapes() | OWN_PARTS))
    assert (spec.format, spec.algorithm) == ("speculators", "dflash")
    assert spec.capture_layers == (1, 4, 6)
    assert spec.origins["capture_layers"].where == "config.json: aux_hidden_state_layer_ids − 1"
    assert spec.own_embedding and spec.own_head and spec.has_d2t and spec.vocab_size == 100
    assert spec.attention.rope.theta == 500_000.0 and spec.max_position == 4096
    assert not spec.sample_from_anchor and spec.num_drafted == 7
    assert spec.origins["hidden_size"].where == "config.json: transformer_layer_config.hidden_size"


def test_speculators_that_proposes_the_whole_block_samples_from_the_anchor(tmp_path: Path) -> None:
    config = changed(SPECULATORS)
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 8
    found = reading(tmp_path, config, drafter_shapes() | OWN_PARTS)
    assert found.spec is not None and found.spec.sample_from_anchor and found.spec.num_drafted == 8
    assert found.layout_said == "anchor"


def test_layout_said_twice_differently(tmp_path: Path) -> None:
    config = changed(SPECULATORS, sample_from_anchor=True)
    found = reading(tmp_path, config, drafter_shapes() | OWN_PARTS)
    assert found.spec is not None and found.spec.sample_from_anchor
    assert [c.name for c in found.conflicts] == ["sample_from_anchor"]


def test_speculators_leaves_out_defaults(tmp_path: Path) -> None:
    config = changed(SPECULATORS)
    for key in ("rope_parameters", "max_position_embeddings"):
        del config["transformer_layer_config"][key]
    spec = reading(tmp_path, config, drafter_shapes() | OWN_PARTS).spec
    assert spec is not None and spec.attention.rope.theta == 10_000.0 and spec.max_position == 32_768
    assert spec.origins["max_position"].kind == "default"


def test_speculators_lists_the_last_layer_too(tmp_path: Path) -> None:
    found = reading(
        tmp_path, changed(SPECULATORS, aux_hidden_state_layer_ids=[2, 5, 7, 8]), drafter_shapes() | OWN_PARTS
    )
    assert found.spec is not None and found.spec.capture_layers == (1, 4, 6)
    assert [(c.name, c.hard) for c in found.conflicts] == [("capture_layers", False)]


@pytest.mark.parametrize(
    ("changes", "extra", "algorithm", "format_name"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, {}, "dflash2", "zlab"),
        ({}, {"candidate_selector.predecessor_codebook": (256, 8)}, "dflash2", "zlab"),
        ({}, {"layers.0.attention_conv.base_kernel": (2, 2, 64)}, "dflash2", "zlab"),
        ({"dflash_config__projector_type": "dspark"}, {}, "dspark", "specforge"),
        ({"dflash_config__projector_type": "domino"}, {}, "domino", "specforge"),
        ({"dflash_config__projector_type": "dflash"}, {}, "dflash", "specforge"),
        ({}, {"prefix_gru.weight_ih_l0": (24, 64)}, "domino", "zlab"),
        ({"architectures": ["JetSpecDraftModel"]}, {}, "jetspec", "zlab"),
        ({"dflash_config__causal": True}, {}, "jetspec", "zlab"),
        ({"architectures": ["DFlashLagunaForCausalLM"]}, {}, "laguna", "zlab"),
    ],
)
def test_algorithms_are_named(
    tmp_path: Path, changes: dict[str, Any], extra: dict[str, Any], algorithm: str, format_name: str
) -> None:
    spec = reading(tmp_path, changed(DRAFTER, **changes), drafter_shapes() | extra).spec
    assert spec is not None and (spec.algorithm, spec.format) == (algorithm, format_name)


def test_deepspec_dspark(tmp_path: Path) -> None:
    config = changed(
        DRAFTER, architectures=["Qwen3DSparkModel"], dflash_config=..., mask_token_id=250, block_size=7
    )
    config |= {"target_layer_ids": [1, 4, 6], "markov_rank": 8, "num_anchors": 512}
    heads = {"markov_head.markov_w1.weight": (256, 8), "confidence_head.proj.weight": (1, 72)}
    found = reading(tmp_path, config, drafter_shapes() | heads)
    assert found.spec is not None and (found.spec.algorithm, found.spec.format) == ("dspark", "deepspec")
    assert found.spec.sample_from_anchor and found.spec.num_drafted == 7 and found.layout_said is None
    assert set(found.extras) == {"markov_head", "confidence_head"} and found.unexpected == ()


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "EagleDraftModel"])
def test_other_kinds_of_drafters_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="no DFlash drafter"):
        reading(tmp_path, changed(DRAFTER, architectures=[name]))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"hidden_size": 32}, "hidden_size"),
        ({"num_attention_heads": 8}, "num_heads"),
        ({"num_key_value_heads": 4}, "num_kv_heads"),
        ({"head_dim": 32}, "head_dim"),
        ({"intermediate_size": 256}, "mlp_size"),
        ({"num_hidden_layers": 3, "layer_types": ...}, "num_layers"),
        ({"dflash_config__target_layer_ids": [1, 2, 3, 4]}, "capture_layers"),
    ],
)
def test_config_against_shapes(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    found = reading(tmp_path, changed(DRAFTER, **changes))
    assert name in [conflict.name for conflict in found.conflicts if conflict.hard]
    with pytest.raises(CheckpointError, match="contradicts itself"):
        read_drafter(tmp_path)


def test_layers_of_different_geometry(tmp_path: Path) -> None:
    shapes = drafter_shapes() | {
        "layers.1.mlp.gate_proj.weight": (96, 64),
        "layers.1.mlp.up_proj.weight": (96, 64),
    }
    assert "mlp_size" in [c.name for c in reading(tmp_path, DRAFTER, shapes).conflicts if c.hard]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dflash_config__target_layer_ids": ...}, r"target_layer_ids"),
        ({"dflash_config__mask_token_id": ...}, "mask_token_id"),
        ({"block_size": ...}, "block_size"),
        ({"rope_theta": ...}, "rope_theta"),
        ({"vocab_size": ...}, "vocab_size"),
    ],
)
def test_missing_values_are_never_guessed(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    folder = write_checkpoint(tmp_path, changed(DRAFTER, **changes), drafter_shapes())
    with pytest.raises(CheckpointError, match=rf"{key} missing.*never guessed"):
        read_drafter(folder)


@pytest.mark.parametrize("config", [None, "not json", '{"a": NaN}', "[1]"])
def test_without_a_usable_config_the_shapes_speak(tmp_path: Path, config: Any) -> None:
    found = read_drafter_files(write_checkpoint(tmp_path, config, drafter_shapes()))
    assert found.spec is None and found.config_problem and found.num_captured == 3
    sizes = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "mlp_size": 128,
    }
    assert {name: found.values[name] for name in sizes} == sizes
    assert found.origins["num_heads"].kind == "shape"
    for name in (
        "capture_layers",
        "mask_token_id",
        "block_len",
        "rope_theta",
        "layer_types",
        "sample_from_anchor",
    ):
        assert name in found.missing


def test_a_language_model_in_the_drafters_place(tmp_path: Path) -> None:
    with pytest.raises(PairingError, match="is a language model"):
        read_drafter_files(write_checkpoint(tmp_path, TARGET, target_shapes()))


def test_neither_config_nor_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no drafter"):
        read_drafter_files(tmp_path)


def test_absent_and_unexpected_tensors(tmp_path: Path) -> None:
    shapes = drafter_shapes() | {"layers.0.secret.weight": (3,)}
    del shapes["layers.1.self_attn.k_norm.weight"]
    found = reading(tmp_path, DRAFTER, shapes)
    assert found.absent == ("layers.1.self_attn.k_norm.weight",)
    assert found.unexpected == ("layers.0.secret.weight",)


def test_stored_dtype_against_the_declared_one(tmp_path: Path) -> None:
    found = reading(tmp_path, changed(DRAFTER, dtype="float16"))
    assert [(c.name, c.used, c.other, c.hard) for c in found.conflicts] == [("dtype", "F16", "BF16", False)]


def test_a_single_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, DRAFTER, drafter_shapes())
    spec = read_drafter(folder / "model.safetensors")
    assert spec.hidden_size == 64 and spec.path == str(folder), "a loader opens the folder"
    write_safetensors(folder / "other.safetensors", drafter_shapes())
    assert read_drafter(folder / "other.safetensors").path == str(folder / "other.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": 10**9}, "block_size"),
        ({"dflash_config__target_layer_ids": [1, "2"]}, "target_layer_ids"),
        ({"dflash_config__target_layer_ids": [-2]}, "target_layer_ids"),
        ({"dflash_config__target_layer_ids": 3}, "target_layer_ids"),
        ({"dflash_config__mask_token_id": -1}, "mask_token_id"),
        ({"is_causal": "no"}, "is_causal"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        reading(tmp_path, changed(DRAFTER, **changes))


@pytest.mark.parametrize("value", ["text", 3, [1], None])
def test_dflash_config_of_a_wrong_type(tmp_path: Path, value: Any) -> None:
    found = reading(tmp_path, changed(DRAFTER, dflash_config=value))
    assert "capture_layers" in found.missing
