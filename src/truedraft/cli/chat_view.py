"""How a chat looks: colours by origin on a terminal, marks where colours are off, plain in a pipe."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from truedraft.cli.chat_turn import Origin, Piece, TurnStats
from truedraft.cli.output import printable
from truedraft.contract.units import format_rate

_RESET = "\x1b[0m"
_COLOURS = {Origin.DRAFTED: "\x1b[32m", Origin.OWN: "\x1b[33m"}  # green, yellow; plain text as it is
_OPEN, _CLOSE = "‹", "›"


def wants_colour(file: TextIO) -> bool:
    """Colours: on a terminal that has them, unless NO_COLOR is set (to anything but nothing)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class ChatView:
    """Writes pieces of an answer as they come.

    `marks`: put ‹ › around drafted text; without colours that is how origins show, and off by
    default so that the text stays easy to read.
    """

    def __init__(
        self, file: TextIO | None = None, *, colour: bool | None = None, marks: bool = False
    ) -> None:
        self._file = file or sys.stdout
        self.colour = wants_colour(self._file) if colour is None else colour
        self.marks = marks
        self._origin: Origin | None = None

    def legend(self) -> str:
        """One line on how to read the answer."""
        if self.colour:
            drafted, own = (self._paint(one.value, one) for one in (Origin.DRAFTED, Origin.OWN))
            return (
                f"{drafted}: guessed by the drafter, confirmed by the target; {own}: the target's own token"
            )
        state = "off with" if self.marks else "on with"
        return f"no colours here; ‹marks› around drafted text: {state} /marks"

    def write(self, piece: Piece) -> None:
        """Write one piece and flush."""
        text = printable(piece.text)
        if self.marks and piece.origin is not self._origin:
            self._close_mark()
            if piece.origin is Origin.DRAFTED:
                self._file.write(_OPEN)
        self._origin = piece.origin
        self._file.write(self._paint(text, piece.origin))
        self._file.flush()

    def end_answer(self) -> None:
        """Close what is open and end the line."""
        self._close_mark()
        self._origin = None
        self._file.write("\n")
        self._file.flush()

    def line(self, text: str) -> None:
        """A line of ours, not the model's."""
        dim = f"\x1b[2m{text}{_RESET}" if self.colour else text
        self._file.write(f"{dim}\n")
        self._file.flush()

    def _close_mark(self) -> None:
        if self.marks and self._origin is Origin.DRAFTED:
            self._file.write(_CLOSE)

    def _paint(self, text: str, origin: Origin) -> str:
        colour = _COLOURS.get(origin) if self.colour else None
        return f"{colour}{text}{_RESET}" if colour else text


def stats_line(stats: TurnStats) -> str:
    """`42 tokens · τ 3.10 · 71.2 tok/s · 68 % drafted`."""
    parts = [f"{stats.num_tokens} tokens"]
    if stats.tau is not None:
        parts.append(f"τ {stats.tau:.2f}")
    parts.append(format_rate(stats.tok_per_s))
    parts.append(f"{stats.drafted_frac:.0%} drafted" if stats.num_rounds else "plain")
    if stats.finish_reason not in ("stop", ""):
        parts.append(f"ended by {stats.finish_reason}")
    return " · ".join(parts)
