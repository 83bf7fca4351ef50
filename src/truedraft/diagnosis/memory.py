"""Memory of a pair in service: weights, both caches, recurrent states, features. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truedraft.contract.reading import TargetReading
from truedraft.diagnosis.facts import PairFacts

BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
CACHE_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "nvfp4": 0.5625}
CHUNK_LEN = 8192  # tokens of one prefill step, where no flag says


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, except counts. `_per_token` grows with context; windows cap the `_windowed` parts.

    `features_bytes` are one prefill step's captured states. `total_bytes` is for `num_seqs`
    sequences of `num_tokens` each; activations and the engine's own needs come on top.
    """

    target_weights_bytes: int
    drafter_weights_bytes: int
    target_cache_per_token: float
    drafter_cache_per_token: float
    windowed_bytes: float
    recurrent_bytes: float
    features_bytes: int
    num_seqs: int
    num_tokens: int

    @property
    def cache_bytes(self) -> float:
        per_token = self.target_cache_per_token + self.drafter_cache_per_token
        return self.num_seqs * (per_token * self.num_tokens + self.windowed_bytes + self.recurrent_bytes)

    @property
    def total_bytes(self) -> float:
        return self.target_weights_bytes + self.drafter_weights_bytes + self.cache_bytes + self.features_bytes


def plan_memory(facts: PairFacts, *, num_seqs: int = 1, num_tokens: int | None = None) -> MemoryPlan | None:
    """→ what this pair needs for that many sequences of that length; None where sizes are missing."""
    length = num_tokens if num_tokens is not None else facts.served_len
    weights = None if facts.target is None else target_weights(facts.target)
    drafter = drafter_weights(facts)
    if facts.target is None or weights is None or drafter is None or not length:
        return None
    cache = facts.run.flag_text("kv-cache-dtype") or "auto"
    draft_cache = (
        facts.run.flag_text("speculative.kv_cache_dtype", "speculative-draft-kv-cache-dtype") or cache
    )
    per_token, windowed = _cache(facts.target.values, facts.target.layer_types, _cache_bytes(cache), length)
    draft_token, draft_windowed = _cache(
        facts.drafter.values, facts.drafter.layer_types, _cache_bytes(draft_cache), length
    )
    chunk = min(facts.run.flag_int("max-num-batched-tokens", "chunked-prefill-size") or CHUNK_LEN, length)
    num_captured = len(facts.draft("capture_layers") or ())
    return MemoryPlan(
        target_weights_bytes=weights,
        drafter_weights_bytes=drafter,
        target_cache_per_token=per_token,
        drafter_cache_per_token=draft_token,
        windowed_bytes=windowed + draft_windowed,
        recurrent_bytes=recurrent_bytes(facts.target) * ((facts.num_drafted or 0) + 1),
        features_bytes=chunk * num_captured * int(facts.targets("hidden_size") or 0) * 2,
        num_seqs=num_seqs,
        num_tokens=length,
    )


def _cache_bytes(name: str) -> float:
    return next((size for key, size in CACHE_BYTES.items() if name.startswith(key)), 2.0)


def _cache(
    values: Mapping[str, Any], layer_types: tuple[str, ...], value_bytes: float, length: int
) -> tuple[float, float]:
    """→ (bytes a token over layers that see everything, bytes in all of layers capped by a window)."""
    row = 2 * int(values.get("num_kv_heads") or 0) * int(values.get("head_dim") or 0) * value_bytes
    full, windowed = 0.0, 0.0
    windows = values.get("windows") or (None,) * len(layer_types)
    for kind, window in zip(layer_types, windows, strict=False):
        if kind in ("linear_attention", "conv", "mamba"):
            continue
        if window is None:
            full += row
        else:
            windowed += row * min(int(window), length)
    return full, windowed


def text_config(target: TargetReading) -> Mapping[str, Any]:
    """→ the config that describes the language model."""
    text = target.config.get("text_config")
    return text if isinstance(text, dict) else target.config


def _linear_sizes(target: TargetReading) -> tuple[int, int, int, int, int] | None:
    """→ key heads, value heads, key dim, value dim, conv kernel of gated delta layers."""
    config = text_config(target)
    keys = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    sizes = [config.get(key) for key in (*keys, "linear_conv_kernel_dim")]
    if not all(type(size) is int and size > 0 for size in sizes):
        return None
    return tuple(sizes)  # type: ignore[return-value]


def recurrent_bytes(target: TargetReading) -> int:
    """→ one sequence's recurrent state: float32 states and 16-bit conv rows of gated delta layers."""
    count, sizes = target.layer_types.count("linear_attention"), _linear_sizes(target)
    if not count or sizes is None:
        return 0
    key_heads, value_heads, key_dim, value_dim, kernel = sizes
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return count * (value_heads * key_dim * value_dim * 4 + (kernel - 1) * channels * 2)


def target_weights(target: TargetReading) -> int | None:
    """→ bytes of the target's weights: from headers, else by its sizes (dense models)."""
    if target.tensors:
        return sum(tensor.end - tensor.start for tensor in target.tensors)
    names = ("num_layers", "hidden_size", "mlp_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim")
    sizes = [target.values.get(name) for name in names]
    config = text_config(target)
    if any(size is None for size in sizes) or config.get("num_experts") or target.quantisation is not None:
        return None
    _, hidden, mlp, vocab, heads, kv, dim = (int(size) for size in sizes if size is not None)
    gate = 2 if config.get("attn_output_gate") else 1
    attention = hidden * dim * (heads * gate + 2 * kv) + heads * dim * hidden
    linear, parts = 0, _linear_sizes(target)
    if parts is not None:
        key_heads, value_heads, key_dim, value_dim, _ = parts
        linear = hidden * (2 * key_heads * key_dim + 3 * value_heads * value_dim + 2 * value_heads)
    layers = sum(linear if kind == "linear_attention" else attention for kind in target.layer_types)
    values = layers + len(target.layer_types) * 3 * hidden * mlp
    values += vocab * hidden * (1 if target.values.get("tied_head") else 2)
    return values * BYTES.get(str(target.values.get("dtype")), 2)


def drafter_weights(facts: PairFacts) -> int | None:
    """→ bytes of the drafter's weights: from headers, else by its sizes."""
    if facts.drafter.tensors:
        return sum(tensor.end - tensor.start for tensor in facts.drafter.tensors)
    names = (
        "num_layers",
        "hidden_size",
        "mlp_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "target_hidden_size",
    )
    sizes = [facts.draft(name) for name in names]
    ids = facts.draft("capture_layers")
    if any(size is None for size in sizes) or not ids:
        return None
    layers, hidden, mlp, heads, kv, dim, width = (int(size) for size in sizes)
    layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * mlp + 2 * hidden + 2 * dim
    values = layers * layer + len(ids) * width * hidden + 2 * hidden
    return values * BYTES.get(str(facts.draft("dtype")), 2)
