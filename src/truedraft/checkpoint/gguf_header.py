"""Reads a GGUF file's metadata and tensor list, bounds-checked; weights stay on disk.

Own reader for the format's small header (github.com/ggml-org/ggml, docs/gguf.md): the `gguf` package's reader
makes one array object per vocabulary entry and believes every length that the file states.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truedraft.checkpoint.files import file_size
from truedraft.contract.specs import TensorHeader
from truedraft.errors import CheckpointError

MAX_ENTRIES = 100_000
MAX_TENSORS = 1_000_000
MAX_STRING_BYTES = 16 * 1024 * 1024
MAX_KEPT_ITEMS = 4096  # longer arrays (vocabularies) are skipped; their length is kept

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array too long to keep: only its length is known."""

    num_items: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata by key, tensors in file order (shapes in row-major order, as torch has them)."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorHeader, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """→ metadata and tensor list. Raises CheckpointError for anything that does not add up."""
    size = file_size(path)
    if size < 24:
        raise CheckpointError(f"{path} is no GGUF file: it ends inside its header", seen=f"{size} bytes")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(path, data, size).header()
    except OSError as exc:
        raise CheckpointError(f"Cannot read {path}", seen=exc.strerror) from exc


class _Cursor:
    """Walks the header; every read is checked against the file's end first."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0

    def header(self) -> GgufHeader:
        if self.take(4) != b"GGUF":
            raise CheckpointError(f"{self.path} is no GGUF file", seen=repr(self.data[:4]))
        version = self.scalar("I")
        if version not in (2, 3):
            raise CheckpointError(f"{self.path} has an unknown GGUF version", seen=version, allowed="2, 3")
        num_tensors, num_entries = self.scalar("Q"), self.scalar("Q")
        if num_entries > MAX_ENTRIES or num_tensors > MAX_TENSORS:
            raise CheckpointError(
                f"{self.path} claims absurd counts", seen=f"{num_entries} keys, {num_tensors} tensors"
            )
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self.text()
            metadata[key] = self.value(self.scalar("I"), depth=0)
        infos = [self.tensor_info() for _ in range(num_tensors)]
        return GgufHeader(version, metadata, self.tensors(infos, metadata.get("general.alignment", 32)))

    def take(self, length: int) -> bytes:
        if length > self.size - self.at:
            raise CheckpointError(f"{self.path} is truncated inside its header", seen=f"{self.size} bytes")
        self.at += length
        return self.data[self.at - length : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.scalar("Q")
        if length > MAX_STRING_BYTES:
            raise CheckpointError(f"{self.path} claims a text of absurd length", seen=f"{length} bytes")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 2:
            raise CheckpointError(f"{self.path} has a value of an unknown type", seen=kind)
        item_kind, num_items = self.scalar("I"), self.scalar("Q")
        if num_items > self.size - self.at:  # an item takes a byte at least
            raise CheckpointError(
                f"{self.path} claims an array longer than the file", seen=f"{num_items} items"
            )
        if num_items <= MAX_KEPT_ITEMS:
            return [self.value(item_kind, depth + 1) for _ in range(num_items)]
        if item_kind in _SCALARS:
            self.skip(num_items * struct.calcsize("<" + _SCALARS[item_kind]))
        elif item_kind == _STRING:
            for _ in range(num_items):
                self.skip(self.scalar("Q"))
        else:
            raise CheckpointError(f"{self.path} has a long array of arrays", seen=f"{num_items} items")
        return SkippedArray(num_items)

    def skip(self, length: int) -> None:
        if length > self.size - self.at:
            raise CheckpointError(f"{self.path} is truncated inside its header", seen=f"{self.size} bytes")
        self.at += length

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self.text(), self.scalar("I")
        if num_dims > 8:
            raise CheckpointError(
                f"{self.path}: tensor {name[:200]!r} has too many dimensions", seen=num_dims
            )
        shape = tuple(self.scalar("Q") for _ in range(num_dims))[::-1]
        return name, shape, self.scalar("I"), self.scalar("Q")

    def tensors(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: Any
    ) -> tuple[TensorHeader, ...]:
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            raise CheckpointError(f"{self.path} has an impossible alignment", seen=alignment)
        base = -(-self.at // alignment) * alignment
        return tuple(self.tensor(base, *info) for info in infos)

    def tensor(self, base: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorHeader:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            quantisation = GGMLQuantizationType(kind)
        except ValueError as exc:
            raise CheckpointError(
                f"{self.path}: tensor {name[:200]!r} has an unknown type", seen=kind
            ) from exc
        block_len, block_bytes = GGML_QUANT_SIZES[quantisation]
        num_values = 1
        for length in shape:
            num_values *= length
        if num_values % block_len:
            raise CheckpointError(f"{self.path}: tensor {name[:200]!r} has an impossible shape", seen=shape)
        start = base + offset
        end = start + num_values // block_len * block_bytes
        if end > self.size:
            raise CheckpointError(
                f"{self.path} is truncated: tensor {name[:200]!r} reaches beyond the end of the file",
                seen=f"{self.size} bytes",
                allowed=f"{end} bytes",
                remedy="Fetch the file again",
            )
        return TensorHeader(name, quantisation.name, shape, self.path.name, start, end)
