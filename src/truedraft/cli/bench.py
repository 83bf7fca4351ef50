"""`truedraft bench`: plain decoding against DFlash, on one engine, in one run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from truedraft.bench.measure import BenchSettings, Group, OnProgress, measure
from truedraft.bench.report import BenchReport, build_report, report_json
from truedraft.bench.workload import Prompt, first_of_each_kind, load_builtin, load_file
from truedraft.cli import compose
from truedraft.cli.bench_view import print_report, progress_bar
from truedraft.cli.compose import LocalEngine
from truedraft.cli.exit_codes import UNPROFITABLE
from truedraft.cli.options import JsonFlag, PairOptions, QuietFlag, takes_records
from truedraft.cli.output import print_json, speaker
from truedraft.config.schema import parse_speculation
from truedraft.contract.limits import check_sampling
from truedraft.contract.request import SamplingParams
from truedraft.errors import ConfigError


@takes_records
def bench(
    pair: PairOptions,
    concurrency: Annotated[
        str, typer.Option(metavar="N[,N…]", help="Answers at a time, one run for each.")
    ] = "1",
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Longest answer.")] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help='JSONL: {"prompt": …, "kind": …} a line. Default: 48 built-in ones.'
        ),
    ] = None,
    num_per_kind: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N prompts of every kind.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure plain decoding and DFlash on the same prompts.

    Both run on one engine with the same threads. The arms take turns at going first; warm-up is apart; tokens a second count the whole answer,
    prefill included. Medians come with 95 % intervals (bootstrap over prompts, or over groups of
    prompts where several run at once). Exit code 3 where DFlash is slower beyond doubt.

    \b
    Examples:
      truedraft bench --demo
      truedraft bench --demo --json --concurrency 1,4,8
      truedraft bench TARGET --draft DRAFT --prompts mine.jsonl --temperature 0.7
      truedraft bench --demo --speculation 4 --num-per-kind 3     a fixed length, a short run
    """
    settings = bench_settings(pair, concurrency, temperature, max_tokens)
    chosen = load_file(prompts) if prompts is not None else load_builtin()
    if num_per_kind is not None:
        if num_per_kind < 1:
            raise ConfigError("`--num-per-kind` is out of range", seen=num_per_kind, allowed="1 or more")
        chosen = first_of_each_kind(chosen, num_per_kind)
    say = speaker(quiet=quiet)
    num_seqs = max(pair.max_num_seqs, *settings.concurrencies)
    backend = compose.load_backend(pair, say=say, needs_drafter=True, max_num_seqs=num_seqs)
    with progress_bar(enabled=not quiet and sys.stderr.isatty()) as on_progress:
        report = asyncio.run(_measure(backend, chosen, settings, on_progress))
    if as_json:
        print_json(report_json(report))
    else:
        print_report(report)
    if report.verdict == "slower":
        raise typer.Exit(UNPROFITABLE)


def bench_settings(pair: PairOptions, concurrency: str, temperature: float, max_tokens: int) -> BenchSettings:
    """→ what to run, checked before anything is loaded. Raises ConfigError and RequestError."""
    speculation = parse_speculation(pair.speculation)
    if speculation == "off":
        raise ConfigError(
            "bench compares plain decoding with DFlash", remedy="Use --speculation auto or a number"
        )
    seed = pair.seed if pair.seed is not None else 0 if temperature > 0 else None
    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    check_sampling(sampling, vocab_size=2**31)
    return BenchSettings(sampling, parse_concurrency(concurrency), speculation)


def parse_concurrency(text: str) -> tuple[int, ...]:
    """`1,4,8` → (1, 4, 8). Raises ConfigError."""
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = ()
    if not widths or len(set(widths)) != len(widths) or not all(1 <= width <= 1024 for width in widths):
        raise ConfigError(
            "`--concurrency` cannot be read", seen=text, allowed="different numbers from 1 to 1024: 1,4,8"
        )
    return widths


async def _measure(
    backend: LocalEngine, prompts: Sequence[Prompt], settings: BenchSettings, on_progress: OnProgress
) -> BenchReport:
    groups: list[Group] = []
    try:
        groups = await measure(backend, prompts, settings, on_progress=on_progress)
        return build_report(groups, backend.info, settings, backend.cost_curve())
    finally:
        await backend.close()
