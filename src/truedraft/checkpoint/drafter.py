"""Reads a drafter of any known format into one DrafterSpec, from its config and headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from truedraft.checkpoint.attention import block_causality, read_attention, read_heads
from truedraft.checkpoint.capture import read_capture
from truedraft.checkpoint.dialects import Format, architecture_of, sniff_algorithm, sniff_format
from truedraft.checkpoint.drafter_shapes import DrafterShapes, read_shapes
from truedraft.checkpoint.dtypes import config_dtype, main_dtype, quantisation_of
from truedraft.checkpoint.files import read_json_object
from truedraft.checkpoint.layout import read_layout
from truedraft.checkpoint.locate import Located, locate
from truedraft.checkpoint.speculators import speculators_defaults, speculators_scopes
from truedraft.checkpoint.target import missing_keys, tensors_of
from truedraft.checkpoint.tokenizer import read_tokenizer_facts
from truedraft.checkpoint.values import Values
from truedraft.contract.reading import Conflict, DrafterReading
from truedraft.contract.specs import AttentionSpec, DrafterSpec, Origin, TensorHeader
from truedraft.errors import CheckpointError, PairingError

NEEDED = (
    "num_layers",
    "hidden_size",
    "mlp_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "block_len",
    "mask_token_id",
    "capture_layers",
    "rope_theta",
    "max_position",
)


def read_drafter(where: str | Path, *, needs_weights: bool = True) -> DrafterSpec:
    """→ the drafter's spec, from a folder, a .safetensors file or a hub id.

    Raises CheckpointError where files are missing or corrupt, a value is nowhere (capture layers
    are never guessed), or shapes and config contradict each other.
    """
    reading = read_drafter_files(where, needs_weights=needs_weights)
    if reading.spec is None:
        raise CheckpointError(
            f"{reading.path} does not say all that a drafter needs: {', '.join(missing_keys(reading.missing))} missing",
            seen=reading.config_problem,
            remedy="`truedraft inspect` shows what the shapes say and the values known for this family; "
            "they are never guessed",
        )
    for conflict in reading.conflicts:
        if conflict.hard:
            raise CheckpointError(
                f"{reading.path}: {conflict.name} contradicts itself",
                seen=f"{conflict.used_from.where} = {conflict.used}, {conflict.other_from.where} = {conflict.other}",
                remedy="Use the config.json that belongs to these weights",
            )
    return reading.spec


def read_drafter_files(where: str | Path, *, needs_weights: bool = False) -> DrafterReading:
    """→ everything that the drafter's files say; gaps and contradictions are listed, not raised.

    Without a usable config.json, what the shapes say. Raises CheckpointError for corrupt weights.
    """
    located = locate(where, role="drafter", headers_only=not needs_weights)
    if located.kind == "gguf":
        raise CheckpointError(f"{located.source} is a GGUF drafter", allowed="drafters in safetensors")
    folder = located.path if located.path.is_dir() else located.path.parent
    config, problem = _config(folder)
    tensors = tensors_of(located, needs_weights)
    if not config and not tensors:
        raise CheckpointError(f"{folder} is no drafter: {problem}, and no .safetensors file")
    _refuse_language_model(located, config, tensors)
    return _reading(located, config, problem, tensors)


def _refuse_language_model(
    located: Located, config: dict[str, Any], tensors: tuple[TensorHeader, ...]
) -> None:
    name = architecture_of(config)
    is_model = name.endswith(("ForCausalLM", "ForConditionalGeneration"))
    has_fc = any(tensor.name.removeprefix("model.") == "fc.weight" for tensor in tensors)
    if is_model and not has_fc and sniff_format(config) == "unknown":
        raise PairingError(
            f"{located.source} is a language model ({name}), not a DFlash drafter",
            remedy="Name it as the target (of `serve`: first; of `inspect`: --target), and a drafter made for it as DRAFT",
        )


def _config(folder: Path) -> tuple[dict[str, Any], str | None]:
    path = folder / "config.json"
    if not path.is_file():
        return {}, "no config.json"
    try:
        return read_json_object(path), None
    except CheckpointError as exc:
        return {}, str(exc)


def _scopes(kind: Format, config: dict[str, Any]) -> list[tuple[str, Any]]:
    if kind == "speculators":
        return speculators_scopes(config)
    return [("dflash_config.", config.get("dflash_config")), ("", config)]


def _reading(
    located: Located, config: dict[str, Any], problem: str | None, tensors: tuple[TensorHeader, ...]
) -> DrafterReading:
    kind = sniff_format(config)
    shapes = read_shapes(tensors)
    values = Values("config.json", _scopes(kind, config))
    _read_sizes(values, config)
    _compare_sizes(values, shapes)
    if kind == "speculators":
        speculators_defaults(values)
    num_layers = values.values.get("num_layers")
    attention = read_attention(values, num_layers)
    layer_types: tuple[str, ...] = values.values.get("layer_types", ())
    block_causality(values, layer_types)
    algorithm = sniff_algorithm(config, shapes.extras, layer_types)
    values.put("algorithm", algorithm, Origin("key", "config.json and tensor names"))
    _read_vocabulary(values, shapes)
    num_captured = read_capture(values, kind, shapes)
    layout = read_layout(values, config, algorithm)
    _read_scales(values, tensors)
    missing = tuple(name for name in NEEDED if values.values.get(name) is None)
    if problem is not None:
        missing += ("layer_types", "sample_from_anchor")
    return DrafterReading(
        source=located.source,
        path=str(located.path),
        format=kind,
        config=config,
        config_file="drafter config.json",
        values=values.values,
        origins=values.origins,
        missing=missing,
        conflicts=tuple(values.conflicts),
        tensors=tensors,
        tokenizer=read_tokenizer_facts(located.path) if located.path.is_dir() else None,
        spec=None if missing else _spec(located, config, kind, values, attention),
        layer_types=layer_types,
        unexpected=shapes.unexpected,
        absent=shapes.absent,
        extras=shapes.extras,
        num_captured=num_captured,
        layout_said=layout,
        quantisation=quantisation_of(config, tensors),
        config_problem=problem,
        embedding_rows=shapes.embedding_rows,
        head_rows=shapes.head_rows,
        d2t_len=shapes.d2t_len,
    )


def _spec(
    located: Located, config: dict[str, Any], kind: Format, values: Values, attention: AttentionSpec | None
) -> DrafterSpec | None:
    if attention is None:
        return None
    found = {key: value for key, value in values.values.items() if key in DrafterSpec.__slots__}
    found.setdefault("num_target_layers", None)
    return DrafterSpec(
        source=located.source,
        path=str(located.load_path),
        format=kind,
        architecture=architecture_of(config),
        attention=attention,
        origins=values.origins,
        **found,
    )


def _read_sizes(values: Values, config: dict[str, Any]) -> None:
    values.integer("num_layers", "num_hidden_layers", high=512)
    values.integer("hidden_size", "hidden_size")
    values.integer("mlp_size", "intermediate_size")
    read_heads(values)
    values.integer("max_position", "max_position_embeddings")
    values.integer("num_target_layers", "num_target_layers", high=4096)
    values.integer("block_len", "block_size", high=256)
    values.integer("mask_token_id", "mask_token_id", low=0)
    if values.number("rms_eps", "rms_norm_eps", high=1.0) is None:
        values.default("rms_eps", 1e-6, "Qwen3's default")


def _compare_sizes(values: Values, shapes: DrafterShapes) -> None:
    for name, (value, origin) in shapes.sizes.items():
        values.compare(name, value, origin)
    for name in shapes.uneven:
        origin = Origin("shape", "another layer's tensors")
        values.conflicts.append(
            Conflict(name, values.values[name], values.origins[name], "another value", origin, hard=True)
        )


def _read_vocabulary(values: Values, shapes: DrafterShapes) -> None:
    """Embedding, head and the rows of the head: the target's where the file has none."""
    origin = Origin("shape", "tensor names")
    values.put("own_embedding", shapes.embedding_rows is not None, origin)
    values.put("own_head", shapes.head_rows is not None, origin)
    values.put("has_d2t", shapes.d2t_len is not None, origin)
    values.integer("embedding_vocab_size", "vocab_size")
    if values.integer("vocab_size", "draft_vocab_size") is None:
        values.integer("vocab_size", "vocab_size")
    if shapes.head_rows is not None:
        values.compare(
            "vocab_size", shapes.head_rows, Origin("shape", f"lm_head.weight [{shapes.head_rows}, …]")
        )
    if shapes.embedding_rows is not None:
        origin = Origin("shape", f"embed_tokens.weight [{shapes.embedding_rows}, …]")
        values.compare("embedding_vocab_size", shapes.embedding_rows, origin)
    if shapes.d2t_len is not None and "vocab_size" in values.values:
        values.compare("vocab_size", shapes.d2t_len, Origin("shape", f"d2t [{shapes.d2t_len}]"))


def _read_scales(values: Values, tensors: tuple[TensorHeader, ...]) -> None:
    """Factors on embedding and logits, biases, and the number format."""
    for name, key, low, plain in (
        ("embedding_scale", "input_embedding_scale", -1e6, 1.0),
        ("output_multiplier", "output_multiplier", -1e6, 1.0),
        ("final_logit_softcap", "final_logit_softcapping", 1e-6, None),
    ):
        if values.number(name, key, low=low) is None:
            values.default(name, plain, "absent")
    values.flag("attention_bias", "attention_bias")
    if tensors:
        bias = any(tensor.name.endswith("self_attn.q_proj.bias") for tensor in tensors)
        values.compare(
            "attention_bias", bias, Origin("shape", f"q_proj.bias {'present' if bias else 'absent'}")
        )
    values.default("attention_bias", False, "absent")
    dtype = values.find("dtype", "torch_dtype")
    if dtype is not None and isinstance(dtype[0], str):
        values.put("dtype", config_dtype(dtype[0]), dtype[1])
    stored = main_dtype(tensors)
    if stored is not None:
        values.compare("dtype", stored, Origin("shape", "dtype of most weights"), hard=False)
    values.default("dtype", "BF16", "absent")
