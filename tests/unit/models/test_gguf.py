"""A GGUF target becomes a safetensors folder: same weights, tokenizer and template, or one clear error."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from toy import toy_target
from toy_files import CHATML, SPECIALS
from transformers import AutoTokenizer

from truedraft.errors import CapacityError, CheckpointError
from truedraft.kernels.reference import torch_ops
from truedraft.models import gguf as conversion
from truedraft.models.decoder import DenseTarget
from truedraft.models.gguf import convert_gguf
from truedraft.models.registry import load_target
from truedraft.models.weights import parts_of

TOKENS = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def target() -> DenseTarget:
    return toy_target(vocab_size=len(TOKENS))


def gguf_name(name: str) -> str:
    name = name.replace("model.layers.", "blk.")
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def write_gguf(path: Path, target: DenseTarget, extra: dict[str, np.ndarray[Any, Any]] | None = None) -> Path:
    """The toy target as llama.cpp's converter writes one, in F32: q's and k's halves interleaved."""
    spec, attention = target.spec, target.spec.attention
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("toy")
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.mlp_size)
    writer.add_head_count(attention.num_heads)
    writer.add_head_count_kv(attention.num_kv_heads)
    writer.add_rope_dimension_count(attention.head_dim)
    writer.add_rope_freq_base(attention.rope.theta)
    writer.add_layer_norm_rms_eps(spec.rms_eps)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)
    for name, tensor in parts_of(target).items():
        array = tensor.numpy()
        for part, heads in (("q_proj", attention.num_heads), ("k_proj", attention.num_kv_heads)):
            if part in name:
                halves = array.reshape(heads, 2, attention.head_dim // 2, spec.hidden_size)
                array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(gguf_name(name), array)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def source(target: DenseTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "toy.gguf", target)


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_gguf(source, tmp_path_factory.mktemp("out") / "toy", "float32")


def test_weights_tokenizer_and_template_survive(converted: Path, target: DenseTarget) -> None:
    loaded = load_target(replace(target.spec, path=str(converted)), torch_ops(), torch.float32)
    assert isinstance(loaded, DenseTarget)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    config = json.loads((converted / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_parameters"]["rope_theta"] == 1000.0
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(converted)
    ids = tokenizer("ab é<|im_end|>")["input_ids"]
    assert tokenizer.decode(ids) == "ab é<|im_end|>"
    assert ids[0] == TOKENS.index("ab")
    assert ids[-1] == 2
    assert tokenizer.chat_template == CHATML


def test_record_says_where_it_came_from(converted: Path, source: Path) -> None:
    record = json.loads((converted / "truedraft.json").read_text())
    assert record["source_sha256"] == conversion._sha256(source)
    assert record["sha256"] == {"model.safetensors": conversion._sha256(converted / "model.safetensors")}
    assert set(record["versions"]) == {"truedraft", "torch", "transformers", "gguf"}
    assert oct(converted.stat().st_mode & 0o777) == "0o755"


def test_bfloat16_is_the_rounded_model(source: Path, target: DenseTarget, tmp_path: Path) -> None:
    out = convert_gguf(source, tmp_path / "toy", "bfloat16")
    loaded = load_target(replace(target.spec, path=str(out)), torch_ops(), torch.bfloat16)
    assert isinstance(loaded, DenseTarget)
    assert torch.equal(loaded.embedding_VD, target.embedding_VD.bfloat16())
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_nothing_is_printed_and_nothing_left_behind(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    convert_gguf(source, tmp_path / "toy", "float32")
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_conversion_that_stands_is_kept(
    converted: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (converted / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(conversion, "_write", None)  # would fail if it converted again
    assert convert_gguf(source, converted, "float32") == converted
    assert (converted / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(CheckpointError, match="in the way"):
        convert_gguf(source, converted, "bfloat16")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match="in the way"):
        convert_gguf(source, tmp_path / "other", "float32")


@pytest.mark.parametrize("keep", [0, 10, 300, -100])
def test_cut_file_is_an_error_and_leaves_nothing(source: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[:keep])
    with pytest.raises(CheckpointError):
        convert_gguf(cut, tmp_path / "toy", "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.gguf"]


def test_noise_and_missing_files_are_errors(source: Path, tmp_path: Path) -> None:
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(os.urandom(4000))
    for path in (noise, tmp_path / "absent.gguf"):
        with pytest.raises(CheckpointError):
            convert_gguf(path, tmp_path / "toy", "float32")
    with pytest.raises(CheckpointError, match="one of two formats: got float16"):
        convert_gguf(source, tmp_path / "toy", "float16")


@pytest.mark.parametrize(
    ("name", "words"),
    [("rope_freqs.weight", "scaled rotary frequencies"), ("blk.0.attn_v.bias", "has no place for")],
)
def test_values_that_would_be_lost_are_an_error(
    target: DenseTarget, tmp_path: Path, name: str, words: str
) -> None:
    path = write_gguf(tmp_path / "odd.gguf", target, {name: np.ones(16, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=words):
        convert_gguf(path, tmp_path / "toy", "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.gguf"]


def test_full_disk_is_told_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CapacityError, match="Not enough room"):
        convert_gguf(source, tmp_path / "toy", "float32")
    monkeypatch.undo()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion, "_record", full)
    with pytest.raises(CapacityError, match="No space left on device"):
        convert_gguf(source, tmp_path / "toy", "float32")
    assert list(tmp_path.iterdir()) == []
