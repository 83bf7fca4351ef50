"""`truedraft diagnose`: what a log, metrics, a benchmark, a command and configs say together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from truedraft.cli.options import JsonFlag, unwrap
from truedraft.cli.output import print_json
from truedraft.errors import ConfigError

PLAIN = ("fine", "broken")


def diagnose_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE…|-]",
            help="Logs, /metrics texts, benchmark JSON, launch commands, model folders; - is stdin.",
            show_default=False,
        ),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(metavar="V", help="The engine's release, where no source says it.")
    ] = None,
    plain: Annotated[
        str | None,
        typer.Option(metavar="fine|broken", help="What answers are like without the drafter, if you know."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain a log, metrics, a benchmark or a command: what failed, and why.

    Takes any mix of: a log of vLLM, SGLang or llama.cpp; /metrics read once or twice; the JSON of a
    serving benchmark, with and without the drafter; the launch command; the pair's folders. Each is
    known by its content, also when all of them are pasted together. Shows engine, release, phase
    reached, the first real error, acceptance by position with its invariants checked, and likely
    causes in order with what speaks for and against each and what to measure next. Says so where it
    does not know. Exit code 0 whenever a diagnosis was made.

    \b
    Examples:
      truedraft diagnose server.log
      truedraft diagnose before.txt after.txt server.log DRAFT TARGET
      curl -s localhost:8000/metrics | truedraft diagnose -
      truedraft diagnose with.json without.json --json
    """
    from truedraft.cli.diagnose_sources import read_sources
    from truedraft.cli.diagnose_view import diagnosis_json, print_diagnosis
    from truedraft.diagnosis.explain import explain
    from truedraft.diagnosis.facts import parse_version

    if plain is not None and plain not in PLAIN:
        raise ConfigError("--plain is out of range", seen=plain, allowed=", ".join(PLAIN))
    version = None if engine_version is None else parse_version(engine_version)
    if engine_version is not None and version is None:
        raise ConfigError("The engine's version has no number", seen=engine_version, allowed="like 0.33.0")
    evidence, kinds = read_sources(
        _named(files), version=version, target_only_broken=None if plain is None else plain == "broken"
    )
    diagnosis = explain(evidence)
    if as_json:
        print_json(diagnosis_json(diagnosis, evidence, kinds))
    else:
        print_diagnosis(diagnosis, evidence, kinds)


diagnose_command.__doc__ = unwrap(diagnose_command.__doc__ or "")


def _named(files: list[str] | None) -> list[str]:
    if files:
        return files
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(
            "Nothing to diagnose was named",
            remedy="Name files, or paste into `truedraft diagnose -` and end with Ctrl-D",
        )
    return ["-"]
