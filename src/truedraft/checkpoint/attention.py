"""Reads rope, sliding windows and block causality, for targets and drafters alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truedraft.checkpoint.values import Values
from truedraft.contract.reading import Conflict
from truedraft.contract.specs import AttentionSpec, Origin, RopeSpec
from truedraft.errors import CheckpointError

LAYER_TYPES = (
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "chunked_attention",
    "conv",
    "mamba",
)
MAX_LAYERS = 4096


def read_rope(values: Values) -> RopeSpec | None:
    """→ theta, scaling and rotated share, from `rope_theta` and `rope_scaling` or `rope_parameters`.

    None where no key states theta. Notes a conflict where both spellings disagree.
    """
    said = values.find("rope_parameters")
    parameters = _mapping(said)
    if parameters and all(isinstance(item, dict) for item in parameters.values()):
        parameters = parameters.get("full_attention") or next(iter(parameters.values()))
    scaling = {**_mapping(values.find("rope_scaling")), **parameters}
    theta = values.number("rope_theta", "rope_theta", low=1e-3)
    if "rope_theta" in scaling and said is not None:
        nested = _theta(scaling["rope_theta"], said[1])
        values.compare("rope_theta", nested, Origin("key", f"{said[1].where}.rope_theta"), hard=False)
        theta = values.values["rope_theta"]
    partial = values.number("rope_partial_frac", "partial_rotary_factor", low=1e-6, high=1.0)
    nested_partial = scaling.get("partial_rotary_factor")
    if partial is None and nested_partial is not None and said is not None:
        if not isinstance(nested_partial, int | float) or not 0 < nested_partial <= 1:
            raise CheckpointError(f"{said[1].where}.partial_rotary_factor is impossible", seen=nested_partial)
        partial = values.put(
            "rope_partial_frac",
            float(nested_partial),
            Origin("key", f"{said[1].where}.partial_rotary_factor"),
        )
    if theta is None and (theta := values.values.get("rope_theta")) is None:
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    kept = {
        key: value for key, value in scaling.items() if key not in ("rope_theta", "partial_rotary_factor")
    }
    values.put("rope_type", str(kind), said[1] if said else Origin("default", "no scaling"))
    return RopeSpec(theta, None if kind == "default" else kept, 1.0 if partial is None else partial)


def _mapping(found: tuple[Any, Origin] | None) -> Mapping[str, Any]:
    if found is None:
        return {}
    if not isinstance(found[0], dict):
        raise CheckpointError(f"{found[1].where} must be an object", seen=found[0])
    return found[0]


def _theta(value: Any, origin: Origin) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-3 <= value <= 1e12:
        raise CheckpointError(f"{origin.where}.rope_theta is impossible", seen=value)
    return float(value)


def read_layer_types(values: Values, num_layers: int) -> tuple[str, ...]:
    """→ one type a layer. A list of another length is a hard conflict with the number of layers.

    Without `layer_types`: `use_swa` (MiMo) or Qwen's `use_sliding_window` with `max_window_layers`
    make layers slide, `full_attention_interval` makes the others linear; else all are full.
    """
    found = values.find("layer_types")
    if found is not None:
        types, origin = found
        if not isinstance(types, list) or not all(isinstance(item, str) for item in types):
            raise CheckpointError(f"{origin.where} must be a list of names", seen=types)
        if len(types) != num_layers:
            values.conflicts.append(
                Conflict(
                    "num_layers", num_layers, values.origins["num_layers"], len(types), origin, hard=True
                )
            )
        return values.put("layer_types", tuple(types[:num_layers]), origin)
    if num_layers > MAX_LAYERS:
        raise CheckpointError("Impossible number of layers", seen=num_layers, allowed=f"at most {MAX_LAYERS}")
    return values.put("layer_types", *_derived_types(values, num_layers))


def _derived_types(values: Values, num_layers: int) -> tuple[tuple[str, ...], Origin]:
    if (swa := values.find("use_swa")) is not None and swa[0] is True:
        return ("sliding_attention",) * num_layers, swa[1]
    interval = values.find("full_attention_interval")
    if interval is not None and type(interval[0]) is int and interval[0] > 0:
        kinds = (
            "full_attention" if (i + 1) % interval[0] == 0 else "linear_attention" for i in range(num_layers)
        )
        return tuple(kinds), interval[1]
    use, window = values.find("use_sliding_window"), values.find("sliding_window")
    if use is not None and use[0] is True and window is not None:
        first = values.find("max_window_layers")
        start = first[0] if first is not None and type(first[0]) is int else num_layers
        kinds = ("sliding_attention" if i >= start else "full_attention" for i in range(num_layers))
        return tuple(kinds), use[1]
    family = values.find("model_type")
    if use is None and window is not None and family is not None and family[0] == "mistral":
        return ("sliding_attention",) * num_layers, window[1]
    return ("full_attention",) * num_layers, Origin("default", "no layer_types")


def read_windows(values: Values, layer_types: tuple[str, ...]) -> tuple[int | None, ...]:
    """→ one window a layer, None where the layer sees everything. `window` keeps the size."""
    window = values.integer("window", "swa_window_size", "sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def read_attention(values: Values, num_layers: int | None) -> AttentionSpec | None:
    """→ the stack's geometry, or None where layers, heads or rope are not known.

    Needs `num_heads`, `num_kv_heads` and `head_dim` in `values` and stores `windows`.
    """
    rope = read_rope(values)
    if num_layers is None:
        return None
    layer_types = read_layer_types(values, num_layers)
    windows = values.put("windows", read_windows(values, layer_types), values.origins["layer_types"])
    heads, kv_heads, head_dim = (
        values.values.get(name) for name in ("num_heads", "num_kv_heads", "head_dim")
    )
    if rope is None or heads is None or kv_heads is None or head_dim is None:
        return None
    return AttentionSpec(heads, kv_heads, head_dim, windows, rope)


def read_heads(values: Values) -> None:
    """Store heads, key/value heads and head dim; the last two have transformers' defaults."""
    heads = values.integer("num_heads", "num_attention_heads", "n_head")
    if values.integer("num_kv_heads", "num_key_value_heads") is None and heads is not None:
        values.default("num_kv_heads", heads, "as many as num_attention_heads")
    hidden = values.values.get("hidden_size")
    if values.integer("head_dim", "head_dim") is None and heads and hidden and hidden % heads == 0:
        values.default("head_dim", hidden // heads, "hidden_size / num_attention_heads")


def block_causality(values: Values, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """→ per layer, whether block rows see only earlier block rows.

    `is_causal` or `dflash_config.causal` rule all layers. Without them a sliding layer is causal
    (unless `sliding_window_non_causal` or `use_swa`), a full layer is not: dflash package, model.py.
    """
    said = values.flag("is_causal", "is_causal")
    if said is None:
        said = values.flag("is_causal", "causal")
    if said is not None:
        return values.put("causal", (said,) * len(layer_types), values.origins["is_causal"])
    open_window = values.flag("sliding_window_non_causal", "sliding_window_non_causal")
    swa = values.find("use_swa")
    if open_window or (open_window is None and swa is not None and swa[0] is True):
        origin = values.origins.get("sliding_window_non_causal") or (swa[1] if swa else Origin("default", ""))
        return values.put("causal", (False,) * len(layer_types), origin)
    causal = tuple(kind == "sliding_attention" for kind in layer_types)
    return values.put("causal", causal, Origin("default", "sliding layers are causal, full ones are not"))
