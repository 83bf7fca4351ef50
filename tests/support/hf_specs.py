"""Specs from transformers' config objects, so that tests need no folder and no `checkpoint` room."""

from __future__ import annotations

from typing import Any

from truedraft.contract.specs import AttentionSpec, DrafterSpec, RopeSpec, TargetSpec


def attention_spec(config: Any) -> AttentionSpec:
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return AttentionSpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        rope=RopeSpec(
            theta=float(rope.get("rope_theta", 10000.0)),
            scaling=rope if rope.get("rope_type", "default") != "default" else None,
            partial_frac=float(rope.get("partial_rotary_factor", 1.0)),
        ),
    )


def target_spec(config: Any, architecture: str, path: str = "memory") -> TargetSpec:
    return TargetSpec(
        source=path,
        path=path,
        format="safetensors",
        architecture=architecture,
        model_type=config.model_type,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        mlp_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        attention=attention_spec(config),
        rms_eps=getattr(config, "rms_norm_eps", 1e-6),
        tied_head=config.tie_word_embeddings,
        dtype="F32",
        bos_id=None,
        eos_ids=(),
        qk_norm=config.model_type == "qwen3",
        attention_bias=bool(getattr(config, "attention_bias", False)),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
    )


def drafter_spec(config: Any, target: TargetSpec) -> DrafterSpec:
    """Of a z-lab drafter's config (a Qwen3Config with `dflash_config`)."""
    attention = attention_spec(config)
    causal = getattr(config, "is_causal", None)
    dflash = config.dflash_config
    return DrafterSpec(
        source="memory",
        path="memory",
        format="zlab",
        algorithm="dflash",
        architecture="DFlashDraftModel",
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        mlp_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        block_len=dflash["block_size"],
        mask_token_id=dflash["mask_token_id"],
        capture_layers=tuple(dflash["target_layer_ids"]),
        attention=attention,
        causal=tuple(window is not None if causal is None else bool(causal) for window in attention.windows),
        rms_eps=config.rms_norm_eps,
        max_position=config.max_position_embeddings,
        attention_bias=bool(config.attention_bias),
        embedding_scale=float(dflash.get("input_embedding_scale", 1.0)),
        output_multiplier=float(dflash.get("output_multiplier", 1.0)),
        final_logit_softcap=dflash.get("final_logit_softcapping"),
    )
