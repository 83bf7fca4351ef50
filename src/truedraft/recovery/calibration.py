"""Reads a calibration file: prompts to answer, token ids as they are, or plain text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from truedraft.errors import ConfigError
from truedraft.recovery.texts import Text

PIECE_LEN = 384  # tokens of a plain text measured as one
_SHAPE = '{"prompt": "…"} or {"token_ids": [ … ], "num_prompt_tokens": n} a line'


@dataclass(frozen=True, slots=True)
class Calibration:
    """`prompts` are answered by the target; `texts` are measured as they are."""

    prompts: tuple[tuple[int, ...], ...] = ()
    texts: tuple[Text, ...] = ()

    def key(self) -> list[object]:
        """Plain values that say which calibration this is."""
        return [list(map(list, self.prompts)), [[list(t.token_ids), t.num_prompt_tokens] for t in self.texts]]


def read_calibration(
    file: Path,
    *,
    vocab_size: int,
    encode: Callable[[str], tuple[int, ...]],
    encode_prompt: Callable[[str], tuple[int, ...]],
) -> Calibration:
    """`.jsonl`: prompts or token ids; anything else is plain text, cut into pieces.

    Raises ConfigError where the file cannot be read or says something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("The calibration file cannot be read", seen=f"{file} ({error})") from error
    if not text.strip():
        raise ConfigError("The calibration file is empty", seen=str(file), allowed=_SHAPE + ", or plain text")
    if file.suffix != ".jsonl":
        ids = encode(text)
        pieces = [ids[first : first + PIECE_LEN] for first in range(0, len(ids), PIECE_LEN)]
        return Calibration(texts=tuple(Text(piece, 0) for piece in pieces if len(piece) > 1))
    prompts: list[tuple[int, ...]] = []
    texts: list[Text] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = _line(line, f"{file}, line {number}", vocab_size)
        if isinstance(found, str):
            prompts.append(encode_prompt(found))
        else:
            texts.append(found)
    return Calibration(tuple(prompts), tuple(texts))


def _line(line: str, where: str, vocab_size: int) -> str | Text:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON", seen=line, allowed=_SHAPE) from error
    if isinstance(value, dict) and isinstance(value.get("prompt"), str) and value["prompt"].strip():
        return str(value["prompt"])
    ids = value.get("token_ids") if isinstance(value, dict) else None
    if not isinstance(ids, list) or len(ids) < 2:
        raise ConfigError(f"{where}: neither a prompt nor token ids", seen=line, allowed=_SHAPE)
    start = value.get("num_prompt_tokens", 0)
    if not all(type(one) is int and 0 <= one < vocab_size for one in ids):
        raise ConfigError(f"{where}: a token id is outside the vocabulary", allowed=f"0 to {vocab_size - 1}")
    if type(start) is not int or not 0 <= start < len(ids):
        raise ConfigError(f"{where}: `num_prompt_tokens` is impossible", seen=start)
    return Text(tuple(ids), start)
