"""`truedraft recover`: find by measurement what a drafter's config says wrongly, or does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from truedraft.cli.exit_codes import CHECKPOINT
from truedraft.cli.options import JsonFlag, QuietFlag
from truedraft.cli.output import print_json, speaker
from truedraft.errors import ConfigError


def recover(
    draft: Annotated[
        str | None, typer.Argument(metavar="DRAFT", help="DFlash drafter: a folder or a hub id.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="TARGET", help="Its target: a folder, a GGUF file or a hub id."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The embedded pair; with DRAFT, its target and that drafter.")
    ] = False,
    draft_option: Annotated[
        str | None, typer.Option("--draft", "-d", metavar="DRAFT", help="The same as the argument.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prompts (JSONL) or plain text to measure on, instead of built-in prompts."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the corrected config here; weights are linked."),
    ] = None,
    num_prompts: Annotated[int, typer.Option(metavar="N", min=2, max=48, help="Built-in prompts.")] = 16,
    num_tokens: Annotated[
        int, typer.Option(metavar="N", min=16, max=4096, help="Longest answer to a prompt.")
    ] = 96,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to run.")] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads.")] = None,
    keep: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the target's states for the next run.")
    ] = True,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find by measurement what a drafter's config says wrongly, or does not say.

    Runs the target once over its own greedy answers, then the drafter under every alternative:
    capture layers, mask token, block layout and length, windows, causality, rope, embedding scale.
    Prints what fits best and how sure that is; says undecided where the texts do not tell. Exit
    code 2 where the drafter cannot be measured, 5 where it drafts nothing whatever is tried.

    \b
    Examples:
      truedraft recover DRAFT --target TARGET
      truedraft recover DRAFT --target TARGET --out DRAFT-recovered
      truedraft recover --demo --json
    """
    if draft is not None and draft_option is not None:
        raise ConfigError("The drafter was named twice", remedy="Give DRAFT or --draft")
    draft = draft or draft_option
    if demo and target is not None:
        raise ConfigError("--demo brings its own target", remedy="Leave out --target, or --demo")
    if not demo and (draft is None or target is None):
        raise ConfigError("No pair was named", remedy="Give DRAFT --target TARGET, or --demo")
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already", remedy="Name a new folder")
    from truedraft.cli.recover_run import Wanted, run_recovery
    from truedraft.cli.recover_view import print_recovery, recovery_json

    wanted = Wanted(
        draft=draft,
        target=target,
        calibration=calibration,
        num_prompts=num_prompts,
        num_tokens=num_tokens,
        device=device,
        threads=threads,
        keep=keep,
    )
    done = run_recovery(wanted, say=speaker(quiet=quiet), bar=not quiet)
    written = done.write(out) if out is not None and done.found.usable else None
    if as_json:
        print_json(recovery_json(done, written))
    else:
        print_recovery(done, written)
    if not done.found.usable:
        raise typer.Exit(CHECKPOINT)
