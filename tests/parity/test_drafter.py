"""Our drafter's hidden states equal those of z-lab's own package, over rounds with its cache."""

from __future__ import annotations

from typing import Any

import dflash.model as zlab
import pytest
import torch
from hf_specs import drafter_spec, target_spec
from paged import PagedCache, Rows, positions
from transformers import LlamaConfig, Qwen3Config

from truedraft.kernels.reference import torch_ops
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.llama import LlamaTarget
from truedraft.models.weights import DictSource, fill

WIDTH, LAYERS, BLOCK = 32, 3, 8
FULL, SLIDING = "full_attention", "sliding_attention"
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "mixed": {"layer_types": [SLIDING, SLIDING, FULL]},
    "sliding": {"layer_types": [SLIDING] * 3},
    "sliding-bidirectional": {"layer_types": [SLIDING] * 3, "is_causal": False},
    "full-causal": {"is_causal": True},
    "biases": {"attention_bias": True},
}


def random_(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else 0.2 * noise)


def make_pair(case: str) -> tuple[Any, DFlashDrafter]:
    torch.manual_seed(1)
    options = {"layer_types": [FULL] * LAYERS, **CASES[case]}
    config = Qwen3Config(
        vocab_size=97,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        sliding_window=6 if SLIDING in options["layer_types"] else None,
        use_sliding_window=SLIDING in options["layer_types"],
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        attn_implementation="sdpa",
        **options,
    )
    config.num_target_layers = 4
    config.dflash_config = {"mask_token_id": 3, "target_layer_ids": [0, 2, 3], "block_size": BLOCK}
    theirs = zlab.DFlashDraftModel(config).eval()
    random_(theirs)
    base = LlamaConfig(
        vocab_size=97,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    target = LlamaTarget(target_spec(base, "LlamaForCausalLM"), torch_ops(), torch.float32)
    fill(
        target,
        DictSource({part.name: torch.randn(part.shape) for slot in target.slots() for part in slot.parts}),
    )
    spec = drafter_spec(config, target.spec)
    ours = DFlashDrafter(spec, target, torch_ops(), torch.float32)
    fill(ours, DictSource(theirs.state_dict()))
    return theirs, ours


def their_round(theirs: Any, cache: Any, embedded: torch.Tensor, features: torch.Tensor, start: int) -> Any:
    """One draft as z-lab's loop does it: cache the new context and the block, crop the block away."""
    num_new, num_rows = features.shape[0], embedded.shape[0]
    hidden = theirs(
        target_hidden=features[None],
        noise_embedding=embedded[None],
        position_ids=torch.arange(start - num_new, start + num_rows)[None],
        past_key_values=cache,
        use_cache=True,
    )
    zlab._crop_to(cache, start)
    return hidden[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("page_len", [4, 512])
def test_rounds_match(case: str, page_len: int) -> None:
    theirs, ours = make_pair(case)
    attention = ours.spec.attention
    cache = PagedCache(
        ours.ops,
        num_layers=LAYERS,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        num_pages=64 if page_len == 4 else 1,
        page_len=page_len,
    )
    their_cache, start = zlab._make_cache(theirs.config), 0
    # A prompt of several windows, then 1 … block_len kept tokens a round.
    with torch.inference_mode():
        for num_new in (21, 1, 8, 3, 5, 1, 7, 2):
            features = torch.randn(num_new, 3 * WIDTH)
            start += num_new
            ids = torch.tensor([int(torch.randint(97, ()))] + [3] * (BLOCK - 1))
            want = their_round(theirs, their_cache, ours.embed(ids), features, start)
            new, block = Rows(0, start - num_new, num_new), Rows(0, start, BLOCK)
            cache.write(new, *ours.context_kv(features, positions(new)))
            got = ours(ids, positions(block), cache.attend(block))
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_batched_blocks_equal_single_ones() -> None:
    _, ours = make_pair("mixed")
    lens = (13, 2, 30)
    features = [torch.randn(n, 3 * WIDTH) for n in lens]
    ids = [torch.tensor([n] + [3] * (BLOCK - 1)) for n in lens]

    def run(which: list[int]) -> torch.Tensor:
        cache = PagedCache(ours.ops, num_layers=LAYERS, num_kv_heads=2, head_dim=8)
        for b in which:
            rows = Rows(b, 0, lens[b])
            cache.write(rows, *ours.context_kv(features[b], positions(rows)))
        blocks = [Rows(b, lens[b], BLOCK) for b in which]
        return ours(torch.cat([ids[b] for b in which]), positions(*blocks), cache.attend(*blocks))

    with torch.inference_mode():
        together = run([0, 1, 2]).split(BLOCK)
        for b in range(3):
            torch.testing.assert_close(together[b], run([b]), atol=1e-5, rtol=0)


def test_logits_equal_theirs_with_multiplier_and_softcap() -> None:
    theirs, ours = make_pair("full")
    theirs.config.dflash_config.update(output_multiplier=0.2, final_logit_softcapping=2.0)
    spec = drafter_spec(theirs.config, ours._target[0].spec)
    capped = DFlashDrafter(spec, ours._target[0], torch_ops(), torch.float32)
    fill(capped, DictSource(theirs.state_dict()))
    hidden = torch.randn(5, WIDTH)
    with torch.inference_mode():
        want = theirs.compute_logits(hidden, ours._target[0].logits)
        torch.testing.assert_close(capped.logits(hidden), want)
        assert torch.equal(capped.draft_ids(hidden), want.argmax(-1))
