"""Finds which characters of an answer were drafted."""

from __future__ import annotations

from collections.abc import Iterable

from truedraft.cli.chat_turn import Origin, Piece


class OriginMarks:
    """Cuts text into pieces of one origin each.

    Text may come later than its tokens (half a character, the start of a stop string), so this
    keeps, by characters since the start of the answer, where origins change.
    """

    def __init__(self) -> None:
        self._num_chars_known = 0  # characters that the tokens so far make
        self._num_chars_out = 0
        self._marks: list[tuple[int, Origin]] = []  # (ends at character, origin), not yet passed
        self._last = Origin.UNKNOWN

    def push(self, runs: Iterable[tuple[int, Origin]], text: str) -> list[Piece]:
        """`runs`: characters that new tokens make, by origin; `text`: what is to be shown now."""
        for num_chars, origin in runs:
            self._num_chars_known += max(0, num_chars)
            if self._marks and self._marks[-1][1] is origin:
                self._marks.pop()  # one piece for neighbours of one origin
            self._marks.append((self._num_chars_known, origin))
            self._last = origin
        pieces: list[Piece] = []
        while text:
            while self._marks and self._marks[0][0] <= self._num_chars_out:
                self._marks.pop(0)
            rest = (self._num_chars_out + len(text), self._last)
            end, origin = self._marks[0] if self._marks else rest
            taken = text[: end - self._num_chars_out]
            pieces.append(Piece(taken, origin))
            text = text[len(taken) :]
            self._num_chars_out += len(taken)
        return pieces
