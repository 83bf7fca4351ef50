"""`truedraft inspect`: what two checkpoints are, and whether they fit, from headers alone."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from truedraft.cli.exit_codes import CHECKPOINT
from truedraft.cli.findings_view import print_findings
from truedraft.cli.options import JsonFlag
from truedraft.cli.output import counted, print_json
from truedraft.contract.finding import Severity
from truedraft.errors import ConfigError


def inspect_command(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Target: a folder, a GGUF file, or a hub id.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", "-d", metavar="DRAFT", help="Drafter: a folder or a hub id.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="The embedded pair (fetched at first use).")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what two checkpoints are, and whether they fit.

    Reads configs and tensor headers, no weights: every value with where it came from, and a finding
    for every misfit that is known. Exit code 5 where the pair cannot be loaded. With --json one
    object: fits, target, drafter, findings.

    \b
    Examples:
      truedraft inspect TARGET --draft DRAFT
      truedraft inspect --draft DRAFT
      truedraft inspect --demo --json
    """
    where, drafter = _places(target, draft, demo)
    value, fits = _inspect(where, drafter, as_json=as_json)
    if as_json:
        print_json(value)
    if not fits:
        raise typer.Exit(CHECKPOINT)


def _places(target: str | None, draft: str | None, demo: bool) -> tuple[str | None, str | None]:
    if demo and (target is not None or draft is not None):
        raise ConfigError("--demo brings its own pair", remedy="Leave out TARGET and --draft, or --demo")
    if demo:
        from truedraft.cli.demo_files import demo_drafter, ensure_demo_target

        return str(ensure_demo_target(say=lambda line: print(line, file=sys.stderr))), str(demo_drafter())
    if target is None and draft is None:
        raise ConfigError(
            "Nothing to inspect was named", remedy="Give TARGET, --draft DRAFT, both, or --demo"
        )
    return target, draft


def _inspect(target: str | None, draft: str | None, *, as_json: bool) -> tuple[dict[str, Any], bool]:
    """→ the object for --json, and whether nothing failed; prints for people unless `as_json`."""
    from truedraft.checkpoint.target import read_target, read_target_files
    from truedraft.cli.inspect_pair import inspect, reading_json

    if draft is None:
        assert target is not None
        reading = read_target_files(target)
        if not as_json:
            print_reading("target", reading)
        read_target(target, needs_weights=False)  # raises where the config has gaps
        return {"fits": True, "target": reading_json(reading), "drafter": None, "findings": []}, True
    found = inspect(draft, target)
    if not as_json:
        if found.target is not None:
            print_reading("target", found.target)
        print_reading("drafter", found.drafter)
        print_findings(found.findings, file=sys.stdout)
        print(verdict_line(found.findings, with_target=target is not None))
    return found.to_json(), found.fits


def print_reading(role: str, reading: Any) -> None:
    """A line a value, in the spec's order, with where it came from."""
    print(f"{role}: {reading.source} ({reading.format})")
    for name, value in reading.values.items():
        origin = reading.origins.get(name)
        print(f"  {name:<22}{_shown(value):<28}{'' if origin is None else f'  {origin.where}'}".rstrip())
    if reading.missing:
        print(f"  not said anywhere: {', '.join(reading.missing)}")
    print()


def _shown(value: Any) -> str:
    """A value on one line; a list of one repeated value as `None × 30`."""
    if not isinstance(value, tuple):
        return str(value)
    if len(value) > 2 and len(set(value)) == 1:
        return f"{value[0]} × {len(value)}"
    text = ", ".join(map(str, value))
    return text if len(text) <= 60 else f"{text[:59]}…"


def verdict_line(findings: Any, *, with_target: bool) -> str:
    """The last line: fits or not, and how many findings of each kind."""
    numbers = {level: sum(one.severity is level for one in findings) for level in Severity}
    parts = [
        counted(numbers[level], noun)
        for level, noun in ((Severity.FAIL, "failure"), (Severity.WARN, "warning"), (Severity.INFO, "note"))
        if numbers[level]
    ]
    subject = "the pair" if with_target else "the drafter by itself"
    said = "does not fit" if numbers[Severity.FAIL] else "fits"
    return f"{subject} {said}: {', '.join(parts) or 'no findings'}"
