"""What `truedraft recover` is asked: which pair, and what to measure it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from truedraft.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    """The pair and the calibration text."""

    draft: Annotated[
        str | None,
        typer.Argument(metavar="DRAFT", help="DFlash drafter: a folder or a hub id.", show_default=False),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="TARGET", help="Its target: a folder, a GGUF file or a hub id."
        ),
    ] = None
    demo: Annotated[
        bool, typer.Option("--demo", help="The embedded pair; with DRAFT, its target and that drafter.")
    ] = False
    draft_option: Annotated[
        str | None, typer.Option("--draft", "-d", metavar="DRAFT", help="The same as the argument.")
    ] = None
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prompts (JSONL) or plain text to measure on, instead of built-in prompts."
        ),
    ] = None
    num_prompts: Annotated[int, typer.Option(metavar="N", min=2, max=48, help="Built-in prompts.")] = 16
    num_tokens: Annotated[
        int, typer.Option(metavar="N", min=16, max=4096, help="Longest answer to a prompt.")
    ] = 96
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to run.")] = "auto"
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads.")] = None
    keep: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the target's states for the next run.")
    ] = True

    @property
    def drafter(self) -> str | None:
        """The drafter, however it was named; None: the demo's."""
        return self.draft or self.draft_option

    def check(self) -> None:
        """Raise ConfigError unless exactly one pair was named."""
        if self.draft is not None and self.draft_option is not None:
            raise ConfigError("The drafter was named twice", remedy="Give DRAFT or --draft")
        if self.demo and self.target is not None:
            raise ConfigError("--demo brings its own target", remedy="Leave out --target, or --demo")
        if not self.demo and (self.drafter is None or self.target is None):
            raise ConfigError("No pair was named", remedy="Give DRAFT --target TARGET, or --demo")
