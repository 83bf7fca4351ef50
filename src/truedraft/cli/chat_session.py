"""A conversation: its messages, its slash commands, and its answers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from truedraft.cli.chat_turn import ChatSource, Message, TurnStats
from truedraft.cli.chat_view import ChatView, stats_line
from truedraft.cli.output import counted, print_json
from truedraft.config.schema import parse_speculation
from truedraft.contract.request import SamplingParams, Speculation
from truedraft.errors import TruedraftError

_COMMANDS = "/speculation off|auto|N, /stats, /marks, /clear, /help, /quit"


class ChatSession:
    """Holds the messages; `take` handles one line of input. Errors of one answer do not end it."""

    def __init__(
        self,
        source: ChatSource,
        sampling: SamplingParams,
        speculation: Speculation,
        view: ChatView,
        *,
        system: str | None = None,
    ) -> None:
        self.ended = False
        self._source = source
        self._sampling = sampling
        self._speculation = speculation
        self._view = view
        self._system: list[Message] = [{"role": "system", "content": system}] if system is not None else []
        self._messages = list(self._system)
        self._turns: list[TurnStats] = []

    def greet(self) -> None:
        """Say whom one talks to and how to read the answers."""
        self._view.line(f"{self._source.name} · {_COMMANDS}")
        self._view.line(self._view.legend())

    def take(self, runner: asyncio.Runner, line: str) -> None:
        """Do one command, or answer one message."""
        if not line.strip():
            return
        if line.startswith("/"):
            self._command(line.strip())
            return
        try:
            stats = runner.run(self._answer(line))
        except KeyboardInterrupt:
            self._view.end_answer()
            self._view.line("[stopped]")
            return
        except TruedraftError as error:
            self._view.end_answer()
            self._view.line(f"error: {error}")
            return
        self._view.end_answer()
        self._view.line(f"[{stats_line(stats)}]")

    def answer_json(self, runner: asyncio.Runner, line: str) -> None:
        """Answer one message with one JSON object. Raises what the answer raises."""
        if not line.strip():
            return
        stats = runner.run(self._answer(line, show=False))
        print_json({"text": self._messages[-1]["content"], **describe_turn(stats)})

    async def _answer(self, line: str, *, show: bool = True) -> TurnStats:
        """Ask, show and remember one turn; a turn that fails or is stopped leaves no message."""
        asked: Message = {"role": "user", "content": line}
        pieces: list[str] = []
        stats: TurnStats | None = None
        stream = self._source.stream([*self._messages, asked], self._sampling, self._speculation)
        async with aclosing(stream) as parts:
            async for part in parts:
                if isinstance(part, TurnStats):
                    stats = part
                    continue
                pieces.append(part.text)
                if show:
                    self._view.write(part)
        assert stats is not None, "a source ends with TurnStats or raises"
        self._messages += [asked, {"role": "assistant", "content": "".join(pieces)}]
        self._turns.append(stats)
        return stats

    def _command(self, line: str) -> None:
        name, _, value = line[1:].partition(" ")
        if name in ("quit", "exit", "q"):
            self.ended = True
        elif name == "clear":
            self._messages = list(self._system)
            self._view.line("[conversation cleared]")
        elif name == "marks":
            self._view.marks = not self._view.marks
            self._view.line(f"[marks {'on' if self._view.marks else 'off'}]")
        elif name == "stats":
            self._view.line(f"[{self._totals()}]")
        elif name == "speculation":
            self._set_speculation(value)
        elif name == "help":
            self._view.line(_COMMANDS)
        else:
            self._view.line(f"unknown command /{name}; there are {_COMMANDS}")

    def _set_speculation(self, value: str) -> None:
        if value.strip():
            try:
                self._speculation = parse_speculation(value)
            except TruedraftError as error:
                self._view.line(f"error: {error}")
                return
        self._view.line(f"[speculation {self._speculation}]")

    def _totals(self) -> str:
        if not self._turns:
            return "nothing said yet"
        total = TurnStats(
            num_tokens=sum(turn.num_tokens for turn in self._turns),
            num_drafted_kept=sum(turn.num_drafted_kept for turn in self._turns),
            num_rounds=sum(turn.num_rounds for turn in self._turns),
            num_committed=sum(turn.num_committed for turn in self._turns),
            total_s=sum(turn.total_s for turn in self._turns),
            finish_reason="",
        )
        return (
            f"{counted(len(self._turns), 'answer')} · {stats_line(total)} · speculation {self._speculation}"
        )


def describe_turn(stats: TurnStats) -> dict[str, Any]:
    """Figures of one answer for JSON."""
    return {
        "num_tokens": stats.num_tokens,
        "num_rounds": stats.num_rounds,
        "tau": stats.tau,
        "tok_per_s": stats.tok_per_s,
        "drafted_frac": stats.drafted_frac,
        "finish_reason": stats.finish_reason,
    }
