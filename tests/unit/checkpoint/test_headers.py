"""safetensors headers: what is read, and every lie that is caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_raw, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.checkpoint.headers import read_safetensors_header, read_tensor_headers
from truedraft.errors import CheckpointError


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_names_shapes_and_places(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "model.safetensors", {"b": (2, 3), "a": ("F32", (4,)), "scalar": ("I64", ())}
    )
    tensors = {tensor.name: tensor for tensor in read_tensor_headers(tmp_path)}
    assert list(tensors) == ["a", "b", "scalar"]
    assert tensors["b"].shape == (2, 3) and tensors["b"].dtype == "BF16"
    assert tensors["a"].end - tensors["a"].start == 16 and tensors["a"].start == tensors["b"].end
    assert tensors["scalar"].shape == () and tensors["a"].file == "model.safetensors"


def test_empty_tensors_share_their_place_with_the_next(tmp_path: Path) -> None:
    header = {"full": entry(0, 16, [4]), "empty": entry(0, 0, [0])}
    write_raw(tmp_path / "x.safetensors", json.dumps(header).encode(), 16)
    assert [t.name for t in read_safetensors_header(tmp_path / "x.safetensors").tensors] == ["empty", "full"]


def test_100_mb_of_json_are_not_read(tmp_path: Path) -> None:
    write_raw(tmp_path / "x.safetensors", b"{}", 0)
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.write((100_000_000).to_bytes(8, "little"))
        file.truncate(100_000_008)
    with pytest.raises(CheckpointError, match="absurd length"):
        read_safetensors_header(tmp_path / "x.safetensors")


def test_agrees_with_the_formats_own_library(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"x": np.zeros((2, 5), np.float32), "y": np.zeros((3,), np.int64)}, tmp_path / "m.safetensors")
    tensors = {tensor.name: tensor for tensor in read_safetensors_header(tmp_path / "m.safetensors").tensors}
    assert (tensors["x"].dtype, tensors["x"].shape) == ("F32", (2, 5))
    assert (tensors["y"].dtype, tensors["y"].shape) == ("I64", (3,))


@pytest.mark.parametrize(
    ("header", "num_bytes", "message"),
    [
        ({"a": entry(0, 16, [4]), "b": entry(8, 24, [4])}, 24, "overlaps"),
        ({"a": entry(0, 16, [4]), "b": entry(20, 36, [4])}, 36, "belong to no tensor"),
        ({"a": entry(0, 16, [4])}, 8, "truncated"),
        ({"a": entry(0, 16, [4])}, 99, "after its last tensor"),
        ({"a": entry(0, 16, [5])}, 16, "does not fit its shape"),
        ({"a": entry(16, 0, [4])}, 16, "impossible data offsets"),
        ({"a": entry(-16, 0, [4])}, 16, "impossible data offsets"),
        ({"a": entry(0, 16, [-4])}, 16, "impossible shape"),
        ({"a": entry(0, 16, [2**62, 2**62])}, 16, "does not fit its shape"),
        ({"a": entry(0, 16, [1] * 9)}, 16, "impossible shape"),
        ({"a": entry(0, 16, [4], "F128")}, 16, "unknown dtype"),
        ({"a": entry(0, 16, [4.0])}, 16, "impossible shape"),  # type: ignore[list-item]
        ({"a": entry(0, 16, [True] * 4)}, 16, "impossible shape"),
        ({"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}, 16, "unknown dtype"),
        ({"a": 3}, 16, "no description"),
        ([1, 2], 0, "JSON object"),
    ],
)
def test_lying_headers(tmp_path: Path, header: Any, num_bytes: int, message: str) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, json.dumps(header).encode(), num_bytes)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors_header(path)
    assert "x.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "length field"),
        (b"\x01\x02", "length field"),
        ((10**12).to_bytes(8, "little") + b"{}", "absurd length"),
        ((50).to_bytes(8, "little") + b"{}", "truncated inside its header"),
        ((3).to_bytes(8, "little") + b"{a}", "not valid JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "UTF-8"),
        ((3).to_bytes(8, "little") + b"NaN", "not valid JSON"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "nested too deeply"),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_safetensors_header(path)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), length=st.integers(0, 300))
def test_any_bytes_give_a_header_or_a_checkpoint_error(
    data: bytes, length: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + data)
    try:
        read_safetensors_header(path)
    except CheckpointError:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    header=st.dictionaries(
        st.text(max_size=5),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.just("F32") | json_values,
                "shape": json_values,
                "data_offsets": json_values,
            },
        ),
        max_size=3,
    )
)
def test_any_json_header_gives_a_header_or_a_checkpoint_error(header: Any, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz2.safetensors"
    write_raw(path, json.dumps(header).encode(), 64)
    try:
        read_safetensors_header(path)
    except CheckpointError:
        return


def write_sharded(folder: Path) -> None:
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": (2,)})
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"b": (3,)})
    table = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def test_shards_through_the_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    assert [tensor.name for tensor in read_tensor_headers(tmp_path)] == ["a", "b"]


def test_missing_shards_are_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 weight files.*model-00002-of-00002"):
        read_tensor_headers(tmp_path)


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": (3,)})
    with pytest.raises(CheckpointError, match="'b'"):
        read_tensor_headers(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "", ".."])
def test_an_index_may_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_tensor_headers(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_safetensors(tmp_path / f"{name}.safetensors", {"a": (2,)})
    with pytest.raises(CheckpointError, match="two files"):
        read_tensor_headers(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"pickle.*safetensors"):
        read_tensor_headers(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        read_tensor_headers(tmp_path)
