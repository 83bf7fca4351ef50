"""Token ids → text while they arrive: whole characters only, and stop strings caught on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_PENDING = 16  # tokens held back before it is asked whether they are broken, and not just incomplete
MAX_CHAR_TOKENS = 4  # a character has at most four bytes, hence tokens

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Decodes a growing answer. Text that may still change (half a character) is held back."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._prefix_at = 0  # decoding starts here, so that joins between tokens come out right
        self._read_at = 0  # everything before was given out

    def push(self, token_id: int) -> str:
        """Add one token. → the text that is certain now, often empty."""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._prefix_at : self._read_at])
        text = self._decode(self._ids[self._prefix_at :])
        if text.endswith(REPLACEMENT) or len(text) <= len(known):
            return self._cut(known, text) if len(self._ids) - self._read_at > MAX_PENDING else ""
        self._prefix_at = self._read_at
        self._read_at = len(self._ids)
        return text[len(known) :]

    def _cut(self, known: str, text: str) -> str:
        """Give broken bytes out up to a place where nothing joins, so that they do not pile up."""
        for at in range(len(self._ids) - 1, len(self._ids) - 1 - MAX_CHAR_TOKENS, -1):
            head, tail = self._decode(self._ids[self._prefix_at : at]), self._decode(self._ids[at:])
            if head + tail == text and head.startswith(known):
                self._prefix_at = self._read_at = at
                return head[len(known) :]
        return ""

    def flush(self) -> str:
        """The text still held back, replacement characters included."""
        known = self._decode(self._ids[self._prefix_at : self._read_at])
        text = self._decode(self._ids[self._prefix_at :])
        self._read_at = len(self._ids)
        return text[len(known) :]


class StopStrings:
    """Finds the first stop string in a stream of text, however it is cut into pieces."""

    def __init__(self, stops: Sequence[str], *, keep: bool) -> None:
        self._stops = [stop for stop in stops if stop]
        self._keep = keep
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """→ (text that may go out, the stop string that ended the answer or None)."""
        if not self._stops:
            return text, None
        self._held += text
        found = min(
            ((at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0),
            default=None,
            key=lambda hit: (hit[0] + len(hit[1]), hit[0]),
        )
        if found is not None:
            at, stop = found
            out = self._held[: at + len(stop)] if self._keep else self._held[:at]
            self._held = ""
            return out, stop
        holdback = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - holdback
        out, self._held = self._held[:cut], self._held[cut:]
        return out, None

    def flush(self) -> str:
        """The text still held back: the answer ended without a stop string."""
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
