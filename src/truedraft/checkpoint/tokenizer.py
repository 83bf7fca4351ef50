"""Reads what tokenizer files say about vocabulary and special tokens, without a tokenizer library."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from truedraft.checkpoint.files import read_json_object
from truedraft.contract.reading import TokenizerFacts

MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # vocabularies of 260,000 tokens take about 33 MB


def read_tokenizer_facts(folder: Path) -> TokenizerFacts | None:
    """→ facts from tokenizer.json (and tokenizer_config.json), or None without them.

    Raises CheckpointError where a file is there and is not readable JSON.
    """
    file, config_file = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not file.is_file():
        return None
    data = read_json_object(file, limit=MAX_TOKENIZER_BYTES)
    config = read_json_object(config_file) if config_file.is_file() else {}
    ids = _vocabulary(data)
    special: dict[str, int] = {}
    added = data.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            ids[entry["content"]] = entry["id"]
            if entry.get("special") is True:
                special[entry["content"]] = entry["id"]
    has_template = "chat_template" in config or (folder / "chat_template.jinja").is_file()
    return TokenizerFacts(max(ids.values()) + 1 if ids else None, special, _fingerprint(ids), has_template)


def _vocabulary(data: dict[str, Any]) -> dict[str, int]:
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return {token: index for token, index in vocab.items() if type(index) is int}
    if isinstance(vocab, list):  # unigram: [[piece, score], …]
        return {
            str(entry[0]): index for index, entry in enumerate(vocab) if isinstance(entry, list) and entry
        }
    return {}


def _fingerprint(ids: dict[str, int]) -> str | None:
    if not ids:
        return None
    tokens = sorted(ids, key=ids.__getitem__)
    text = "\n".join(tokens) + "\0" + ",".join(map(str, sorted(ids.values())))
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
