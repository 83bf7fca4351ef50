"""Turns TARGET or DRAFT as the user names them into a local folder or file."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from truedraft.checkpoint.files import list_folder, refuse_pickle
from truedraft.checkpoint.hub import fetch_snapshot
from truedraft.errors import CheckpointError

HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,100}))?"
)


@dataclass(frozen=True, slots=True)
class Located:
    """A checkpoint on this machine. `source` is what the user typed."""

    source: str
    path: Path
    kind: Literal["folder", "safetensors", "gguf"]
    hub: tuple[str, str | None] | None = None  # repository and revision where it came from the hub

    @property
    def load_path(self) -> Path:
        """→ what a loader opens: the folder also where the user named its only weight file."""
        if self.kind != "safetensors":
            return self.path
        siblings = [path.name for path in self.path.parent.glob("*.safetensors*")]
        return self.path.parent if siblings == [self.path.name] else self.path


def locate(where: str | Path, *, role: str, headers_only: bool = False) -> Located:
    """→ where the `role` ("target", "drafter") lies: a folder, a file, or a hub id (`org/name[@revision]`).

    A hub id is fetched through huggingface_hub into its own cache: configs, tokenizer files and
    safetensors only; with `headers_only` without the weights. Raises CheckpointError: no such path (with near names), no usable file, or a
    hub id that is neither cached nor reachable.
    """
    text = os.fspath(where)
    if not text.strip() or "\0" in text:
        raise CheckpointError(
            f"The {role} has an empty name", allowed="a folder, a .safetensors or .gguf file, a hub id"
        )
    path = Path(text).expanduser()
    try:
        is_there = path.exists()
    except OSError as exc:
        raise CheckpointError(f"Cannot look at the {role}", seen=f"{text[:200]}: {exc.strerror}") from exc
    if is_there:
        return _local(text, path, role)
    hub = HUB_ID.fullmatch(text)
    if hub is None or text.startswith((".", "~", "/")) or path.suffix in (".gguf", ".safetensors"):
        raise CheckpointError(f"There is no {role} at {text}", remedy=_near_names(path))
    repo, revision = hub["repo"], hub["revision"]
    path = fetch_snapshot(repo, revision, role, headers_only=headers_only)
    return Located(text, path, "folder", (repo, revision))


def _local(text: str, path: Path, role: str) -> Located:
    if path.is_dir():
        names = list_folder(path)
        ggufs = [name for name in names if name.endswith(".gguf")]
        if ggufs and not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
            if len(ggufs) > 1:
                raise CheckpointError(
                    f"{path} holds several GGUF files", seen=", ".join(ggufs), remedy="Name one of them"
                )
            return Located(text, path / ggufs[0], "gguf")
        return Located(text, path, "folder")
    refuse_pickle(path)
    if path.suffix == ".gguf":
        return Located(text, path, "gguf")
    if path.suffix == ".safetensors":
        return Located(text, path, "safetensors")
    raise CheckpointError(
        f"The {role} {text} is neither a folder nor a checkpoint file",
        allowed="a folder, a .safetensors or .gguf file",
    )


def _near_names(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"The folder {parent} does not exist either"
    try:
        names = list_folder(parent)
    except CheckpointError:
        return "Check the spelling of the path"
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    return (
        f"Near names there: {', '.join(near)}"
        if near
        else f"Check the path: nothing in {parent} has a similar name"
    )
