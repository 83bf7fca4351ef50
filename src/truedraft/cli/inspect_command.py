"""`truedraft inspect`: what two checkpoints are, and whether they fit, from headers alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from truedraft.cli.exit_codes import CHECKPOINT
from truedraft.cli.options import JsonFlag, takes_records
from truedraft.cli.output import print_json
from truedraft.errors import ConfigError

if TYPE_CHECKING:
    from truedraft.diagnosis.facts import RunFacts

_RUN = "Run"
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The engine and command that a pair is judged for."""

    engine: Annotated[
        str | None,
        typer.Option(
            metavar="local|vllm|vllm-ascend|sglang",
            help="Engine to judge for. Default: the command's, else local.",
            rich_help_panel=_RUN,
        ),
    ] = None
    engine_version: Annotated[
        str | None, typer.Option(metavar="V", help="Its release, for example 0.25.1.", rich_help_panel=_RUN)
    ] = None
    engine_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="The engine's own python on this machine: packages, variables and GPU are read too.",
            rich_help_panel=_RUN,
        ),
    ] = None
    command: Annotated[
        str | None,
        typer.Option(
            metavar="'vllm serve …'", help="The whole launch command, in quotes.", rich_help_panel=_RUN
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Longest prompt and answer together.", rich_help_panel=_RUN),
    ] = None
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Answers in progress at once.", rich_help_panel=_RUN)
    ] = None
    gpu_memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Memory of one GPU, to plan for.", rich_help_panel=_RUN),
    ] = None

    def facts(self) -> RunFacts:
        """→ what is known of the run. Raises ConfigError."""
        from truedraft.cli.run_facts import make_run_facts, read_gpu, with_this_machine
        from truedraft.diagnosis.command import parse_command
        from truedraft.diagnosis.facts import GpuFacts

        for name, value in (("--max-model-len", self.max_model_len), ("--max-num-seqs", self.max_num_seqs)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is out of range", seen=value, allowed="1 or more")
        if self.gpu_memory is not None and not 0 < self.gpu_memory < 1e6:
            raise ConfigError("--gpu-memory is out of range", seen=self.gpu_memory, allowed="GiB above 0")
        of_command = None if self.command is None else parse_command(self.command).engine
        if None not in (of_command, self.engine) and not str(self.engine).startswith(str(of_command)):
            raise ConfigError(
                "--engine and --command name different engines", seen=f"{self.engine}, {of_command}"
            )
        flags = {"max-model-len": self.max_model_len, "max-num-seqs": self.max_num_seqs}
        run = make_run_facts(
            self.engine or of_command or "local",
            self.engine_version,
            command=self.command,
            flags={name: value for name, value in flags.items() if value is not None},
            gpu=None if self.gpu_memory is None else GpuFacts("as said", int(self.gpu_memory * GIB)),
        )
        if self.engine_python is not None:
            return with_this_machine(run, self.engine_python)
        if run.engine == "local" and run.gpu is None:
            from dataclasses import replace

            return replace(run, gpu=read_gpu())
        return run


@takes_records
def inspect_command(
    draft: Annotated[
        str | None,
        typer.Argument(
            metavar="DRAFT", help="Drafter: a folder, a .safetensors file, or a hub id.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="TARGET", help="Target: a folder, a GGUF file, or a hub id."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="The embedded pair (fetched at first use).")] = False,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write a copy of the drafter with what is certain corrected; weights are linked.",
        ),
    ] = None,
    *,
    run: RunOptions,
    as_json: JsonFlag = False,
) -> None:
    """Show what two checkpoints are, and whether they fit.

    Reads configs and tensor headers, no weights: every value with where it came from, a plan of
    memory, and a finding for every misfit that is known. Engine, release and launch command say what
    the pair is judged for; a command names the pair too. Exit code 0 where nothing failed, 5 where
    something did. With --json one object: fits, engine, target, drafter, memory, findings, fix.

    \b
    Examples:
      truedraft inspect DRAFT --target TARGET
      truedraft inspect DRAFT --target TARGET --engine vllm --engine-version 0.25.1
      truedraft inspect DRAFT --fix FIXED
      truedraft inspect --command 'vllm serve TARGET -sc {"model": "DRAFT", …}'
      truedraft inspect --demo --json
    """
    facts = run.facts()
    drafter, where = _places(draft, target, demo, facts)
    if drafter is None:
        if fix is not None:
            raise ConfigError("--fix corrects a drafter, and none was named", remedy="Give DRAFT")
        _inspect_target(str(where), as_json=as_json)
        return
    _inspect_pair(drafter, where, facts, fix, as_json=as_json)


def _places(
    draft: str | None, target: str | None, demo: bool, run: RunFacts
) -> tuple[str | None, str | None]:
    """→ drafter and target, as named, or as the launch command names them."""
    if demo and (target is not None or draft is not None):
        raise ConfigError("--demo brings its own pair", remedy="Leave out DRAFT and --target, or --demo")
    if demo:
        from truedraft.cli.demo_files import demo_drafter, ensure_demo_target

        return str(demo_drafter()), str(ensure_demo_target(say=lambda line: print(line, file=sys.stderr)))
    if draft is None and target is None:
        names = ("speculative.model", "spec-model", "speculative-draft-model-path", "speculative-draft-model")
        said = [run.flags.get(name) for name in names]
        draft = next((str(name) for name in said if isinstance(name, str)), None)
        target = str(run.flags["model"]) if isinstance(run.flags.get("model"), str) else None
    if draft is None and target is None:
        raise ConfigError(
            "Nothing to inspect was named", remedy="Give DRAFT, --target TARGET, both, or --demo"
        )
    return draft, target


def _inspect_target(target: str, *, as_json: bool) -> None:
    from truedraft.checkpoint.target import read_target, read_target_files
    from truedraft.cli.inspect_pair import reading_json
    from truedraft.cli.inspect_view import print_reading

    reading = read_target_files(target)
    if not as_json:
        print_reading("target", reading)
    read_target(target, needs_weights=False)  # raises where the config has gaps
    if as_json:
        said = {"fits": True, "target": reading_json(reading), "drafter": None, "memory": None}
        print_json(said | {"findings": [], "fix": None})


def _inspect_pair(
    drafter: str, target: str | None, run: RunFacts, fix: Path | None, *, as_json: bool
) -> None:
    from truedraft.cli.inspect_fix import write_fix
    from truedraft.cli.inspect_pair import inspect
    from truedraft.cli.inspect_view import print_fix, print_inspection

    found = inspect(drafter, target, run)
    fixed = None if fix is None else write_fix(found.drafter, fix)
    if as_json:
        print_json(found.to_json() | {"fix": None if fixed is None else fixed.to_json()})
    else:
        print_inspection(found)
        if fixed is not None:
            print_fix(fixed)
    if not found.fits:
        raise typer.Exit(CHECKPOINT)
