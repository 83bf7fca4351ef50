"""`truedraft recover`: find by measurement what a drafter's config says wrongly, or does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from truedraft.cli.exit_codes import CHECKPOINT
from truedraft.cli.options import JsonFlag, QuietFlag, takes_records
from truedraft.cli.output import print_json, speaker
from truedraft.cli.recover_options import RecoverOptions
from truedraft.errors import ConfigError


@takes_records
def recover(
    options: RecoverOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the corrected config here; weights are linked."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find by measurement what a drafter's config says wrongly.

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
    options.check()
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already", remedy="Name a new folder")
    from truedraft.cli.recover_run import run_recovery
    from truedraft.cli.recover_view import print_recovery, recovery_json

    done = run_recovery(options, say=speaker(quiet=quiet), bar=not quiet)
    written = done.write(out) if out is not None and done.found.usable else None
    if as_json:
        print_json(recovery_json(done, written))
    else:
        print_recovery(done, written)
    if not done.found.usable:
        raise typer.Exit(CHECKPOINT)
