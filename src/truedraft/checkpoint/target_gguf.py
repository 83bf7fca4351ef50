"""Reads a GGUF target's metadata into a TargetSpec."""

from __future__ import annotations

from typing import Any

from truedraft.checkpoint.dtypes import main_dtype
from truedraft.checkpoint.gguf_header import GgufHeader, SkippedArray, read_gguf_header
from truedraft.checkpoint.locate import Located
from truedraft.checkpoint.values import Values
from truedraft.contract.reading import TargetReading, TokenizerFacts
from truedraft.contract.specs import AttentionSpec, Origin, RopeSpec, TargetSpec
from truedraft.errors import CheckpointError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "mistral3": "MistralForCausalLM",
}
MODEL_TYPES = {"qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
NEEDED = (
    "num_layers",
    "hidden_size",
    "mlp_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rope_theta",
    "max_position",
)


def read_gguf_target(located: Located) -> TargetReading:
    """→ what the file's metadata and tensor list say. Raises CheckpointError where it is corrupt."""
    header = read_gguf_header(located.path)
    family = header.metadata.get("general.architecture")
    if not isinstance(family, str):
        raise CheckpointError(
            f"{located.path} does not name its architecture", remedy="Use a GGUF of a language model"
        )
    scope = {key.removeprefix(f"{family}."): value for key, value in header.metadata.items()}
    values = Values(located.path.name, [("", scope)])
    _read(values, header, family)
    missing = tuple(name for name in (*NEEDED, "vocab_size") if values.values.get(name) is None)
    spec = None
    if not missing:
        found = {key: value for key, value in values.values.items() if key in TargetSpec.__slots__}
        spec = TargetSpec(
            source=located.source,
            path=str(located.path),
            format="gguf",
            attention=_attention(values),
            origins=values.origins,
            **found,
        )
    num_tokens = scope.get("tokenizer.ggml.tokens")
    return TargetReading(
        source=located.source,
        path=str(located.path),
        format="gguf",
        config={key: value for key, value in header.metadata.items() if not isinstance(value, SkippedArray)},
        config_file=f"target {located.path.name}",
        values=values.values,
        origins=values.origins,
        missing=missing,
        conflicts=tuple(values.conflicts),
        tensors=header.tensors,
        tokenizer=TokenizerFacts(_length(num_tokens), {}, None, "tokenizer.chat_template" in scope),
        spec=spec,
        layer_types=("full_attention",) * int(values.values.get("num_layers") or 0),
        quantisation=main_dtype(header.tensors),
    )


def _read(values: Values, header: GgufHeader, family: str) -> None:
    key = Origin("key", f"{values.file}: general.architecture")
    values.put("architecture", ARCHITECTURES.get(family, family), key)
    values.put("model_type", MODEL_TYPES.get(family, family), key)
    values.integer("num_layers", "block_count")
    values.integer("hidden_size", "embedding_length")
    values.integer("mlp_size", "feed_forward_length", "expert_feed_forward_length")
    values.integer("max_position", "context_length")
    heads = values.integer("num_heads", "attention.head_count")
    if values.integer("num_kv_heads", "attention.head_count_kv") is None and heads is not None:
        values.default("num_kv_heads", heads, "as many as attention.head_count")
    hidden = values.values.get("hidden_size")
    if (
        values.integer("head_dim", "attention.key_length") is None
        and heads
        and hidden
        and hidden % heads == 0
    ):
        values.default("head_dim", hidden // heads, "embedding_length / head_count")
    if values.number("rope_theta", "rope.freq_base", low=1e-3) is None:
        values.default("rope_theta", 10_000.0, "the format's default")
    if values.number("rms_eps", "attention.layer_norm_rms_epsilon", high=1.0) is None:
        values.default("rms_eps", 1e-6, "no epsilon key")
    values.integer("vocab_size", "vocab_size")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    if len(embedding := shapes.get("token_embd.weight", ())) == 2:
        origin = Origin("shape", f"token_embd.weight {list(embedding)}")
        values.compare("vocab_size", embedding[0], origin)
        values.compare("hidden_size", embedding[1], origin)
    values.put("tied_head", "output.weight" not in shapes, Origin("shape", "output.weight"))
    values.put("dtype", main_dtype(header.tensors) or "", Origin("shape", "type of most weights"))
    values.put("qk_norm", "blk.0.attn_q_norm.weight" in shapes, Origin("shape", "blk.0.attn_q_norm.weight"))
    values.put("attention_bias", "blk.0.attn_q.bias" in shapes, Origin("shape", "blk.0.attn_q.bias"))
    values.put("mlp_bias", "blk.0.ffn_up.bias" in shapes, Origin("shape", "blk.0.ffn_up.bias"))
    bos, eos = (header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    values.put("bos_id", bos if type(bos) is int else None, Origin("key", "tokenizer.ggml.bos_token_id"))
    values.put("eos_ids", (eos,) if type(eos) is int else (), Origin("key", "tokenizer.ggml.eos_token_id"))


def _attention(values: Values) -> AttentionSpec:
    found = values.values
    window = values.integer("window", "attention.sliding_window")
    kind = values.find("rope.scaling.type")
    scaling = None
    if kind is not None and kind[0] not in ("none", "default"):
        prefix = "rope.scaling."
        scope = values.scopes[0][1]
        scaling = {k.removeprefix(prefix): v for k, v in scope.items() if k.startswith(prefix)}
        scaling["rope_type"] = kind[0]
    rotated = values.integer("rope_dims", "rope.dimension_count")
    partial = 1.0 if rotated is None or rotated >= found["head_dim"] else rotated / found["head_dim"]
    rope = RopeSpec(found["rope_theta"], scaling, partial)
    windows = (window,) * found["num_layers"]
    return AttentionSpec(found["num_heads"], found["num_kv_heads"], found["head_dim"], windows, rope)


def _length(value: Any) -> int | None:
    return (
        value.num_items
        if isinstance(value, SkippedArray)
        else len(value)
        if isinstance(value, list)
        else None
    )
