"""What `serve` says while it starts: the self-check's findings in a line each, and how to call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truedraft.contract.backend import ReadyReport
from truedraft.contract.units import format_rate

_VERDICTS = {
    "proven": "proven: lossless, and faster than plain decoding",
    "unprofitable": "unprofitable: lossless, but not faster here; speculation stays off where it does not pay",
    "broken": "broken: this pair is not served",
    "plain": "plain decoding: no drafter",
    "not checked": "not checked: the self-check was skipped, and /ready says so",
}


def ready_lines(report: ReadyReport) -> list[str]:
    """The self-check for people, a line a check, the verdict last."""
    checks = report.checks
    failed = [name for name in ("alive", "sane") if name in checks and not checks[name].get("ok")]
    lines = [f"not {name}: {_figures(checks[name])}" for name in failed]
    if "lossless" in checks:
        lines.append(_lossless_line(checks["lossless"]))
    if (tau := checks.get("effective", {}).get("tau")) is not None:
        lines.append(f"τ {tau:.2f} tokens a round over {checks['effective'].get('num_rounds')} rounds")
    if "faster" in checks:
        lines.append(_speed_line(checks["faster"]))
    return [*lines, f"verdict: {_VERDICTS.get(report.verdict, report.verdict)}"]


def curl_example(url: str, model: str, *, with_key: bool) -> str:
    """A command that can be pasted as it is."""
    key = " -H 'Authorization: Bearer KEY'" if with_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"


def _lossless_line(check: Mapping[str, Any]) -> str:
    total, equal = check.get("num_prompts", 0), check.get("num_equal", 0)
    if not check.get("ok"):
        return f"NOT lossless: {_figures(check)}"
    line = f"lossless on {total} prompts: {equal} equal token for token"
    if near := check.get("num_near_ties", 0):
        line += f", {near} forked at a near-tie within {check.get('tolerance')}"
    return line


def _speed_line(check: Mapping[str, Any]) -> str:
    plain, dflash, ratio = (check.get(key) for key in ("plain_tok_per_s", "dflash_tok_per_s", "ratio"))
    parts = []
    if plain is not None:
        parts.append(f"plain {format_rate(plain)}")
    if dflash is not None:
        parts.append(f"DFlash {format_rate(dflash)}")
    if ratio is not None:
        parts.append(f"ratio {ratio:.2f}")
    return ", ".join(parts) or f"speed: {_figures(check)}"


def _figures(check: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in check.items() if name != "ok")
