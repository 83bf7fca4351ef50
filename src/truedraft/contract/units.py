"""Formats quantities for people; the only place that does."""

from __future__ import annotations


def format_bytes(num_bytes: float) -> str:
    """`93.8 MiB`: binary units, three significant digits."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_s(seconds: float) -> str:
    """`850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def format_rate(tok_per_s: float) -> str:
    """`45.3 tok/s`."""
    return f"{tok_per_s:,.0f} tok/s" if tok_per_s >= 1000 else f"{tok_per_s:.3g} tok/s"
