"""Puts together what all sources say of one deployment: engine, command, acceptance, speed, findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from truedraft.contract.finding import Finding
from truedraft.diagnosis.acceptance import (
    AcceptanceFacts,
    AcceptanceVerdict,
    add_windows,
    inconsistencies,
    judge_acceptance,
)
from truedraft.diagnosis.bench import BenchFacts
from truedraft.diagnosis.command import parse_command
from truedraft.diagnosis.facts import Engine, RunFacts
from truedraft.diagnosis.fall import Fall, fall_over_readings, fall_over_windows
from truedraft.diagnosis.intake import Intake
from truedraft.diagnosis.log_windows import Window
from truedraft.diagnosis.logs import LogFacts
from truedraft.diagnosis.metrics import MetricsFacts, difference
from truedraft.errors import ConfigError

_ENGINES: dict[str | None, Engine] = {"vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known. `metrics` is the difference of two readings where there are two.

    `discarded`: windows that contradict themselves. `fall`: how acceptance fell.
    `findings` are those of the configs (none where `capture_layers` and `has_configs` say so).
    """

    log: LogFacts | None
    run: RunFacts
    acceptance: AcceptanceFacts | None = None
    acceptance_from: str | None = None
    verdict: AcceptanceVerdict | None = None
    metrics: MetricsFacts | None = None
    benches: tuple[BenchFacts, ...] = ()
    discarded: int = 0
    fall: Fall | None = None
    findings: tuple[Finding, ...] = ()
    has_configs: bool = False
    capture_layers: tuple[int, ...] | None = None
    target_only_broken: bool | None = None
    notes: tuple[str, ...] = ()


def run_of(intake: Intake, base: RunFacts) -> tuple[RunFacts, tuple[str, ...]]:
    """→ engine, release and flags from the commands and the log, and what could not be read."""
    run, notes = base, []
    log = intake.log
    engine = None if log is None else _ENGINES.get(log.engine)
    if log is not None and engine is not None:
        run = dataclasses.replace(
            run, engine=engine, version=run.version or log.version, flags={**run.flags, **log.flags}
        )
    for command in intake.commands:
        try:
            run = parse_command(command, run)
        except ConfigError as exc:
            notes.append(f"a command could not be read: {exc}")
    if not intake.commands and engine is None:
        said = next((_ENGINES[one.engine] for one in intake.metrics if one.engine in _ENGINES), None)
        run = run if said is None else dataclasses.replace(run, engine=said)
    return run, tuple(notes)


def gather(
    intake: Intake,
    run: RunFacts,
    *,
    findings: Sequence[Finding] = (),
    has_configs: bool = False,
    capture_layers: tuple[int, ...] | None = None,
    target_only_broken: bool | None = None,
    notes: tuple[str, ...] = (),
) -> Evidence:
    """→ the evidence of one deployment. The best source of acceptance counts: metrics, benchmark, log."""
    metrics = _window(intake.metrics)
    windows = intake.log.timeline if intake.log is not None else ()
    sound = tuple(window for window in windows if not inconsistencies(window.acceptance))
    facts, source = _acceptance(intake, metrics, sound)
    if facts is None and windows and not sound:
        facts, source = windows[-1].acceptance, "the log (every figure contradicts itself)"
    verdict = None
    if facts is not None:
        facts = dataclasses.replace(facts, target_only_broken=target_only_broken)
        verdict = judge_acceptance(facts)
    return Evidence(
        log=intake.log,
        run=run,
        acceptance=facts,
        acceptance_from=source,
        verdict=verdict,
        metrics=metrics,
        benches=intake.benches,
        discarded=len(windows) - len(sound),
        fall=fall_over_readings(intake.metrics) or fall_over_windows(sound),
        findings=tuple(findings),
        has_configs=has_configs,
        capture_layers=capture_layers,
        target_only_broken=target_only_broken,
        notes=(*intake.notes, *notes),
    )


def _window(snapshots: tuple[MetricsFacts, ...]) -> MetricsFacts | None:
    if len(snapshots) >= 2:
        return difference(snapshots[0], snapshots[-1])
    return snapshots[0] if snapshots else None


def _acceptance(
    intake: Intake, metrics: MetricsFacts | None, windows: Sequence[Window]
) -> tuple[AcceptanceFacts | None, str | None]:
    """→ the best window of acceptance, and where it is from."""
    if metrics is not None and (facts := metrics.acceptance()) is not None:
        return facts, "two readings of /metrics" if metrics.is_delta else "/metrics, since the server's start"
    for bench in intake.benches:
        if bench.acceptance is not None:
            return bench.acceptance, f"the benchmark {bench.name}"
    totals = [window.acceptance for window in windows if window.is_total]
    if totals:
        return totals[-1], "the log's totals"
    added = add_windows(window.acceptance for window in windows)
    return (None, None) if added is None else (added, f"{len(windows)} of the log's lines")
