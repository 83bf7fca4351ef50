"""The `truedraft` command: its table of subcommands, and where every failure ends.

A subcommand's module is imported when that subcommand is called: `truedraft --help` knows their
names and first lines from the table, and stays quick.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from truedraft import __version__
from truedraft.cli.exit_codes import INTERRUPTED, OK, help_lines
from truedraft.config.threads import let_idle_threads_sleep

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("truedraft.cli.serve:serve", "Serve a pair on an OpenAI-compatible endpoint."),
    "generate": ("truedraft.cli.generate:generate", "Generate one answer and print it."),
    "chat": ("truedraft.cli.chat:chat", "Talk to a running server, or to a pair in this process."),
    "bench": ("truedraft.cli.bench:bench", "Measure plain decoding and DFlash on the same prompts."),
    "inspect": (
        "truedraft.cli.inspect_command:inspect_command",
        "Show what two checkpoints are, and whether they fit.",
    ),
    "diagnose": (
        "truedraft.cli.diagnose_command:diagnose_command",
        "Explain a log, metrics, a benchmark or a command: what failed, and why.",
    ),
    "rules": ("truedraft.cli.rules_command:rules_command", "List the rules that `truedraft inspect` checks."),
    "convert": (
        "truedraft.cli.convert_command:convert_command",
        "Write a drafter's config in another format.",
    ),
    "recover": ("truedraft.cli.recover:recover", "Find by measurement what a drafter's config says wrongly."),
    "demo-pair": ("truedraft.cli.demo_pair:app", "Fetch, find and remove the embedded pair's files."),
    "version": ("truedraft.cli.version:version", "Print the versions that decide results."),
}
"""Name → (where it is, first line of its help)."""

_HELP = f"""Serve a language model with a DFlash drafter: the same text, faster, and proven to be.

\b
Examples:
  truedraft serve --demo                       OpenAI-compatible, on port 8000
  truedraft generate --demo --prompt "Hello"   one answer
  truedraft chat --demo                        talk; drafted text is green
  truedraft bench --demo                       plain against DFlash
  truedraft inspect DRAFT --target TARGET      do these two fit?
  truedraft diagnose server.log metrics.txt    why does it fail, or draft for nothing?

\b
Exit codes:
{help_lines()}

\b
Environment:
  TRUEDRAFT_CACHE     folder for the demo pair and for crash reports
  TRUEDRAFT_API_KEY   key that `serve` asks for and `chat --url` sends
  TRUEDRAFT_DEBUG=1   show tracebacks
  NO_COLOR            no colours
"""


def build_app(loaded: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command tree. Commands outside `loaded` are names and first lines only."""
    app = typer.Typer(
        name="truedraft",
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (where, first_line) in COMMANDS.items():
        module, _, attribute = where.partition(":")
        command = getattr(import_module(module), attribute) if name in loaded else _placeholder(first_line)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def run(args: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    as_json = "--json" in args
    try:
        app = build_app(_named_in(args))
        outcome = app(args=list(args), prog_name="truedraft", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from truedraft.cli.failures import report_failure, report_usage

        if hasattr(error, "format_message"):  # the command line's own: unknown option, missing value
            return report_usage(error, as_json=as_json)
        return report_failure(error, as_json=as_json)
    return outcome if isinstance(outcome, int) else OK


def main() -> NoReturn:
    """Entry point of the `truedraft` script."""
    let_idle_threads_sleep()
    _open_missing_streams()
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(run(sys.argv[1:]))


def _on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """As Ctrl-C: temporary folders are removed on the way out. `serve` puts its own in this place."""
    sys.exit(128 + number)


def _open_missing_streams() -> None:
    """A process may be started with its standard streams closed: what it prints then goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - held to the end


def _named_in(args: Sequence[str]) -> Collection[str]:
    """The subcommand that `args` call; all of them for shell completion."""
    if "_TRUEDRAFT_COMPLETE" in os.environ:
        return tuple(COMMANDS)
    return [next((arg for arg in args if not arg.startswith("-")), "")]


def _placeholder(first_line: str) -> Callable[[], None]:
    def not_called() -> None:
        raise AssertionError("a subcommand that is called is loaded")

    not_called.__doc__ = first_line
    return not_called


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"truedraft {__version__}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of `truedraft` itself; the help text is the app's."""
