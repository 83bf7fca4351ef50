"""A tokenizer without files: one token a byte, and three special ones in the manner of ChatML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from truedraft.errors import RequestError

SPECIALS = {"<|bos|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
BOS_ID, EOS_ID = 256, 258
VOCAB_SIZE = 259
_TEXTS = {token_id: text for text, token_id in SPECIALS.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in SPECIALS) + ")")


class ByteTokenizer:
    """Ids 0 to 255 are bytes. Special-token text in the input becomes the special token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        ids: list[int] = [BOS_ID] if add_special_tokens else []
        for piece in _SPLIT.split(text):
            if piece in SPECIALS:
                ids.append(SPECIALS[piece])
            else:
                ids.extend(piece.encode("utf-8", errors="replace"))
        return tuple(ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        data = bytearray()
        for token_id in token_ids:
            if token_id < 256:
                data.append(token_id)
            elif not skip_special_tokens:
                data.extend(_TEXTS[token_id].encode())
        return data.decode("utf-8", errors="replace")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Conversation → text. Raises RequestError where the two switches contradict each other."""
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "`continue_final_message` and `add_generation_prompt` exclude each other",
                param="continue_final_message",
            )
        parts = []
        if tools:
            listing = "\n".join(json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in tools)
            parts.append(f"<|im_start|>tools\n{listing}<|im_end|>\n")
        for message in messages:
            content = message.get("content") or ""
            calls = message.get("tool_calls")
            if calls:
                content += json.dumps(calls, ensure_ascii=False, sort_keys=True)
            parts.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
        text = "".join(parts)
        if continue_final_message:
            return text.removesuffix("<|im_end|>\n")
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class Utf8Stream:
    """Bytes in, whole characters out; what is left incomplete waits for more."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """→ the characters that are complete by now; at the end broken ones become U+FFFD."""
        data = self._pending + data
        self._pending = b""
        if not final:
            cut = _incomplete_tail(data)
            data, self._pending = data[: len(data) - cut], data[len(data) - cut :]
        return data.decode("utf-8", errors="replace")


def _incomplete_tail(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if size > back else 0
    return 0
