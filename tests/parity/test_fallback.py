"""Families without a module of ours equal transformers' own forward through the paged cache."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_specs import target_spec
from paged import PagedCache, Rows, positions
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
    PhiConfig,
    Qwen2Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    T5Config,
)

from truedraft.errors import CheckpointError
from truedraft.kernels.reference import torch_ops
from truedraft.models.fallback import TransformersTarget, load_fallback, wrap
from truedraft.models.registry import load_target

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}
TINY_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CONFIGS: dict[str, Any] = {
    "qwen2": lambda: Qwen2Config(**COMMON),
    "mistral-sliding": lambda: MistralConfig(**COMMON, sliding_window=6, head_dim=8),
    "gemma2-softcaps": lambda: Gemma2Config(
        **COMMON, **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3": lambda: Gemma3TextConfig(**COMMON, **GEMMA),
    # Text rows of a multimodal model run on its language model alone.
    "gemma3-multimodal": lambda: Gemma3Config(
        text_config={**COMMON, **GEMMA}, vision_config=TINY_VISION, mm_tokens_per_image=4
    ),
    "granite": lambda: GraniteConfig(**COMMON, logits_scaling=4.0, residual_multiplier=0.5),
    "cohere": lambda: CohereConfig(**COMMON),
    "olmo2": lambda: Olmo2Config(**COMMON),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **COMMON, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
}


def make(config: Any) -> tuple[Any, TransformersTarget]:
    """transformers' model with its own attention, and a copy of it wrapped."""
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.2 * noise)
    copy = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager")
    copy.load_state_dict(theirs.state_dict())
    return theirs, wrap(spec_of(theirs), copy)


def spec_of(model: Any) -> Any:
    spec = target_spec(model.config.get_text_config(), type(model).__name__)
    if model.config.model_type == "mistral":
        attention = replace(spec.attention, windows=(model.config.sliding_window,) * spec.num_layers)
        spec = replace(spec, attention=attention)
    return spec


@pytest.mark.parametrize("name", CONFIGS)
def test_family_matches(name: str) -> None:
    theirs, ours = make(CONFIGS[name]())
    attention = ours.spec.attention
    cache = PagedCache(
        torch_ops(),
        num_layers=ours.num_attention_layers,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
    )
    ids, other = torch.randint(3, 97, (27,)), torch.randint(3, 97, (9,))
    hidden, captured = [], []
    with torch.inference_mode():
        want = theirs(ids[None], output_hidden_states=True)
        # A second sequence runs beside the first, in the same flattened rows.
        for start, end, other_start, other_end in (
            (0, 11, 0, 5),
            (11, 12, 5, 9),
            (12, 20, 9, 9),
            (20, 27, 9, 9),
        ):
            rows = [Rows(0, start, end - start)]
            if other_end > other_start:
                rows.append(Rows(1, other_start, other_end - other_start))
            batch = torch.cat([ids[start:end], other[other_start:other_end]])
            new_hidden, new_captured = ours(batch, positions(*rows), cache.attend(*rows), (1, -1))
            hidden.append(new_hidden[: end - start])
            captured.append(new_captured[: end - start])
        logits = ours.logits(torch.cat(hidden))
    torch.testing.assert_close(logits, want.logits[0], atol=1e-4, rtol=1e-4)
    after_1, embedded = torch.cat(captured).chunk(2, dim=-1)
    torch.testing.assert_close(after_1, want.hidden_states[2][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(embedded, want.hidden_states[0][0], atol=1e-4, rtol=1e-4)


def test_embedding_rows_are_unscaled() -> None:
    theirs, ours = make(CONFIGS["gemma2-softcaps"]())
    ids = torch.tensor([5, 9])
    assert torch.equal(ours.embed(ids), theirs.get_input_embeddings().weight[ids])
    assert not torch.allclose(ours.embed(ids), theirs.get_input_embeddings()(ids))


def test_folder_loads_through_the_registry(tmp_path: Path) -> None:
    theirs, ours = make(CONFIGS["mistral-sliding"]())
    theirs.save_pretrained(tmp_path)
    loaded = load_target(replace(ours.spec, path=str(tmp_path)), torch_ops(), torch.float32)
    assert isinstance(loaded, TransformersTarget)
    hidden = torch.randn(3, 32)
    assert torch.equal(loaded.logits(hidden), ours.logits(hidden))
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="cannot be loaded by transformers"):
        load_target(replace(ours.spec, path=str(tmp_path)), torch_ops(), torch.float32)


def test_missing_tensors_are_not_made_up(tmp_path: Path) -> None:
    theirs, ours = make(CONFIGS["qwen2"]())
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "layers.3.mlp" not in name}
    theirs.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(CheckpointError, match="lacks 3 tensors"):
        load_fallback(replace(ours.spec, path=str(tmp_path)), torch_ops(), torch.float32)


SMALL_NEXT = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "head_dim": 8,
}
REFUSED: dict[str, tuple[Any, str]] = {
    "gpt-oss": (
        lambda: GptOssConfig(**COMMON, head_dim=8, num_local_experts=2, num_experts_per_tok=1),
        "sinks",
    ),
    "qwen3-next": (lambda: Qwen3NextConfig(**COMMON, **SMALL_NEXT), r"recurrent layers \(linear_attention\)"),
    "llama-dynamic": (
        lambda: LlamaConfig(
            **COMMON, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        "length so far",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_by_name(name: str) -> None:
    make_config, words = REFUSED[name]
    with pytest.raises(CheckpointError, match=words):
        make(make_config())


def test_recurrent_and_encoder_families_are_refused_from_their_config() -> None:
    spec = target_spec(CONFIGS["qwen2"](), "X")
    for config, words in (
        (MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2), "recurrent layers"),
        (T5Config(vocab_size=97, d_model=32, num_layers=2), "cross-attention"),
    ):
        with pytest.raises(CheckpointError, match=words):
            wrap(spec, type("Model", (), {"config": config})())


def test_window_that_the_spec_lacks_is_refused() -> None:
    """A window ignored is a silent loss past it; the model's own call decides."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["mistral-sliding"]())
    with pytest.raises(CheckpointError, match="attends within 6 positions in layer 0, not None"):
        wrap(target_spec(model.config, "MistralForCausalLM"), model)


def test_partial_rotation_is_transformers_own_business() -> None:
    theirs, ours = make(PhiConfig(**{**COMMON, "num_key_value_heads": 4}))
    ids = torch.randint(3, 97, (6,))
    cache = PagedCache(torch_ops(), num_layers=4, num_kv_heads=4, head_dim=8)
    rows = Rows(0, 0, 6)
    with torch.inference_mode():
        hidden, _ = ours(ids, positions(rows), cache.attend(rows))
        torch.testing.assert_close(ours.logits(hidden), theirs(ids[None]).logits[0], atol=1e-4, rtol=1e-4)


def test_remote_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "my_own", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}'
    )
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    spec = replace(target_spec(CONFIGS["qwen2"](), "MyOwnForCausalLM"), path=str(tmp_path))
    with pytest.raises(CheckpointError, match="Code that comes with a checkpoint is never run"):
        load_fallback(spec, torch_ops(), torch.float32)
