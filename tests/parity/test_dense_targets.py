"""Our Llama and Qwen3 give what transformers' own modelling code gives, through the paged cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_specs import target_spec
from paged import PagedCache, Rows, positions
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from truedraft.kernels.reference import torch_ops
from truedraft.models.decoder import DenseTarget
from truedraft.models.llama import LlamaTarget
from truedraft.models.qwen3 import Qwen3Target
from truedraft.models.weights import DictSource, fill

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-wide-heads": ("llama", {"head_dim": 12, "num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "llama-yarn-rope": ("llama", {"rope_parameters": YARN_ROPE}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-wide-heads": ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen3-sliding": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
}


def make_pair(case: str) -> tuple[Any, DenseTarget]:
    """transformers' model with random weights (norms and biases too), and ours with the same."""
    family, options = CASES[case]
    torch.manual_seed(0)
    if family == "llama":
        theirs: Any = LlamaForCausalLM(LlamaConfig(**{**COMMON, **options}))
    else:
        theirs = Qwen3ForCausalLM(Qwen3Config(**{**COMMON, **options}))
    with torch.no_grad():
        for parameter in theirs.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else 0.2 * noise)
    theirs.eval()
    spec = target_spec(theirs.config, type(theirs).__name__)
    ours = (LlamaTarget if family == "llama" else Qwen3Target)(spec, torch_ops(), torch.float32)
    fill(ours, DictSource(theirs.state_dict()))
    return theirs, ours


def make_cache(ours: DenseTarget, page_len: int = 4) -> PagedCache:
    attention = ours.spec.attention
    return PagedCache(
        ours.ops,
        num_layers=ours.num_attention_layers,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        page_len=page_len,
    )


@pytest.mark.parametrize("case", CASES)
def test_prefill_and_decode_match(case: str) -> None:
    theirs, ours = make_pair(case)
    ids = torch.randint(97, (30,))
    capture_layers = (2, -1, 0, 3)
    with torch.inference_mode():
        want = theirs(ids[None], output_hidden_states=True)
        cache = make_cache(ours)
        hidden, captured = [], []
        # A chunk, a longer chunk, single rows, then a block of several rows: as an engine does it.
        start = 0
        for num_rows in (5, 11, 1, 1, 4, 8):
            rows = Rows(0, start, num_rows)
            chunk_hidden, chunk_captured = ours(
                ids[start : start + num_rows], positions(rows), cache.attend(rows), capture_layers
            )
            hidden.append(chunk_hidden)
            captured.append(chunk_captured)
            start += num_rows
        logits = ours.logits(torch.cat(hidden))
    assert logits.dtype == torch.float32
    assert want.logits.abs().max() > 1  # else the tolerance below would mean nothing
    torch.testing.assert_close(logits, want.logits[0], atol=2e-5, rtol=1e-5)
    states = torch.cat(captured).split(32, dim=-1)
    for layer, state in zip(capture_layers[:3], states[:3], strict=True):
        torch.testing.assert_close(state, want.hidden_states[layer + 1][0], atol=2e-5, rtol=1e-5)
    # transformers lists the last layer's output after the final norm only: norm ours to compare.
    normed = ours.ops.rms_norm(states[3], ours.stack.norm, ours.spec.rms_eps)
    torch.testing.assert_close(normed, want.hidden_states[4][0], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["llama-untied", "qwen3-sliding"])
def test_sequences_beside_each_other_do_not_mix(case: str) -> None:
    theirs, ours = make_pair(case)
    ids = [torch.randint(97, (n,)) for n in (9, 3, 17)]
    with torch.inference_mode():
        cache = make_cache(ours)
        spans = [Rows(b, 0, len(row)) for b, row in enumerate(ids)]
        ours(torch.cat(ids), positions(*spans), cache.attend(*spans))
        more = [Rows(0, 9, 1), Rows(2, 17, 3), Rows(1, 3, 5)]
        new = [torch.randint(97, (span.num_rows,)) for span in more]
        hidden, _ = ours(torch.cat(new), positions(*more), cache.attend(*more))
        parts = ours.logits(hidden).split([span.num_rows for span in more])
        for span, part, tail in zip(more, parts, new, strict=True):
            want = theirs(torch.cat([ids[span.seq_id], tail])[None]).logits[0, -len(tail) :]
            torch.testing.assert_close(part, want, atol=2e-5, rtol=1e-5)


def test_rows_that_were_rejected_leave_no_trace() -> None:
    theirs, ours = make_pair("qwen3-sliding")
    ids = torch.randint(97, (20,))
    with torch.inference_mode():
        cache = make_cache(ours)
        first, wrong, right = Rows(0, 0, 10), Rows(0, 10, 8), Rows(0, 12, 8)
        ours(ids[:10], positions(first), cache.attend(first))
        # Two of eight rows are kept; the next block overwrites the rest.
        drafted = torch.cat([ids[10:12], torch.randint(97, (6,))])
        ours(drafted, positions(wrong), cache.attend(wrong))
        hidden, _ = ours(ids[12:], positions(right), cache.attend(right))
        want = theirs(ids[None]).logits[0, 12:]
        torch.testing.assert_close(ours.logits(hidden), want, atol=2e-5, rtol=1e-5)


def test_rope_table_equals_transformers_bit_for_bit() -> None:
    for case in ("llama-untied", "llama-llama3-rope", "llama-linear-rope", "llama-yarn-rope"):
        theirs, ours = make_pair(case)
        where = torch.arange(0, 512, 3)
        want = theirs.model.rotary_emb(torch.zeros(1, dtype=torch.float32), where[None])
        for got, expected in zip(ours.stack.rope(where), want, strict=True):
            assert torch.equal(got, expected[0]), case
