"""Saves toy pairs as checkpoint folders that every loader takes for real ones.

    paths = save_pair(tmp_path, *toy_pair("qwen3", vocab_size=FILE_VOCAB))

Folders have a byte-level tokenizer with a ChatML template: 8 special tokens and 256 bytes, hence
FILE_VOCAB; special ids are those of `toy` (bos 1, eos 2, mask 3).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from toy import BOS, EOS, MASK, MAX_POSITION

from truedraft.contract.specs import AttentionSpec
from truedraft.models.decoder import DenseTarget
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.weights import parts_of

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|mask|>",
    "<|extra_4|>",
    "<|extra_5|>",
    "<|extra_6|>",
    "<|extra_7|>",
)
FILE_VOCAB = len(SPECIALS) + 256
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class PairPaths:
    target: Path
    drafter: Path


def save_pair(
    folder: Path,
    target: DenseTarget,
    drafter: DFlashDrafter,
    *,
    drafter_format: Literal["zlab", "speculators"] | None = None,
) -> PairPaths:
    """`folder/target` and `folder/drafter`. The format defaults to the drafter spec's."""
    paths = PairPaths(folder / "target", folder / "drafter")
    save_target(target, paths.target)
    if (drafter_format or drafter.spec.format) == "speculators":
        save_speculators(drafter, paths.drafter)
    else:
        save_zlab(drafter, paths.drafter)
    return paths


def save_target(target: DenseTarget, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors and the tokenizer's files."""
    spec = target.spec
    assert spec.vocab_size >= FILE_VOCAB, "the byte-level tokenizer needs FILE_VOCAB rows"
    config = {
        "architectures": [spec.architecture],
        "model_type": spec.model_type,
        **_decoder_keys(target),
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": 0,
    }
    _write(folder, config, parts_of(target))
    generation = {"bos_token_id": BOS, "eos_token_id": [EOS, 0], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    save_tokenizer(folder)


def save_tokenizer(folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja: every byte is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "pad_token": SPECIALS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITION,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHATML)


def save_zlab(drafter: DFlashDrafter, folder: Path) -> None:
    """z-lab's layout: DFlashDraftModel, `dflash_config`, 0-based capture layers, no tables of its own."""
    spec = drafter.spec
    assert not spec.own_embedding and not spec.own_head, "z-lab's format has no embedding and no head"
    dflash: dict[str, Any] = {
        "block_size": spec.block_len,
        "mask_token_id": MASK,
        "target_layer_ids": list(spec.capture_layers),
    }
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **_decoder_keys(drafter),
        "vocab_size": spec.vocab_size,
        "num_target_layers": spec.num_target_layers,
        "tie_word_embeddings": False,
        "dflash_config": dflash,
    }
    if spec.sample_from_anchor:
        config["sample_from_anchor"] = True
    if not _causal_by_default(drafter):
        config["is_causal"] = spec.causal[0]
    _write(folder, config, parts_of(drafter))


def save_speculators(drafter: DFlashDrafter, folder: Path) -> None:
    """speculators' layout: nested decoder config, boundary numbering, own tables, d2t and t2d."""
    spec = drafter.spec
    assert spec.own_embedding and spec.own_head and spec.has_d2t
    tensors = parts_of(drafter)
    embedded, head_size = tensors["embed_tokens.weight"].shape[0], spec.vocab_size
    t2d = torch.zeros(embedded, dtype=torch.bool)
    t2d[torch.arange(head_size) + tensors["d2t"]] = True
    config: dict[str, Any] = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.5.0",
        "transformer_layer_config": {
            "model_type": "qwen3",
            **_decoder_keys(drafter),
            "vocab_size": embedded,
        },
        "block_size": spec.block_len,
        "draft_vocab_size": head_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in spec.capture_layers],
        "mask_token_id": MASK,
        "target_hidden_size": spec.target_hidden_size,
        "sample_from_anchor": spec.sample_from_anchor,
        "sliding_window_non_causal": not any(spec.causal),
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": spec.num_drafted}],
            "verifier": {"name_or_path": "toy", "architectures": []},
        },
        "tie_word_embeddings": False,
    }
    _write(folder, config, {**tensors, "t2d": t2d})


def _decoder_keys(model: DenseTarget | DFlashDrafter) -> dict[str, Any]:
    spec = model.spec
    attention: AttentionSpec = spec.attention
    windows = [window for window in attention.windows if window is not None]
    keys: dict[str, Any] = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.mlp_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "attention_bias": spec.attention_bias,
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": attention.rope.theta,
        "max_position_embeddings": spec.max_position,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    if model.stack.shape.qk_norm:
        keys["layer_types"] = [
            "full_attention" if window is None else "sliding_attention" for window in attention.windows
        ]
        keys["sliding_window"] = windows[0] if windows else None
        keys["use_sliding_window"] = bool(windows)
        keys["max_window_layers"] = spec.num_layers
    return keys


def _causal_by_default(drafter: DFlashDrafter) -> bool:
    windows = drafter.spec.attention.windows
    return drafter.spec.causal == tuple(window is not None for window in windows)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    # clone: parts are views of fused parameters, and safetensors refuses shared storage.
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
