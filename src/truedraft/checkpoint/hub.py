"""Fetches checkpoints, or only their headers, from the hub: configs, tokenizer files, safetensors; no code."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

from truedraft.contract.specs import TensorHeader
from truedraft.errors import CapacityError, CheckpointError

SMALL_FILES = (
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
)
HUB_FILES = (*SMALL_FILES, "*.safetensors")


def fetch_snapshot(repo: str, revision: str | None, role: str, *, headers_only: bool = False) -> Path:
    """→ the local snapshot of a hub repository, fetched where it is not cached.

    `headers_only` leaves the weights there. Raises CheckpointError, and CapacityError where the
    cache's disk is full.
    """
    from huggingface_hub import snapshot_download

    patterns = list(SMALL_FILES if headers_only else HUB_FILES)
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except Exception as exc:
        _explain(exc, repo, revision, role)


def remote_tensor_headers(repo: str, revision: str | None) -> tuple[TensorHeader, ...]:
    """→ tensors of a hub repository by range requests, sorted by name; none where the hub cannot tell.

    Byte ranges count from the start of the data section.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        found = HfApi().get_safetensors_metadata(repo, revision=revision)
    except (HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError, httpx.HTTPError, OSError):
        return ()
    tensors = [
        TensorHeader(name, info.dtype, tuple(info.shape), file, info.data_offsets[0], info.data_offsets[1])
        for file, data in found.files_metadata.items()
        for name, info in data.tensors.items()
    ]
    return tuple(sorted(tensors, key=lambda tensor: tensor.name))


def _explain(exc: Exception, repo: str, revision: str | None, role: str) -> NoReturn:
    """Raise what a user can act on for a failure of huggingface_hub; others go on as they are."""
    import httpx
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    named = f"{repo}@{revision}" if revision else repo
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
        raise CapacityError(
            f"The disk of the hub cache is full: {named} was not fetched",
            remedy="Free some space, or set $HF_HOME",
        ) from exc
    if isinstance(exc, GatedRepoError):
        raise CheckpointError(
            f"The {role} {named} is gated", remedy="Ask for access on its page, then run `hf auth login`"
        ) from exc
    if isinstance(exc, RepositoryNotFoundError):
        raise CheckpointError(
            f"There is no {role} {named}: neither a local path nor a repository on the hub",
            remedy="Check the spelling; a private repository needs `hf auth login`",
        ) from exc
    if isinstance(exc, RevisionNotFoundError):
        raise CheckpointError(f"The {role} {repo} has no revision {revision}") from exc
    if isinstance(
        exc, LocalEntryNotFoundError | OfflineModeIsEnabled | HfHubHTTPError | httpx.HTTPError | OSError
    ):
        raise CheckpointError(
            f"The {role} {named} is neither a local path nor in the hub cache, and the hub cannot be reached",
            seen=type(exc).__name__,
            remedy=f"On a machine with a network run `hf download {repo}"
            + (f" --revision {revision}" if revision else "")
            + " --local-dir FOLDER`, copy FOLDER here, and name it instead",
        ) from exc
    raise exc
