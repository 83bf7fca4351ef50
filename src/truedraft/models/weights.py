"""Fills modules from safetensors: names and shapes are checked against the spec first, all at once.

Only safetensors is read: pickled weights can run code when they are opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from truedraft.errors import CheckpointError
from truedraft.models.slots import Slot

_FLOATS = {"F64", "F32", "F16", "BF16"}
_INTEGERS = {"I64", "I32"}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MOST_NAMED = 4  # names shown of each kind of misfit


class Loadable(Protocol):
    """A module that says which checkpoint tensors it is made of."""

    def slots(self) -> list[Slot]: ...

    def surplus(self) -> frozenset[str]:
        """Names that may be in the file without a use."""
        ...


class TensorSource(Protocol):
    """Named tensors: a folder of safetensors, or a dict in memory."""

    name: str

    def headers(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Name → (safetensors dtype, shape)."""
        ...

    def tensor(self, name: str) -> Tensor: ...


class DictSource:
    """Tensors at hand in memory."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str = "memory") -> None:
        self.name = name
        self._tensors = tensors

    def headers(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        return {
            name: ("F32" if tensor.is_floating_point() else "I64", tuple(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


class FolderSource:
    """A checkpoint folder, memory-mapped: one `.safetensors` file or several under an index.

    Use as a context manager. Raises CheckpointError where the folder, a file or the index is
    missing, corrupt or cut short, or where the weights are in a pickle format only.
    """

    def __init__(self, folder: str | Path) -> None:
        self.name = str(folder)
        self._folder = Path(folder)
        self._files = ExitStack()
        self._by_tensor: dict[str, Any] = {}
        self._headers: dict[str, tuple[str, tuple[int, ...]]] = {}

    def __enter__(self) -> FolderSource:
        with self._files as opened:
            for path in _weight_files(self._folder):
                self._open(path)
            self._files = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._by_tensor.clear()
        self._files.close()

    def headers(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        return self._headers

    def tensor(self, name: str) -> Tensor:
        try:
            return self._by_tensor[name].get_tensor(name)
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"Tensor {name} of {self.name} cannot be read: {error}") from error

    def _open(self, path: Path) -> None:
        try:
            file = self._files.enter_context(safe_open(str(path), framework="pt", device="cpu"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                view = file.get_slice(name)
                self._headers[name] = (str(view.get_dtype()), tuple(view.get_shape()))
                self._by_tensor[name] = file
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} is not a whole safetensors file: {error}", remedy="Fetch or convert it again"
            ) from error


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CheckpointError("This checkpoint folder does not exist", seen=str(folder))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed_files(index)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if not files:
        pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        raise CheckpointError(
            f"{folder} holds no safetensors file",
            seen=", ".join(pickles) or None,
            allowed="model.safetensors, or model.safetensors.index.json and its files",
            remedy="Convert pickled weights (.bin, .pt) to safetensors: opening them can run code"
            if pickles
            else None,
        )
    named = [path for path in files if path.name == "model.safetensors"]
    if named:
        return named
    raise CheckpointError(
        f"{folder} holds several safetensors files but no index", seen=", ".join(p.name for p in files)
    )


def _indexed_files(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is not an index of safetensors files") from error
    files = [index.parent / str(name) for name in sorted(map(str, names))]
    if any(path.parent != index.parent for path in files):
        raise CheckpointError(f"{index} names files outside of its folder", seen=sorted(map(str, names)))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(f"{index} names files that do not exist", seen=", ".join(missing))
    return files


def check(module: Loadable, source: TensorSource) -> None:
    """Raises one CheckpointError that lists all missing, unexpected and mis-shaped tensors."""
    headers = source.headers()
    wanted = {part.name: part.shape for slot in module.slots() for part in slot.parts}
    surplus = module.surplus()
    missing = [name for name in wanted if name not in headers]
    unexpected = [
        name for name in headers if name not in wanted and name not in surplus and not _is_derived(name)
    ]
    wrong = [
        f"{name} {list(headers[name][1])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in headers and headers[name][1] != shape
    ]
    odd = [
        f"{name} {headers[name][0]}"
        for name in wanted
        if name in headers and headers[name][0] not in (_INTEGERS if name == "d2t" else _FLOATS)
    ]
    found = {"missing": missing, "unexpected": unexpected, "of another shape": wrong, "of a dtype": odd}
    if any(found.values()):
        parts = [f"{len(names)} {kind} ({_some(names)})" for kind, names in found.items() if names]
        raise CheckpointError(
            f"The tensors of {source.name} are not those of its config: " + "; ".join(parts)
        )


def fill(module: nn.Module, source: TensorSource, device: torch.device | str = "cpu") -> None:
    """Check `source`, then give every parameter of `module` (a Loadable) its values, cast to its dtype.

    Afterwards the module is in eval mode and no tensor is on `meta`. Raises CheckpointError.
    """
    check(module, source)  # type: ignore[arg-type]
    slots: Sequence[Slot] = module.slots()  # type: ignore[operator]
    empty = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {slot.param: _assembled(slot, source, empty[slot.param], device) for slot in slots}
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False)
    module.eval()
    left = [name for name, tensor in _all_tensors(module) if tensor.is_meta]
    assert not left, f"tensors without values after loading: {left}"


def _assembled(slot: Slot, source: TensorSource, like: Tensor, device: torch.device | str) -> Tensor:
    """A new, aligned tensor with the parts stacked along axis 0; the file is not kept mapped."""
    filled = torch.empty(like.shape, dtype=like.dtype, device=device)
    row = 0
    for part in slot.parts:
        filled[row : row + part.shape[0]].copy_(source.tensor(part.name))
        row += part.shape[0]
    assert row == filled.shape[0], f"{slot.param}: {row} rows for {filled.shape[0]}"
    return filled


def parts_of(module: nn.Module) -> dict[str, Tensor]:
    """The reverse of `fill`: checkpoint names → tensors (views of the parameters), for saving."""
    tensors = dict(_all_tensors(module))
    parts: dict[str, Tensor] = {}
    for slot in module.slots():  # type: ignore[operator]
        row = 0
        for part in slot.parts:
            parts[part.name] = tensors[slot.param][row : row + part.shape[0]]
            row += part.shape[0]
    return parts


def _all_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _is_derived(name: str) -> bool:
    """Old checkpoints carry the rotary frequencies, which follow from the config."""
    return name.endswith("rotary_emb.inv_freq")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
