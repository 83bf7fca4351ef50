"""The toy pairs that other tests stand on: loadable by transformers and z-lab, and as agreeable as said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash.model as zlab
import pytest
import torch
from paged import PagedCache, Rows, positions
from toy import HEAD_DIM, KV_HEADS, MASK, Agreement, Family, toy_drafter, toy_pair, toy_target
from toy_files import FILE_VOCAB, save_pair
from transformers import AutoModelForCausalLM, AutoTokenizer

from truedraft.checkpoint.drafter import read_drafter
from truedraft.checkpoint.target import read_target
from truedraft.models.decoder import DenseTarget
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.registry import load_drafter, load_target


def greedy_tau(target: DenseTarget, drafter: DFlashDrafter, num_tokens: int = 60) -> float:
    """Tokens a round of the plain DFlash loop, written out here without the engine."""
    spec, width = drafter.spec, drafter.spec.block_len
    kv = {"num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    cache = PagedCache(target.ops, num_layers=target.num_attention_layers, **kv)
    draft_cache = PagedCache(target.ops, num_layers=spec.num_layers, **kv)

    def run(ids: torch.Tensor, rows: Rows) -> tuple[list[int], torch.Tensor]:
        hidden, captured = target(ids, positions(rows), cache.attend(rows), spec.capture_layers)
        assert captured is not None
        return target.logits(hidden).argmax(-1).tolist(), captured

    def remember(captured: torch.Tensor, start: int) -> None:
        rows = Rows(0, start, captured.shape[0])
        draft_cache.write(rows, *drafter.context_kv(captured, positions(rows)))

    prompt = torch.arange(4, 14)
    said, captured = run(prompt, Rows(0, 0, 10))
    remember(captured, 0)
    anchor, start, num_rounds = said[-1], 10, 0
    while start < num_tokens:
        block, rows = torch.tensor([anchor] + [MASK] * (width - 1)), Rows(0, start, width)
        hidden = drafter(block, positions(rows), draft_cache.attend(rows))
        drafts = drafter.draft_ids(hidden if spec.sample_from_anchor else hidden[1:])[: spec.num_drafted]
        said, captured = run(torch.cat([block[:1], drafts]), Rows(0, start, 1 + len(drafts)))
        agrees = [draft == token for draft, token in zip(drafts.tolist(), said, strict=False)]
        num_accepted = agrees.index(False) if False in agrees else len(agrees)
        remember(captured[: num_accepted + 1], start)
        anchor, start, num_rounds = said[num_accepted], start + num_accepted + 1, num_rounds + 1
    return (start - 10) / num_rounds


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("agreement", "low", "high"), [("none", 1.0, 1.2), ("mixed", 1.2, 4.0), ("all", 4.0, 8.0)]
)
def test_agreement_is_as_said(family: Family, agreement: Agreement, low: float, high: float) -> None:
    target, drafter = toy_pair(family, agreement=agreement, block_len=4 if agreement == "all" else 8)
    with torch.inference_mode():
        assert low <= greedy_tau(target, drafter) <= high


def test_layout_that_samples_from_the_anchor_accepts_whole_blocks_too() -> None:
    target, drafter = toy_pair(agreement="all", block_len=4, sample_from_anchor=True, head_size=97)
    with torch.inference_mode():
        assert greedy_tau(target, drafter) == 5.0


def test_same_seed_same_weights() -> None:
    first, second, other = toy_target(seed=3), toy_target(seed=3), toy_target(seed=4)
    assert torch.equal(first.stack.in_order[2].mlp.down.weight, second.stack.in_order[2].mlp.down.weight)
    assert not torch.equal(first.embedding_VD, other.embedding_VD)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_saved_target_is_the_same_model_to_transformers_and_to_us(tmp_path: Path, family: Family) -> None:
    window = 6 if family == "qwen3" else None
    target = toy_target(family, vocab_size=FILE_VOCAB, window=window, tied=family == "llama")
    paths = save_pair(tmp_path, target, toy_drafter(target))
    theirs = AutoModelForCausalLM.from_pretrained(paths.target, dtype=torch.float32)
    ids = torch.arange(40) * 5 % FILE_VOCAB
    loaded = load_target(replace(target.spec, path=str(paths.target)), target.ops, torch.float32)
    with torch.inference_mode():
        want = theirs(ids[None]).logits[0]
        for ours in (target, loaded):
            cache = PagedCache(target.ops, num_layers=4, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
            rows = Rows(0, 0, 40)
            hidden, _ = ours.forward(ids, positions(rows), cache.attend(rows))
            torch.testing.assert_close(ours.logits(hidden), want, atol=2e-5, rtol=1e-5)


def test_saved_drafters_load_again(tmp_path: Path) -> None:
    target = toy_target(vocab_size=FILE_VOCAB)
    for folder, drafter in {
        "zlab": toy_drafter(target, window=6),
        "speculators": toy_drafter(target, head_size=50, sample_from_anchor=True),
    }.items():
        paths = save_pair(tmp_path / folder, target, drafter)
        spec = replace(drafter.spec, path=str(paths.drafter))
        again = load_drafter(spec, target, target.ops, torch.float32)
        assert isinstance(again, DFlashDrafter)
        for name, tensor in drafter.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name
    theirs = zlab.DFlashDraftModel.from_pretrained(tmp_path / "zlab" / "drafter", dtype=torch.float32)
    assert theirs.target_layer_ids == [0, 2]
    assert [layer.self_attn.sliding_window for layer in theirs.layers] == [6, None]


def test_tokenizer_takes_every_byte_and_has_a_chat_template(tmp_path: Path) -> None:
    target = toy_target(vocab_size=FILE_VOCAB)
    paths = save_pair(tmp_path, target, toy_drafter(target))
    tokenizer = AutoTokenizer.from_pretrained(paths.target)
    text = "Zwölf Boxkämpfer\n\t🙂 <|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == 2
    assert max(ids) < FILE_VOCAB
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


SPEC_FIELDS = {
    "drafter": (
        "num_layers",
        "hidden_size",
        "vocab_size",
        "target_hidden_size",
        "block_len",
        "mask_token_id",
        "capture_layers",
        "attention",
        "causal",
        "sample_from_anchor",
        "own_embedding",
        "own_head",
        "has_d2t",
        "num_drafted",
    ),
    "target": (
        "architecture",
        "num_layers",
        "vocab_size",
        "attention",
        "tied_head",
        "qk_norm",
        "max_position",
    ),
}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 6},
        {"window": 6, "causal": False},
        {"head_size": 50},
        {"head_size": 264, "sample_from_anchor": True},
    ],
    ids=str,
)
def test_folders_read_as_what_was_saved(tmp_path: Path, family: Family, options: dict[str, Any]) -> None:
    target = toy_target(family, vocab_size=FILE_VOCAB, window=6 if family == "qwen3" else None)
    drafter = toy_drafter(target, block_len=4, **options)
    paths = save_pair(tmp_path, target, drafter)
    for kind, read, want in (
        ("target", read_target(paths.target), target.spec),
        ("drafter", read_drafter(paths.drafter), drafter.spec),
    ):
        for field in SPEC_FIELDS[kind]:
            assert getattr(read, field) == getattr(want, field), field
