"""GGUF headers: written with the format's own package, read with ours, and broken on purpose."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.checkpoint.gguf_header import SkippedArray, read_gguf_header
from truedraft.checkpoint.target import read_target, read_target_files
from truedraft.errors import CheckpointError


def write_gguf(path: Path, *, rows: int = 32, num_tokens: int = 32, family: str = "llama") -> Path:
    writer = GGUFWriter(str(path), family)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{i}" for i in range(num_tokens)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", np.zeros((rows, 64), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_metadata_and_tensors(tmp_path: Path) -> None:
    header = read_gguf_header(write_gguf(tmp_path / "m.gguf", num_tokens=5000))
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(5000)
    first, second = header.tensors
    assert (first.name, first.dtype, first.shape) == ("token_embd.weight", "F32", (32, 64))
    assert second.dtype == "F16" and second.end - second.start == 64 * 64 * 2


def test_becomes_a_target(tmp_path: Path) -> None:
    spec = read_target(write_gguf(tmp_path / "m.gguf"))
    assert (spec.format, spec.architecture, spec.num_layers, spec.vocab_size) == (
        "gguf",
        "LlamaForCausalLM",
        2,
        32,
    )
    assert (spec.attention.num_heads, spec.attention.num_kv_heads, spec.attention.head_dim) == (4, 2, 16)
    assert spec.attention.rope.theta == 5000.0 and spec.tied_head and spec.eos_ids == (2,)
    assert spec.origins["num_layers"].where == "m.gguf: block_count"


def test_a_folder_with_one_gguf_and_one_with_two(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    assert read_target_files(tmp_path).format == "gguf"
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF files.*a\.gguf, b\.gguf"):
        read_target_files(tmp_path)


def patched(data: bytes, at: int, code: str, value: Any) -> bytes:
    packed = struct.pack("<" + code, value)
    return data[:at] + packed + data[at + len(packed) :]


@pytest.mark.parametrize(
    ("at", "code", "value", "message"),
    [
        (0, "4s", b"GGML", "no GGUF file"),
        (4, "I", 99, "unknown GGUF version"),
        (8, "Q", 2**60, "absurd counts"),
        (16, "Q", 2**60, "absurd counts"),
        (24, "Q", 2**50, "absurd length"),
        (24, "Q", 10**7, "truncated"),
    ],
)
def test_lying_numbers(tmp_path: Path, at: int, code: str, value: Any, message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(patched(path.read_bytes(), at, code, value))
    with pytest.raises(CheckpointError, match=message):
        read_gguf_header(path)


def test_truncated_in_the_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"truncated: tensor 'blk\.0\.attn_q\.weight'"):
        read_gguf_header(path)


def test_too_short(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="ends inside its header"):
        read_gguf_header(tmp_path / "m.gguf")


@settings(max_examples=150, deadline=None)
@given(
    cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=6)
)
def test_damage_anywhere_gives_a_reading_or_a_checkpoint_error(
    cut: int, flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.gguf"
    data = bytearray((whole if whole.exists() else write_gguf(whole)).read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    (folder / "damaged.gguf").write_bytes(data[: len(data) - cut])
    try:
        read_target_files(folder / "damaged.gguf")
    except CheckpointError:
        return
