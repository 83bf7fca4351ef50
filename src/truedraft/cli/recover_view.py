"""How a recovery is shown: the table, the two τ, and the diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from truedraft.cli.recover_run import Done
from truedraft.recovery.verdict import Interval, Row


def print_recovery(done: Done, written: Path | None) -> None:
    """The table on stdout, then what to do with it."""
    found = done.found
    cells: list[tuple[str, ...]] = [("what", "declared", "best", "verdict", "against", "Δ loss", "Δ τ")]
    cells += [_cells(row) for row in found.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for row in found.rows:
        if row.alike:
            print(f"{row.name}: undecided between {', '.join(map(_shown, (row.best, *row.alike)))}")
        if row.note:
            print(f"{row.name}: {row.note}")
    print()
    declared = "not runnable" if found.declared_tau is None else f"τ {found.declared_tau:.2f}"
    print(f"declared: {declared}; best: τ {found.tau:.2f}, over {found.num_texts} texts")
    if not found.usable:
        print("this drafter drafts nothing for this target, whatever is tried")
    elif not found.changed:
        print("nothing to correct")
    else:
        print("\n".join(done.diff))
        print(f"wrote {written}" if written is not None else "--out FOLDER writes this config")


def recovery_json(done: Done, written: Path | None) -> dict[str, Any]:
    """→ plain values only."""
    found = done.found
    return {
        "usable": found.usable,
        "changed": found.changed,
        "tau": found.tau,
        "declared_tau": found.declared_tau,
        "loss": found.loss,
        "declared_loss": found.declared_loss,
        "rows": [row.to_json() for row in found.rows],
        "capture_layers": list(found.final.capture_layers),
        "boundary_ids": [layer + 1 for layer in found.final.capture_layers],
        "num_texts": found.num_texts,
        "num_tokens": found.num_tokens,
        "num_measured": found.num_measured,
        "seconds": done.seconds,
        "config": done.config,
        "written": None if written is None else str(written),
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _shown(row.declared) if row.said else "-",
        _shown(row.best),
        row.verdict,
        "" if row.against is None else _shown(row.against),
        _difference(row.loss, "+.3f"),
        _difference(row.tau, "+.2f", sign=-1),
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        same = len(set(value)) == 1
        return f"{_shown(value[0])} × {len(value)}" if same else ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _difference(found: Interval | None, form: str, *, sign: int = 1) -> str:
    if found is None:
        return ""
    low, high = sorted((sign * found.low, sign * found.high))
    return f"{sign * found.value:{form}} ({low:{form}} to {high:{form}})"
