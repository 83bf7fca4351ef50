"""What is special about speculators' format: nested sizes, and defaults that it leaves out."""

from __future__ import annotations

from typing import Any

from truedraft.checkpoint.values import Values

# The format writes only what differs from transformers' Qwen3Config.
LEFT_OUT = {"max_position": 32_768, "rms_eps": 1e-6, "mlp_size": 22_016, "head_dim": 128}


def speculators_scopes(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """→ where to look: the decoder's sizes are nested, the speculator's own keys are at the top."""
    return [
        ("", {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}),
        ("transformer_layer_config.", config.get("transformer_layer_config")),
        ("", {key: config[key] for key in ("dtype", "torch_dtype") if key in config}),
    ]


def speculators_defaults(values: Values) -> None:
    """Fill in what the format leaves out because it equals transformers' default."""
    for name, value in LEFT_OUT.items():
        values.default(name, value, "Qwen3Config's default: the format writes differences only")
    if values.find("rope_theta", "rope_parameters") is None:
        values.default("rope_theta", 10_000.0, "Qwen3Config's default: the format writes differences only")
