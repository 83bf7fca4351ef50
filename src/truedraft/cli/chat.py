"""`truedraft chat`: talk to a pair, and see which words were drafted."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from truedraft.cli import compose
from truedraft.cli.chat_session import ChatSession
from truedraft.cli.chat_turn import ChatSource
from truedraft.cli.chat_view import ChatView
from truedraft.cli.options import JsonFlag, PairOptions, QuietFlag, takes_records
from truedraft.cli.output import speaker
from truedraft.cli.requests import SamplingOptions
from truedraft.config.schema import parse_speculation
from truedraft.errors import ConfigError

_ENGINE_ONLY = ("device", "dtype", "kernels", "threads", "max_model_len", "draft_vocab", "max_num_seqs")
_DEFAULT = asdict(PairOptions())


@takes_records
def chat(
    pair: PairOptions,
    sampling: SamplingOptions,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A running server, http://127.0.0.1:8000, instead of a pair."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The server's key.", envvar="TRUEDRAFT_API_KEY")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    marks: Annotated[bool, typer.Option("--marks", help="Put ‹ › around drafted text.")] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Talk to a running server, or to a pair in this process.

    Drafted text that the target confirmed is green, the target's own tokens are yellow, plain
    decoding has no colour. Without colours (NO_COLOR, or a pipe) the text is plain; --marks or /marks
    puts ‹ › around what was drafted. After each answer: tokens, τ, tokens a second, share drafted.

    In the chat: /speculation off|auto|N, /stats, /marks, /clear, /quit. Ctrl-C stops an answer.
    With --json every line of stdin is a message and every answer one JSON object.

    \b
    Examples:
      truedraft chat --demo
      truedraft chat --url http://127.0.0.1:8000
      truedraft chat TARGET --draft DRAFT --temperature 0.7 --system "You answer in one sentence."
      echo "Name three rivers." | truedraft chat --demo --json
    """
    if url is not None:
        _check_beside_url(pair)
    params = sampling.sampling_params(pair.seed)
    speculation = parse_speculation(pair.speculation)
    say = speaker(quiet=quiet)
    with asyncio.Runner() as runner:
        source: ChatSource
        if url is not None:
            from truedraft.cli.chat_remote import RemoteSource

            source = runner.run(RemoteSource.connect(url, api_key))
        else:
            from truedraft.cli.chat_local import LocalSource

            source = LocalSource(compose.load_backend(pair, say=say, max_num_seqs=1))
        session = ChatSession(source, params, speculation, ChatView(marks=marks), system=system)
        try:
            _read_lines(session, runner, as_json=as_json, quiet=quiet)
        finally:
            runner.run(source.close())


def _check_beside_url(pair: PairOptions) -> None:
    """Raise ConfigError for a flag that would have no effect: the server chose its pair and engine."""
    if pair.demo or pair.target is not None or pair.draft is not None:
        raise ConfigError(
            "--url names a server; it has its own pair", remedy="Leave out TARGET, --draft and --demo"
        )
    given = [f"--{name.replace('_', '-')}" for name in _ENGINE_ONLY if getattr(pair, name) != _DEFAULT[name]]
    if given:
        raise ConfigError(
            "--url names a server; its engine was set up when it started",
            seen=", ".join(given),
            remedy="Leave it out, or give it to `truedraft serve`",
        )


def _read_lines(session: ChatSession, runner: asyncio.Runner, *, as_json: bool, quiet: bool) -> None:
    """Answer line after line until /quit or the end of input."""
    interactive = sys.stdin.isatty() and not as_json
    if interactive:
        import readline  # noqa: F401 (line editing for input())
    if not quiet and not as_json:
        session.greet()
    while not session.ended:
        try:
            line = input("you> " if interactive else "")
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return
        if as_json:
            session.answer_json(runner, line)
        else:
            session.take(runner, line)
