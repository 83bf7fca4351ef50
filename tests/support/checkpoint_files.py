"""Writes checkpoints that are right in every header and hold no data: sparse files, any size."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I64": 64, "I32": 32, "U8": 8, "BOOL": 8}

DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 8,
    "dflash_config": {"mask_token_id": 250, "target_layer_ids": [1, 4, 6]},
    "num_target_layers": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 2048,
    "layer_types": ["full_attention", "full_attention"],
    "sliding_window": None,
    "use_sliding_window": False,
    "dtype": "bfloat16",
}
TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with keys set; `None` stays null, `...` removes; `dflash_config__x` reaches inside."""
    config = copy.deepcopy(base)
    for key, value in changes.items():
        scope, name = (config[key.split("__")[0]], key.split("__")[1]) if "__" in key else (config, key)
        if value is ...:
            scope.pop(name, None)
        else:
            scope[name] = value
    return config


def drafter_shapes(
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv: int = 2,
    dim: int = 16,
    mlp: int = 128,
    captured: int = 3,
) -> dict[str, tuple[int, ...]]:
    """Tensor shapes of a plain drafter."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, captured * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(layers):
        part = f"layers.{layer}"
        shapes |= {
            f"{part}.input_layernorm.weight": (hidden,),
            f"{part}.post_attention_layernorm.weight": (hidden,),
            f"{part}.self_attn.q_proj.weight": (heads * dim, hidden),
            f"{part}.self_attn.k_proj.weight": (kv * dim, hidden),
            f"{part}.self_attn.v_proj.weight": (kv * dim, hidden),
            f"{part}.self_attn.o_proj.weight": (hidden, heads * dim),
            f"{part}.self_attn.q_norm.weight": (dim,),
            f"{part}.self_attn.k_norm.weight": (dim,),
            f"{part}.mlp.gate_proj.weight": (mlp, hidden),
            f"{part}.mlp.up_proj.weight": (mlp, hidden),
            f"{part}.mlp.down_proj.weight": (hidden, mlp),
        }
    return shapes


def target_shapes(
    *, layers: int = 8, hidden: int = 64, vocab: int = 256, dim: int = 16
) -> dict[str, tuple[int, ...]]:
    """A few tensor shapes of a target: enough for what headers are asked."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(layers):
        shapes[f"model.layers.{layer}.self_attn.q_norm.weight"] = (dim,)
        shapes[f"model.layers.{layer}.self_attn.k_norm.weight"] = (dim,)
    return shapes


Shape = tuple[int, ...] | tuple[str, tuple[int, ...]]


def write_safetensors(path: Path, shapes: dict[str, Any], dtype: str = "BF16") -> None:
    """A file with these tensors (`name: shape` or `name: (dtype, shape)`), all zeros, sparse."""
    header, offset = {}, 0
    for name, said in shapes.items():
        kind, shape = said if said and isinstance(said[0], str) else (dtype, said)
        size = (math.prod(shape) * BITS[kind] + 7) // 8
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    write_raw(path, json.dumps(header).encode(), offset)


def write_raw(path: Path, header: bytes, num_data_bytes: int) -> None:
    """A safetensors file of this header, whatever it says."""
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + num_data_bytes)


def write_checkpoint(
    folder: Path, config: dict[str, Any] | str | None, shapes: dict[str, Any] | None = None
) -> Path:
    """A folder with config.json (a dict, raw text, or none) and model.safetensors (or none)."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "config.json").write_text(text, encoding="utf-8")
    if shapes is not None:
        write_safetensors(folder / "model.safetensors", shapes)
    return folder
