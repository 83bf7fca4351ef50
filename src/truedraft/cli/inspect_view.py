"""Shows an inspection to people: values with origins, tensors, memory, findings, the verdict."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

from truedraft.cli.findings_view import print_findings
from truedraft.cli.inspect_fix import Fix
from truedraft.cli.inspect_pair import Inspection, tensor_summary
from truedraft.cli.output import counted, printable
from truedraft.contract.finding import Finding, Severity
from truedraft.contract.reading import DrafterReading, Reading
from truedraft.diagnosis.facts import GpuFacts, show_version
from truedraft.diagnosis.memory import MemoryPlan

GIB = 1024**3
MAX_SHOWN = 60
# What a config alone can say, and where else it can come from.
UNSAYABLE = {
    "capture_layers": "which target layers feed fc (shapes say only how many)",
    "mask_token_id": "the mask token",
    "rope_theta": "rope theta and style",
    "layer_types": "which layers slide, and the window's size",
    "sample_from_anchor": "the block layout: whether the anchor's slot predicts",
    "block_len": "the block length",
    "max_position": "the longest position",
    "vocab_size": "the vocabulary (the target's, where there is no head)",
}


def print_inspection(found: Inspection) -> None:
    """Both readings, the plan of memory, the findings worst first, and one line of verdict."""
    if found.target is not None:
        print_reading("target", found.target)
    print_reading("drafter", found.drafter)
    _print_gaps(found.drafter)
    plan = found.memory
    if plan is not None:
        _print_memory(plan, found.run.gpu)
    if found.run.engine != "local":
        print(f"judged for {found.run.engine} {show_version(found.run.version)}\n")
    print_findings(found.findings, file=sys.stdout)
    print(verdict_line(found.findings, with_target=found.target is not None))


def print_reading(role: str, reading: Reading) -> None:
    """A line a value, in the spec's order, with where it came from; then what the tensors are."""
    print(f"{role}: {printable(reading.source)} ({reading.format})")
    for name, value in reading.values.items():
        origin = reading.origins.get(name)
        where = "" if origin is None else f"  {origin.where}"
        print(printable(f"  {name:<22}{shown(value):<28}{where}").rstrip())
    if reading.tensors:
        summary = tensor_summary(reading.tensors)
        kinds = ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in summary["bytes_by_dtype"].items())
        print(
            f"  {'tensors':<22}{summary['num_tensors']} of {summary['num_values'] / 1e6:,.1f}M values: {kinds}"
        )
    else:
        print(f"  {'tensors':<22}no headers at hand")
    if isinstance(reading, DrafterReading):
        for what, names in (("unexpected", reading.unexpected), ("absent", reading.absent)):
            if names:
                more = f" and {len(names) - 6} more" if len(names) > 6 else ""
                print(printable(f"  {what + ' tensors':<22}{', '.join(names[:6])}{more}"))
    if reading.missing:
        print(f"  not said anywhere: {', '.join(reading.missing)}")
    print()


def _print_gaps(drafter: DrafterReading) -> None:
    if drafter.config_problem is None:
        return
    print(printable(f"without a config ({drafter.config_problem}) shapes cannot say:"))
    for name in drafter.missing:
        print(f"  {name:<22}{UNSAYABLE.get(name, '')}".rstrip())
    print("  findings below name published values as suggestions; `truedraft recover` measures\n")


def _print_memory(plan: MemoryPlan, gpu: GpuFacts | None) -> None:
    print(f"memory for {counted(plan.num_seqs, 'sequence')} of {plan.num_tokens:,} tokens:")
    rows = (
        ("target weights", plan.target_weights_bytes),
        ("drafter weights", plan.drafter_weights_bytes),
        ("target cache", plan.num_seqs * plan.num_tokens * plan.target_cache_per_token),
        ("drafter cache", plan.num_seqs * plan.num_tokens * plan.drafter_cache_per_token),
        ("windowed caches", plan.num_seqs * plan.windowed_bytes),
        ("recurrent states", plan.num_seqs * plan.recurrent_bytes),
        ("captured features", plan.features_bytes),
        ("together", plan.total_bytes),
    )
    for name, size in rows:
        if size:
            print(f"  {name:<22}{size / GIB:>9.2f} GiB")
    if gpu is not None:
        print(f"  {'one GPU has':<22}{gpu.memory_bytes / GIB:>9.2f} GiB ({printable(gpu.name)})")
    print()


def print_fix(fix: Fix) -> None:
    """The diff and where the copy is, or that nothing is certain."""
    if fix.folder is None:
        print(
            "nothing to correct with certainty; `truedraft recover DRAFT --target TARGET` measures the rest"
        )
        return
    print(f"\n{printable(fix.diff)}")
    for one in fix.corrections:
        print(printable(f"  {one.key}: {one.old} → {one.new} ({one.why})"))
    print(f"written: {fix.folder}")


def shown(value: Any) -> str:
    """A value on one line; repeats as `None × 30`, patterns as `(3 × a, b) × 16`."""
    if not isinstance(value, tuple):
        return str(value)
    text = _pattern(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _pattern(values: tuple[Any, ...]) -> str:
    count = len(values)
    for period in range(1, min(count // 2, 16) + 1):
        if count % period == 0 and values == values[:period] * (count // period):
            inner = _runs(values[:period])
            if count <= 3:
                break
            return f"{inner if period == 1 else f'({inner})'} × {count // period}"
    return _runs(values)


def _runs(values: tuple[Any, ...]) -> str:
    parts = [(value, len(list(group))) for value, group in itertools.groupby(values)]
    return ", ".join(
        f"{value} × {length}" if length > 2 else ", ".join([str(value)] * length) for value, length in parts
    )


def verdict_line(findings: Iterable[Finding], *, with_target: bool) -> str:
    """The last line: fits or not, and how many findings of each kind."""
    found = list(findings)
    numbers = {level: sum(one.severity is level for one in found) for level in Severity}
    parts = [
        counted(numbers[level], noun)
        for level, noun in ((Severity.FAIL, "failure"), (Severity.WARN, "warning"), (Severity.INFO, "note"))
        if numbers[level]
    ]
    subject = "the pair" if with_target else "the drafter by itself"
    said = "does not fit" if numbers[Severity.FAIL] else "fits"
    return f"{subject} {said}: {', '.join(parts) or 'no findings'}"
