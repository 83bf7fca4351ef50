"""What transformers' modelling code may do that our caches and attention cannot follow: refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from truedraft.contract.specs import TargetSpec
from truedraft.errors import CheckpointError

_REMEDY = "Serve this target on another backend"
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_RECURRENT_WORDS = ("mamba", "rwkv", "linear_attention", "recurrent", "delta", "ssm", "conv", "retnet")
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
# What an attention call may carry: handled, or without an effect when nothing is cached or padded.
_KNOWN_OPTIONS = {
    "dropout",
    "scaling",
    "sliding_window",
    "softcap",
    "is_causal",
    "position_ids",
    "use_cache",
    "cache",
    "past_key_values",
    "cache_position",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention as seen while probing. Sizes of one row."""

    layer: int
    q_heads: tuple[int, int]  # heads, head_dim
    k_heads: tuple[int, int]
    v_heads: tuple[int, int]
    window: int | None
    causal: bool
    sinks: bool
    unknown: tuple[str, ...]

    @classmethod
    def seen(
        cls, module: Any, query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]
    ) -> AttentionCall:
        def heads(x: Tensor) -> tuple[int, int]:
            return x.shape[1], x.shape[3]

        set_ = {name for name, given in options.items() if given is not None}
        causal = options.get("is_causal")
        return cls(
            layer=module.layer_idx,
            q_heads=heads(query),
            k_heads=heads(key),
            v_heads=heads(value),
            window=options.get("sliding_window"),
            causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
            sinks="s_aux" in set_ or "sinks" in set_ or getattr(module, "sinks", None) is not None,
            unknown=tuple(sorted(set_ - _KNOWN_OPTIONS - {"s_aux", "sinks"})),
        )


def check_config(spec: TargetSpec, config: Any) -> None:
    """Raises CheckpointError for what the config tells, before weights are read."""
    text = config.get_text_config()
    name = spec.architecture
    if getattr(config, "is_encoder_decoder", False) or getattr(text, "add_cross_attention", False):
        raise _refusal(name, "attends to an encoder (cross-attention)")
    if getattr(config, "quantization_config", None) is not None:
        raise _refusal(name, "is quantised; only plain float weights are loaded")
    if hasattr(config, "vision_config") and text is config:
        raise _refusal(name, "is multimodal without a text config of its own")
    kinds = list(getattr(text, "layer_types", None) or [])
    kinds += [text.model_type, *(getattr(text, "layers_block_type", None) or [])]
    recurrent = sorted({kind for kind in kinds if any(word in str(kind) for word in _RECURRENT_WORDS)})
    if recurrent:
        raise _refusal(name, f"has recurrent layers ({', '.join(recurrent)})")
    other = sorted(set(getattr(text, "layer_types", None) or []) - _LAYER_TYPES)
    if other:
        raise _refusal(name, f"has attention layers of another kind ({', '.join(other)})")
    if getattr(text, "attention_chunk_size", None):
        raise _refusal(name, "attends in chunks (attention_chunk_size)")
    if getattr(text, "num_kv_shared_layers", None):
        raise _refusal(name, "shares keys and values between layers (num_kv_shared_layers)")
    rope = getattr(text, "rope_parameters", None) or {}
    kind = rope.get("rope_type") if isinstance(rope, Mapping) else None
    if kind in _LENGTH_DEPENDENT_ROPE:
        raise _refusal(name, f"turns positions by a rule that depends on the length so far (rope {kind})")


def check_probe(spec: TargetSpec, calls: Sequence[AttentionCall]) -> None:
    """Raises CheckpointError unless every layer attended once, as the spec says."""
    name, attention = spec.architecture, spec.attention
    layers = [call.layer for call in calls]
    if sorted(layers) != list(range(spec.num_layers)):
        absent = sorted(set(range(spec.num_layers)) - set(layers))
        raise _refusal(name, f"does not attend once in every layer (not in {absent})")
    for call in sorted(calls, key=lambda call: call.layer):
        where = f"in layer {call.layer}"
        if call.sinks:
            raise _refusal(name, f"has attention sinks ({where})")
        if not call.causal:
            raise _refusal(name, f"attends to later positions ({where})")
        if call.unknown:
            raise _refusal(name, f"gives its attention {', '.join(call.unknown)} ({where})")
        kv = (attention.num_kv_heads, attention.head_dim)
        if call.k_heads != kv or call.v_heads != kv or call.q_heads != (attention.num_heads, kv[1]):
            raise _refusal(
                name,
                f"has heads q {call.q_heads}, k {call.k_heads}, v {call.v_heads} {where}, "
                f"not q {(attention.num_heads, kv[1])}, k and v {kv}",
            )
        if call.window != attention.windows[call.layer]:
            raise _refusal(
                name,
                f"attends within {call.window} positions {where}, not {attention.windows[call.layer]}",
            )


def _refusal(architecture: str, what: str) -> CheckpointError:
    return CheckpointError(f"{architecture} {what}, which the local engine does not carry", remedy=_REMEDY)
