"""Writes a drafter's config in z-lab's or speculators' format; weights are linked, not copied.

Both id numberings are written and named, since mixing them up costs acceptance without an error.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

from truedraft import __version__
from truedraft.contract.reading import DrafterReading
from truedraft.contract.specs import DrafterSpec
from truedraft.errors import CheckpointError, ConfigError

ExportFormat = Literal["zlab", "speculators"]
FORMATS: tuple[ExportFormat, ...] = ("zlab", "speculators")
DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def export_config(reading: DrafterReading, to: ExportFormat) -> dict[str, Any]:
    """→ config.json of this drafter in another format (or its own).

    Raises CheckpointError where the drafter is not fully known or has parts that the format cannot
    say, ConfigError for an unknown format.
    """
    if to not in FORMATS:
        raise ConfigError("Unknown format to convert to", seen=to, allowed=", ".join(FORMATS))
    spec = reading.spec
    if spec is None:
        raise CheckpointError(
            f"{reading.path} does not say all that a drafter needs", seen=", ".join(reading.missing)
        )
    if spec.algorithm != "dflash":
        raise CheckpointError(
            f"Only plain DFlash drafters can be converted: {reading.path} is {spec.algorithm}",
            remedy="Its other parts have no keys in the other format",
        )
    config = _zlab(reading, spec) if to == "zlab" else _speculators(reading, spec)
    config["truedraft"] = {
        "version": __version__,
        "converted_from": spec.format,
        "capture_layers": list(spec.capture_layers),
        "boundary_ids": [index + 1 for index in spec.capture_layers],
    }
    return config


def _decoder(spec: DrafterSpec) -> dict[str, Any]:
    """→ what both formats say of the decoder stack in the same words."""
    attention = spec.attention
    kinds = ["full_attention" if window is None else "sliding_attention" for window in attention.windows]
    sizes = {window for window in attention.windows if window is not None}
    if len(sizes) > 1:
        raise CheckpointError("Layers with different windows cannot be written", seen=sorted(sizes))
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": spec.mlp_size,
        "hidden_act": "silu",
        "attention_bias": spec.attention_bias,
        "rms_norm_eps": spec.rms_eps,
        "max_position_embeddings": spec.max_position,
        "layer_types": kinds,
        "sliding_window": next(iter(sizes), None),
        "use_sliding_window": bool(sizes),
        "max_window_layers": spec.num_layers,
        "tie_word_embeddings": False,
    }
    if attention.rope.partial_frac != 1.0:
        config["partial_rotary_factor"] = attention.rope.partial_frac
    return config


def _causality(spec: DrafterSpec) -> dict[str, Any]:
    """→ `is_causal` where the rule by layer type (sliding causal, full not) does not say it."""
    by_type = tuple(window is not None for window in spec.attention.windows)
    if spec.causal == by_type:
        return {}
    if len(set(spec.causal)) > 1:
        raise CheckpointError("This mix of causal layers has no key", seen=list(spec.causal))
    return {"is_causal": spec.causal[0]}


def _knobs(spec: DrafterSpec) -> dict[str, Any]:
    knobs: dict[str, Any] = {}
    if spec.embedding_scale != 1.0:
        knobs["input_embedding_scale"] = spec.embedding_scale
    if spec.output_multiplier != 1.0:
        knobs["output_multiplier"] = spec.output_multiplier
    if spec.final_logit_softcap is not None:
        knobs["final_logit_softcapping"] = spec.final_logit_softcap
    return knobs


def _vocabulary(reading: DrafterReading, spec: DrafterSpec) -> tuple[int, int]:
    """→ (rows of the embedding, rows of the head)."""
    return int(reading.values.get("embedding_vocab_size") or spec.vocab_size), spec.vocab_size


def _zlab(reading: DrafterReading, spec: DrafterSpec) -> dict[str, Any]:
    rows, head = _vocabulary(reading, spec)
    rope = spec.attention.rope
    config: dict[str, Any] = {"architectures": ["DFlashDraftModel"]} | _decoder(spec) | _causality(spec)
    config |= {
        "block_size": spec.block_len,
        "dflash_config": {
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": list(spec.capture_layers),
            **_knobs(spec),
        },
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling is None else dict(rope.scaling),
        "vocab_size": rows,
        "dtype": DTYPE_NAMES.get(spec.dtype, "bfloat16"),
    }
    if spec.num_target_layers is not None:
        config["num_target_layers"] = spec.num_target_layers
    if head != rows:
        config["draft_vocab_size"] = head
    if spec.target_hidden_size != spec.hidden_size:
        config["target_hidden_size"] = spec.target_hidden_size
    if spec.sample_from_anchor:
        config["sample_from_anchor"] = True
    return config


def _speculators(reading: DrafterReading, spec: DrafterSpec) -> dict[str, Any]:
    rows, head = _vocabulary(reading, spec)
    rope = spec.attention.rope
    scaling = {"rope_type": "default"} if rope.scaling is None else dict(rope.scaling)
    decoder = _decoder(spec) | {"vocab_size": rows, "rope_parameters": {"rope_theta": rope.theta, **scaling}}
    outer = reading.config.get("speculators_config")
    verifier = outer.get("verifier") if isinstance(outer, dict) else None
    config: dict[str, Any] = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "block_size": spec.block_len,
        "draft_vocab_size": head,
        "aux_hidden_state_layer_ids": [index + 1 for index in spec.capture_layers],
        "mask_token_id": spec.mask_token_id,
        "target_hidden_size": spec.target_hidden_size,
        "sample_from_anchor": spec.sample_from_anchor,
        "transformer_layer_config": decoder,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": spec.num_drafted}],
            "verifier": verifier or {"name_or_path": None, "architectures": []},
        },
        "dtype": DTYPE_NAMES.get(spec.dtype, "bfloat16"),
        **_causality(spec),
        **_knobs(spec),
    }
    if spec.num_target_layers is not None:
        config["num_target_layers"] = spec.num_target_layers
    return config


def write_folder(reading: DrafterReading, config: dict[str, Any], out: Path) -> Path:
    """Write `config` into a new folder `out` and link the drafter's weights there; → `out`.

    The folder appears whole or not at all. Raises ConfigError where `out` exists.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already", remedy="Name a new folder")
    source = Path(reading.path)
    folder = source if source.is_dir() else source.parent
    names = sorted({tensor.file for tensor in reading.tensors})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            for name in [*names, *(["model.safetensors.index.json"] if len(names) > 1 else [])]:
                if (folder / name).exists():
                    (made / name).symlink_to((folder / name).resolve())
            made.chmod(0o755)
            os.rename(made, out)  # noqa: PTH104 - refuses a folder that appeared meanwhile
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as exc:
        raise CheckpointError(f"Cannot write {out}", seen=exc.strerror) from exc
    return out
