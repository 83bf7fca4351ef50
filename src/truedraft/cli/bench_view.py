"""A benchmark's report as tables, and its progress as a bar on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from truedraft.bench.measure import OnProgress
from truedraft.bench.report import BenchReport
from truedraft.bench.statistics import Spread


@contextmanager
def progress_bar(*, enabled: bool) -> Iterator[OnProgress]:
    """→ a function that takes answers done and in all; draws nothing where not `enabled`."""
    if not enabled:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("answers", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


def print_report(report: BenchReport) -> None:
    """On stdout: tables by concurrency and by kind, then acceptance by position and the cost curve."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    info, sampling = report.info, report.settings.sampling
    console.print(f"{info.target} with {info.drafter} on {info.device}, {info.dtype}", markup=False)
    console.print(
        f"temperature {sampling.temperature:g}, up to {sampling.max_tokens} tokens, "
        f"speculation {report.settings.speculation}",
        markup=False,
    )
    speed = Table("streams", "plain tok/s", "DFlash tok/s", "ratio", box=SIMPLE_HEAD)
    for one in report.rates:
        rates = (one.plain_tok_per_s, one.dflash_tok_per_s)
        row = [show_spread(rate, 1) for rate in rates]
        speed.add_row(str(one.concurrency), *row, show_spread(one.ratio, 2))
    console.print(speed)
    kinds = Table("kind", "τ", "ratio", box=SIMPLE_HEAD)
    for kind, tau in report.tau_by_kind.items():
        kinds.add_row(kind, show_spread(tau, 2), show_spread(report.ratio_by_kind[kind], 2))
    kinds.add_row("all", show_spread(report.tau, 2), show_spread(report.rates[0].ratio, 2))
    console.print(kinds)
    _print_lines(report)


def show_spread(spread: Spread | None, digits: int) -> str:
    """`71.2 (69.8–73.0)`; a dash where nothing was measured."""
    if spread is None:
        return "–"
    return f"{spread.value:.{digits}f} ({spread.low:.{digits}f}–{spread.high:.{digits}f})"


def _print_lines(report: BenchReport) -> None:
    same = ", ".join(f"{one.num_same_answers} of {one.num_answers}" for one in report.rates)
    print(f"same answers under both, by streams: {same}")
    if report.acceptance_by_position:
        shares = " ".join(f"{share:.3f}" for share in report.acceptance_by_position)
        print(f"kept, by position, of those verified: {shares}")
    if report.mean_verify_len is not None:
        print(f"rows verified a round: {report.mean_verify_len:.2f}; plain steps: {report.num_plain_steps}")
    if report.cost_curve_ms:
        curve = ", ".join(f"{rows}: {ms:.3g}" for rows, ms in sorted(report.cost_curve_ms.items()))
        print(f"target's cost by rows, ms: {curve}")
    print(f"DFlash is {report.verdict}" + (" within the noise" if report.verdict == "even" else ""))
