"""Toy targets and drafters: random, tiny, seeded; in memory. `toy_files` saves them as checkpoints.

    target, drafter = toy_pair("qwen3", block_len=4, window=6, agreement="mixed")

`agreement` says how often the drafter guesses what the target says, without any training. Greedy τ:
- "none": about 1.0. Independent weights agree by chance only.
- "mixed": 1.2 to 3 by seed. Two tokens have long, opposite rows in the (shared) head, so that both models
  mostly say one of the two, and agree about half of the time.
- "all": the whole block. All embedding rows share a strong direction, so that every row of both
  models says the same token. The text is that token, repeated.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from truedraft.contract.specs import AttentionSpec, DrafterSpec, RopeSpec, TargetSpec
from truedraft.kernels.ops import Ops
from truedraft.kernels.reference import torch_ops
from truedraft.models.decoder import DenseTarget
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.llama import LlamaTarget
from truedraft.models.qwen3 import Qwen3Target
from truedraft.models.weights import DictSource, fill

# Models this small lose more by sharing their work between threads than they gain.
torch.set_num_threads(1)

Family = Literal["llama", "qwen3"]
Agreement = Literal["none", "mixed", "all"]

VOCAB, WIDTH, MLP, HEADS, KV_HEADS, HEAD_DIM = 97, 32, 48, 4, 2, 8
MAX_POSITION = 512
BOS, EOS, MASK = 1, 2, 3
_SHARED = 40.0  # weight of the direction that all embedding rows share at agreement "all"
_LOUD = 10.0  # factor on the head rows of the two favourites at agreement "mixed"
FAVOURITES = (41, 42)


def toy_target(
    family: Family = "llama",
    *,
    seed: int = 0,
    agreement: Agreement = "none",
    vocab_size: int = VOCAB,
    num_layers: int = 4,
    tied: bool = False,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    ops: Ops | None = None,
) -> DenseTarget:
    """A target with random weights. `window` applies to every other layer (Qwen3 only)."""
    assert window is None or family == "qwen3"
    windows = tuple(window if i % 2 else None for i in range(num_layers))
    spec = TargetSpec(
        source="toy",
        path="toy",
        format="safetensors",
        architecture={"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family],
        model_type=family,
        num_layers=num_layers,
        hidden_size=WIDTH,
        mlp_size=MLP,
        vocab_size=vocab_size,
        max_position=MAX_POSITION,
        attention=_attention(windows),
        rms_eps=1e-5,
        tied_head=tied,
        dtype="F32",
        bos_id=BOS,
        eos_ids=(EOS,),
        qk_norm=family == "qwen3",
    )
    target = (LlamaTarget if family == "llama" else Qwen3Target)(spec, ops or torch_ops(), dtype)
    tensors = _random_tensors(target, seed)
    if agreement == "all":
        shared = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed + 1000))
        tensors["model.embed_tokens.weight"] += _SHARED * shared
    elif agreement == "mixed":
        first, second = FAVOURITES
        head = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
        head[first] *= _LOUD
        head[second] = -head[first]
    fill(target, DictSource(tensors))
    return target


def toy_drafter(
    target: DenseTarget,
    *,
    seed: int = 1,
    block_len: int = 8,
    num_layers: int = 2,
    capture_layers: tuple[int, ...] = (0, 2),
    window: int | None = None,
    causal: bool | None = None,
    sample_from_anchor: bool = False,
    head_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    ops: Ops | None = None,
) -> DFlashDrafter:
    """A drafter for `target`, with random weights.

    `window` makes all layers but the last slide; they are then causal unless `causal` says otherwise.
    `head_size` gives it its own embedding and head over that many tokens, and a d2t table
    (speculators' way); at the target's vocabulary size the table is all zeros.
    """
    windows = tuple(window if i + 1 < num_layers else None for i in range(num_layers))
    vocab_size = target.spec.vocab_size
    spec = DrafterSpec(
        source="toy-drafter",
        path="toy-drafter",
        format="zlab" if head_size is None else "speculators",
        algorithm="dflash",
        architecture="DFlashDraftModel" if head_size is None else "DFlashSpeculator",
        num_layers=num_layers,
        hidden_size=WIDTH,
        mlp_size=MLP,
        vocab_size=head_size or vocab_size,
        target_hidden_size=WIDTH,
        num_target_layers=target.spec.num_layers,
        block_len=block_len,
        mask_token_id=MASK,
        capture_layers=capture_layers,
        attention=_attention(windows),
        causal=tuple(w is not None if causal is None else causal for w in windows),
        rms_eps=1e-5,
        max_position=MAX_POSITION,
        sample_from_anchor=sample_from_anchor,
        own_embedding=head_size is not None,
        own_head=head_size is not None,
        has_d2t=head_size is not None,
        dtype="F32",
    )
    drafter = DFlashDrafter(spec, target, ops or torch_ops(), dtype)
    tensors = _random_tensors(drafter, seed)
    if head_size is not None:
        # Its own tables are the target's, cut to the tokens of the short head.
        kept = spread(head_size, vocab_size)
        tensors["embed_tokens.weight"] = target.embedding_VD.float()
        tensors["lm_head.weight"] = target.raw_logits(torch.eye(WIDTH, dtype=target.dtype)).T.float()[kept]
        tensors["d2t"] = kept - torch.arange(head_size)
    fill(drafter, DictSource(tensors))
    return drafter


def toy_pair(
    family: Family = "llama",
    *,
    seed: int = 0,
    agreement: Agreement = "none",
    vocab_size: int = VOCAB,
    block_len: int = 8,
    window: int | None = None,
    sample_from_anchor: bool = False,
    head_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    ops: Ops | None = None,
) -> tuple[DenseTarget, DFlashDrafter]:
    """A target and its drafter; options as in `toy_target` and `toy_drafter` (`window`: the drafter's)."""
    target = toy_target(family, seed=seed, agreement=agreement, vocab_size=vocab_size, dtype=dtype, ops=ops)
    drafter = toy_drafter(
        target,
        seed=seed + 1,
        block_len=block_len,
        window=window,
        sample_from_anchor=sample_from_anchor,
        head_size=head_size,
        dtype=dtype,
        ops=ops,
    )
    return target, drafter


def spread(head_size: int, vocab_size: int) -> Tensor:
    """int64 target ids of a short head's tokens, evenly spread and ascending."""
    return torch.arange(head_size) * vocab_size // head_size


def _attention(windows: tuple[int | None, ...]) -> AttentionSpec:
    return AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, windows, RopeSpec(theta=1000.0))


def _random_tensors(module: DenseTarget | DFlashDrafter, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for slot in module.slots():
        for part in slot.parts:
            noise = 0.2 * torch.randn(part.shape, generator=generator)
            tensors[part.name] = 1 + noise if len(part.shape) == 1 else noise
    return tensors
