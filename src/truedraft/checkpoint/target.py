"""Reads a target's config, headers and tokenizer files into one TargetSpec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from truedraft.checkpoint.attention import read_attention, read_heads
from truedraft.checkpoint.dtypes import config_dtype, main_dtype, quantisation_of
from truedraft.checkpoint.files import read_json_object
from truedraft.checkpoint.headers import read_tensor_headers, weight_files
from truedraft.checkpoint.hub import remote_tensor_headers
from truedraft.checkpoint.locate import Located, locate
from truedraft.checkpoint.target_gguf import read_gguf_target
from truedraft.checkpoint.tokenizer import read_tokenizer_facts
from truedraft.checkpoint.values import Values
from truedraft.contract.reading import TargetReading
from truedraft.contract.specs import Origin, TargetSpec, TensorHeader
from truedraft.errors import CheckpointError, PairingError

QK_NORM_FAMILIES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_text", "gemma3", "gemma3_text")
NEEDED = (
    "architecture",
    "num_layers",
    "hidden_size",
    "mlp_size",
    "vocab_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rope_theta",
    "max_position",
)
KEYS = {
    "architecture": "architectures",
    "num_layers": "num_hidden_layers",
    "mlp_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_position": "max_position_embeddings",
    "block_len": "block_size",
    "capture_layers": "target_layer_ids",
}


def read_target(where: str | Path, *, needs_weights: bool = True) -> TargetSpec:
    """→ the target's spec, from a folder, a .gguf file or a hub id.

    Raises CheckpointError where files are missing or corrupt, a value that the spec needs is
    nowhere, or the config contradicts the tensors' shapes.
    """
    reading = read_target_files(where, needs_weights=needs_weights)
    if reading.spec is None:
        raise CheckpointError(
            f"{reading.path} does not say what this target is: {', '.join(missing_keys(reading.missing))} missing"
        )
    for conflict in reading.conflicts:
        if conflict.hard:
            raise CheckpointError(
                f"{reading.path}: {conflict.name} contradicts itself",
                seen=f"{conflict.used_from.where} = {conflict.used}, {conflict.other_from.where} = {conflict.other}",
                remedy="Use the config.json that belongs to these weights",
            )
    return reading.spec


def missing_keys(names: tuple[str, ...]) -> list[str]:
    """Spec fields → the config keys that hold them."""
    return [KEYS.get(name, name) for name in names]


def read_target_files(where: str | Path, *, needs_weights: bool = False) -> TargetReading:
    """→ everything that the target's files say; gaps and contradictions are listed, not raised."""
    located = locate(where, role="target", headers_only=not needs_weights)
    if located.kind == "gguf":
        return read_gguf_target(located)
    folder = located.path if located.path.is_dir() else located.path.parent
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise CheckpointError(
            f"{folder} has no config.json", remedy="Put the model's config.json beside its weights"
        )
    config = read_json_object(config_path)
    if is_drafter_config(config):
        raise PairingError(
            f"{located.source} is a drafter, not a target",
            remedy="Name it with --draft, and the model it drafts for first",
        )
    tensors = tensors_of(located, needs_weights)
    return _reading(located, folder, config, tensors)


def is_drafter_config(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a drafter."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    known = ("DFlash", "DSpark", "Domino", "JetSpec", "Eagle", "Speculator")
    return any(
        key in config for key in ("dflash_config", "speculators_config", "speculators_model_type")
    ) or any(name in first for name in known)


def tensors_of(located: Located, needs_weights: bool) -> tuple[TensorHeader, ...]:
    """→ tensor headers: from local files, else (unless weights are needed here) from the hub, else none."""
    if not needs_weights and located.hub is not None and not any(located.path.glob("*.safetensors")):
        return remote_tensor_headers(*located.hub)
    return read_tensor_headers(located.path) if needs_weights or has_weights(located.path) else ()


def has_weights(path: Path) -> bool:
    """Whether there are safetensors to read; raises CheckpointError where an index is broken."""
    if path.is_file():
        return True
    try:
        weight_files(path)
    except CheckpointError:
        if any(child.name.endswith((".safetensors", ".safetensors.index.json")) for child in path.iterdir()):
            raise
        return False
    return True


def _reading(
    located: Located, folder: Path, config: dict[str, Any], tensors: tuple[TensorHeader, ...]
) -> TargetReading:
    text = config.get("text_config")
    values = Values("config.json", [("text_config.", text or {}), ("", config)])
    _read_sizes(values, config)
    num_layers = values.values.get("num_layers")
    attention = read_attention(values, num_layers)
    _read_head(values, folder, config)
    if tensors:
        _compare_shapes(values, tensors)
    _read_norms(values, tensors)
    quantisation = quantisation_of(config, tensors)
    missing = tuple(name for name in NEEDED if values.values.get(name) is None)
    spec = None
    if not missing and attention is not None:
        found = {key: value for key, value in values.values.items() if key in TargetSpec.__slots__}
        spec = TargetSpec(
            source=located.source,
            path=str(located.load_path),
            format="safetensors",
            attention=attention,
            origins=values.origins,
            **found,
        )
    return TargetReading(
        source=located.source,
        path=str(located.path),
        format="safetensors",
        config=config,
        config_file="target config.json",
        values=values.values,
        origins=values.origins,
        missing=missing,
        conflicts=tuple(values.conflicts),
        tensors=tensors,
        tokenizer=read_tokenizer_facts(folder),
        spec=spec,
        layer_types=values.values.get("layer_types", ()),
        quantisation=quantisation,
    )


def _read_sizes(values: Values, config: dict[str, Any]) -> None:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        values.put("architecture", architectures[0], Origin("key", "config.json: architectures"))
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        values.put("model_type", model_type, Origin("key", "config.json: model_type"))
    values.default("model_type", "", "no model_type")
    values.integer("num_layers", "num_hidden_layers", "n_layer")
    values.integer("hidden_size", "hidden_size", "n_embd")
    values.integer("mlp_size", "intermediate_size", "moe_intermediate_size")
    values.integer("vocab_size", "vocab_size")
    values.integer("max_position", "max_position_embeddings", "n_positions")
    if values.number("rms_eps", "rms_norm_eps", "layer_norm_epsilon", high=1.0) is None:
        values.default("rms_eps", 1e-6, "transformers' default")
    read_heads(values)


def _read_head(values: Values, folder: Path, config: dict[str, Any]) -> None:
    if values.flag("tied_head", "tie_word_embeddings") is None:
        values.default("tied_head", True, "transformers' default for tie_word_embeddings")
    dtype = values.find("dtype", "torch_dtype")
    if dtype is not None and isinstance(dtype[0], str):
        values.put("dtype", config_dtype(dtype[0]), dtype[1])
    values.put("bos_id", _token_id(values, "bos_token_id"), Origin("key", "config.json: bos_token_id"))
    eos, origin = _ids(config.get("eos_token_id")), Origin("key", "config.json: eos_token_id")
    found = values.find("eos_token_id")
    if found is not None:
        eos, origin = _ids(found[0]), found[1]
    generation = folder / "generation_config.json"
    if generation.is_file():
        more = _ids(read_json_object(generation).get("eos_token_id"))
        if more:
            eos, origin = (
                more + tuple(i for i in eos if i not in more),
                Origin("key", "generation_config.json: eos_token_id"),
            )
    values.put("eos_ids", eos, origin)


def _token_id(values: Values, key: str) -> int | None:
    found = values.find(key)
    return found[0] if found is not None and type(found[0]) is int and found[0] >= 0 else None


def _ids(value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if type(item) is int and item >= 0)


def _compare_shapes(values: Values, tensors: tuple[TensorHeader, ...]) -> None:
    """What the tensors say about vocabulary, width, depth and head."""
    layers: set[str] = set()
    for tensor in tensors:
        name, shape = tensor.name, tensor.shape
        origin = Origin("shape", f"{name} {list(shape)}")
        if name.endswith("embed_tokens.weight") and len(shape) == 2 and "visual" not in name:
            values.compare("vocab_size", shape[0], origin)
            values.compare("hidden_size", shape[1], origin)
        elif name.endswith("k_norm.weight") and len(shape) == 1 and "layers." in name:
            values.compare("head_dim", shape[0], origin)
        before, _, rest = name.partition("layers.")
        if rest.split(".")[0].isdecimal() and not any(
            word in before for word in ("visual", "vision", "mtp", "audio")
        ):
            layers.add(rest.split(".")[0])
    if layers:
        values.compare("num_layers", max(map(int, layers)) + 1, Origin("shape", "highest layers.N"))
    heads = [tensor for tensor in tensors if tensor.name.endswith("lm_head.weight")]
    if values.values["tied_head"] is False and not heads and layers:
        values.compare("tied_head", True, Origin("shape", "no lm_head.weight"))
    if values.origins["tied_head"].kind == "default" and heads:
        values.put("tied_head", False, Origin("shape", f"{heads[0].name} {list(heads[0].shape)}"))
    stored = main_dtype(tensors)
    if stored is not None:
        values.compare("dtype", stored, Origin("shape", "dtype of most weights"), hard=False)


def _read_norms(values: Values, tensors: tuple[TensorHeader, ...]) -> None:
    """Query/key norms and biases: the tensors know; without them, the family does."""
    family = str(values.values["model_type"])
    values.default("dtype", "BF16", "no dtype key")
    if tensors:
        norm = any(tensor.name.endswith("self_attn.q_norm.weight") for tensor in tensors)
        values.put(
            "qk_norm", norm, Origin("shape", "self_attn.q_norm.weight" + (" present" if norm else " absent"))
        )
        bias = any(tensor.name.endswith("self_attn.q_proj.bias") for tensor in tensors)
        values.put(
            "attention_bias", bias, Origin("shape", "q_proj.bias" + (" present" if bias else " absent"))
        )
    else:
        values.put("qk_norm", family in QK_NORM_FAMILIES, Origin("default", f"family {family}"))
        if values.flag("attention_bias", "attention_bias") is None:
            values.default("attention_bias", family == "qwen2", f"family {family}")
    if values.flag("mlp_bias", "mlp_bias") is None:
        values.default("mlp_bias", False, "transformers' default")
