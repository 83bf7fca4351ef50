"""Loading weights: what is wrong is told at once and by name, and nothing is loaded half."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy import toy_drafter, toy_target
from toy_files import FILE_VOCAB, save_pair

from truedraft.errors import CheckpointError, PairingError
from truedraft.kernels.reference import torch_ops
from truedraft.models.decoder import DenseTarget
from truedraft.models.registry import is_fast, load_drafter, load_target
from truedraft.models.weights import DictSource, FolderSource, fill, parts_of


@pytest.fixture
def target() -> DenseTarget:
    return toy_target(vocab_size=FILE_VOCAB)


@pytest.fixture
def folder(tmp_path: Path, target: DenseTarget) -> Path:
    return save_pair(tmp_path, target, toy_drafter(target)).target


def load(folder: Path, target: DenseTarget, dtype: torch.dtype = torch.float32) -> DenseTarget:
    loaded = load_target(replace(target.spec, path=str(folder)), torch_ops(), dtype)
    assert isinstance(loaded, DenseTarget)
    return loaded


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_loaded_module_is_ready_and_owns_its_memory(folder: Path, target: DenseTarget) -> None:
    loaded = load(folder, target)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    (folder / "model.safetensors").write_bytes(b"")  # the file is not kept mapped
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


def test_dtype_is_cast(folder: Path, target: DenseTarget) -> None:
    loaded = load(folder, target, torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.stack.rope.cos_sin_MH.dtype == torch.bfloat16
    assert torch.equal(loaded.embedding_VD, target.embedding_VD.bfloat16())


def test_parts_are_the_file_again(folder: Path, target: DenseTarget) -> None:
    want, got = load_file(folder / "model.safetensors"), parts_of(load(folder, target))
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name


def test_shards_load_as_one(folder: Path, target: DenseTarget) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, inside in shards.items():
        save_file({name: tensors[name] for name in inside}, folder / file)
    weight_map = {name: file for file, inside in shards.items() for name in inside}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    loaded = load(folder, target)
    assert torch.equal(loaded.embedding_VD, target.embedding_VD)

    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"files that do not exist: got model-00002-of-00002\.safet"):
        load(folder, target)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match="files outside of its folder"):
        load(folder, target)
    index.write_text("{")
    with pytest.raises(CheckpointError, match="not an index"):
        load(folder, target)


def test_all_misfits_are_told_in_one_error(folder: Path, target: DenseTarget) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        for layer in range(3):
            for name in ("q_proj", "k_proj"):
                del tensors[f"model.layers.{layer}.self_attn.{name}.weight"]
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
        tensors["model.norm.weight"] = torch.ones(31)
        tensors["lm_head.weight"] = torch.zeros(FILE_VOCAB, 32, dtype=torch.int8)

    edit(folder, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(folder, target)
    message = str(caught.value)
    assert "6 missing (model.layers.0.self_attn.q_proj.weight, " in message
    assert "and 2 more)" in message
    assert "1 unexpected (model.layers.0.self_attn.q_norm.weight)" in message
    assert "1 of another shape (model.norm.weight [31] instead of [32])" in message
    assert "1 of a dtype (lm_head.weight I8)" in message


def test_surplus_that_means_nothing_is_passed_over(tmp_path: Path) -> None:
    tied = toy_target(vocab_size=FILE_VOCAB, tied=True)
    folder = save_pair(tmp_path, tied, toy_drafter(tied)).target

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    edit(folder, add)
    hidden = torch.randn(3, 32)
    assert torch.equal(load(folder, tied).logits(hidden), tied.logits(hidden))


@pytest.mark.parametrize("keep", [0, 4, 200, -64])
def test_cut_file_is_a_checkpoint_error(folder: Path, target: DenseTarget, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(folder, target)


def test_random_bytes_are_a_checkpoint_error(folder: Path, target: DenseTarget) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(folder, target)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_by_name(folder: Path, target: DenseTarget, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match=f"no safetensors file: got {name}.*can run code"):
        load(folder, target)


def test_missing_folder_and_stray_files(tmp_path: Path, folder: Path, target: DenseTarget) -> None:
    with pytest.raises(CheckpointError, match="does not exist"), FolderSource(tmp_path / "nowhere"):
        pass
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"x": torch.zeros(1)}, folder / name)
    load(folder, target)  # model.safetensors is the one
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="several safetensors files but no index"):
        load(folder, target)


def test_other_activation_is_refused(folder: Path, target: DenseTarget) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(CheckpointError, match="activation is not supported: got gelu"):
        load(folder, target)


def test_gguf_and_unknown_drafters_are_refused(folder: Path, target: DenseTarget) -> None:
    with pytest.raises(CheckpointError, match="converted before"):
        load_target(replace(target.spec, format="gguf"), torch_ops(), torch.float32)
    spec = replace(toy_drafter(target).spec, algorithm="dspark")
    with pytest.raises(CheckpointError, match="'dspark' are not supported"):
        load_drafter(spec, target, torch_ops(), torch.float32)
    assert is_fast("LlamaForCausalLM")
    assert not is_fast("MistralForCausalLM")


def test_drafter_of_another_target_is_refused(target: DenseTarget) -> None:
    for change, words in (
        ({"target_hidden_size": 64}, "another width"),
        ({"capture_layers": (0, 4)}, "layers that the target does not have"),
        ({"hidden_size": 16}, "borrows"),
    ):
        spec = replace(toy_drafter(target).spec, **change)
        with pytest.raises(PairingError, match=words):
            load_drafter(spec, target, torch_ops(), torch.float32)


def test_weights_loaded_again_reach_the_stacked_copy(target: DenseTarget) -> None:
    """The drafter keeps its layers' k and v projections stacked; new weights must not meet the old stack."""
    drafter, other = toy_drafter(target, seed=1), toy_drafter(target, seed=2)
    captured, where = torch.randn(3, 64), torch.arange(3)
    drafter.context_kv(captured, where)
    fill(drafter, DictSource(parts_of(other)))
    for got, want in zip(drafter.context_kv(captured, where), other.context_kv(captured, where), strict=True):
        assert torch.equal(got, want)
