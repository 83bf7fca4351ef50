"""Reads what tensors a checkpoint holds from its headers alone: no weight is touched.

The safetensors format is an 8-byte little-endian length, that many bytes of JSON, then raw data.
Nothing in a header is believed before it is checked against the size of the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from truedraft.checkpoint.files import (
    file_size,
    list_folder,
    parse_json_object,
    read_json_object,
    refuse_pickle,
)
from truedraft.contract.specs import TensorHeader
from truedraft.errors import CheckpointError

MAX_HEADER_BYTES = 16 * 1024 * 1024  # 100,000 tensors; parsed JSON takes many times its size
MAX_INDEX_BYTES = 32 * 1024 * 1024  # public ones are under 10 MB
MAX_TENSORS = 1_000_000
MAX_DIMS = 8
INDEX_NAME = "model.safetensors.index.json"

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """One file's tensors, sorted by position, and its free-text metadata."""

    tensors: tuple[TensorHeader, ...]
    metadata: dict[str, str]


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """→ the header of one .safetensors file.

    Raises CheckpointError for a truncated file, a header that is not JSON, unknown dtypes, absurd
    shapes, and byte ranges that overlap, leave gaps, leave the file, or disagree with their shape.
    """
    refuse_pickle(path)
    size = file_size(path)
    if size < 8:
        raise CheckpointError(
            f"{path} is no safetensors file: it ends inside its length field", seen=f"{size} bytes"
        )
    try:
        with path.open("rb") as file:
            header_len = int.from_bytes(file.read(8), "little")
            if header_len > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path} is no safetensors file: its header claims an absurd length",
                    seen=f"{header_len} bytes",
                    allowed=f"{MAX_HEADER_BYTES} bytes",
                )
            if 8 + header_len > size:
                raise CheckpointError(
                    f"{path} is truncated inside its header",
                    seen=f"{size} bytes, header ends at {8 + header_len}",
                    remedy="Download the file again",
                )
            data = file.read(header_len)
    except OSError as exc:
        raise CheckpointError(f"Cannot read {path}", seen=exc.strerror) from exc
    entries = parse_json_object(data, f"the header of {path}")
    metadata = entries.pop("__metadata__", {})
    if len(entries) > MAX_TENSORS:
        raise CheckpointError(f"{path} claims too many tensors", seen=len(entries), allowed=f"{MAX_TENSORS}")
    base = 8 + header_len
    tensors = sorted(
        (_entry(path, base, name, entry) for name, entry in entries.items()), key=lambda t: (t.start, t.end)
    )
    _check_layout(path, base, size, tensors)
    texts = {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}
    return SafetensorsHeader(tuple(tensors), texts)


def _entry(path: Path, base: int, name: str, entry: Any) -> TensorHeader:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} has no description", seen=type(entry).__name__)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where} has an unknown dtype", seen=dtype, allowed=", ".join(DTYPE_BITS))
    if not _is_sizes(shape) or len(shape) > MAX_DIMS:
        raise CheckpointError(f"{where} has an impossible shape", seen=shape)
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has impossible data offsets", seen=offsets)
    num_bytes = (math.prod(shape) * DTYPE_BITS[dtype] + 7) // 8
    if offsets[1] - offsets[0] != num_bytes:
        raise CheckpointError(
            f"{where}: its byte range does not fit its shape",
            seen=f"{offsets[1] - offsets[0]} bytes for {dtype} {shape}",
            allowed=f"{num_bytes} bytes",
        )
    return TensorHeader(name, dtype, tuple(shape), path.name, base + offsets[0], base + offsets[1])


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_layout(path: Path, base: int, size: int, tensors: list[TensorHeader]) -> None:
    end = base
    for tensor in tensors:
        if tensor.start < end:
            raise CheckpointError(f"{path}: tensor {tensor.name!r} overlaps the one before it")
        if tensor.start > end:
            raise CheckpointError(
                f"{path}: {tensor.start - end} bytes before tensor {tensor.name!r} belong to no tensor"
            )
        end = tensor.end
    if end > size:
        raise CheckpointError(
            f"{path} is truncated: its tensors reach beyond the end of the file",
            seen=f"{size} bytes",
            allowed=f"{end} bytes",
            remedy="Download the file again",
        )
    if end < size:
        raise CheckpointError(
            f"{path} has bytes after its last tensor", seen=f"{size} bytes", allowed=f"{end} bytes"
        )


def read_tensor_headers(where: Path) -> tuple[TensorHeader, ...]:
    """→ all tensors of a folder (one file, or an index and its shards) or of one file, sorted by name.

    Raises CheckpointError: no safetensors there, shards missing (named), a tensor in two files, or
    an index that disagrees with its shards.
    """
    if where.is_file():
        return tuple(sorted(read_safetensors_header(where).tensors, key=lambda t: t.name))
    files, index = weight_files(where)
    found: dict[str, TensorHeader] = {}
    for file in files:
        for tensor in read_safetensors_header(file).tensors:
            if tensor.name in found:
                raise CheckpointError(
                    f"{where}: tensor {tensor.name!r} is in two files",
                    seen=f"{found[tensor.name].file}, {tensor.file}",
                )
            found[tensor.name] = tensor
    if index is not None:
        _check_index(where, index, found)
    return tuple(found[name] for name in sorted(found))


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """→ the .safetensors files to read, and the index's map from tensor to file where there is one."""
    names = list_folder(folder)
    if INDEX_NAME in names:
        index = _read_index(folder / INDEX_NAME)
        missing = sorted(set(index.values()) - set(names))
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise CheckpointError(
                f"{folder}: {len(missing)} of {len(set(index.values()))} weight files that {INDEX_NAME} names "
                "are missing",
                seen=shown,
                remedy="Download them into the same folder",
            )
        return [folder / name for name in sorted(set(index.values()))], index
    found = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors" in found:
        found = ["model.safetensors"]
    if not found:
        pickles = [name for name in names if Path(name).suffix.lower() in (".bin", ".pt", ".pth")]
        if pickles:
            refuse_pickle(folder / pickles[0])
        raise CheckpointError(
            f"{folder} has no .safetensors file", seen=", ".join(names[:8]) or "an empty folder"
        )
    return [folder / name for name in found], None


def _read_index(path: Path) -> dict[str, str]:
    table = read_json_object(path, limit=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{path} has no weight_map")
    for file in table.values():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(f"{path} names a file outside its folder", seen=file)
        refuse_pickle(Path(file))
    return table


def _check_index(folder: Path, index: dict[str, str], found: dict[str, TensorHeader]) -> None:
    for name, file in index.items():
        if name not in found:
            raise CheckpointError(
                f"{folder}: {INDEX_NAME} lists tensor {name!r}, but {file} does not hold it"
            )
        if found[name].file != file:
            raise CheckpointError(
                f"{folder}: {INDEX_NAME} puts tensor {name!r} in another file",
                seen=file,
                allowed=found[name].file,
            )
