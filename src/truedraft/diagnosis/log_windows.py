"""Acceptance as engines log it while they run: vLLM's interval, SGLang's decode batch, llama.cpp's request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from truedraft.diagnosis.acceptance import AcceptanceFacts, parse_vllm_line

SGLANG = re.compile(
    r"Decode batch.{0,200}?#running-req: (\d{1,6}), #token: (\d{1,12}).{0,400}?accept len: (\d{1,4}(?:\.\d{1,9})?)"
)
SGLANG_SPEED = re.compile(r"gen throughput \(token/s\): (\d{1,9}(?:\.\d{1,9})?)")
LLAMA = re.compile(
    r"draft acceptance(?: rate)? *= *\d{1,3}(?:\.\d{1,9})? *\( *(\d{1,12}) accepted */ *(\d{1,12}) generated\)"
)
LLAMA_TOTAL = re.compile(
    r"statistics (?:draft-)?(?:dflash|draft)\S{0,40}:.{0,200}?#gen drafts *= *(\d{1,12}).{0,100}?"
    r"#gen tokens *= *(\d{1,12}), #acc tokens *= *(\d{1,12})"
)


@dataclass(frozen=True, slots=True)
class Window:
    """One logged figure. `context_len`: tokens a running request has, where the line says.

    `is_total`: counts since the start, not since the line before.
    """

    acceptance: AcceptanceFacts
    context_len: int | None = None
    tok_per_s: float | None = None
    is_total: bool = False


def parse_window(text: str) -> Window | None:
    """→ the figure in this line, or None."""
    if "SpecDecoding" in text:
        facts = parse_vllm_line(text)
        return None if facts is None else Window(facts)
    if "Decode batch" in text and (found := SGLANG.search(text)) is not None:
        running, tokens, tau = int(found[1]), int(found[2]), float(found[3])
        speed = SGLANG_SPEED.search(text)
        return Window(
            AcceptanceFacts(None, None, None, (), tau),
            tokens // running if running else None,
            float(speed[1]) if speed else None,
        )
    if "draft acceptance" in text and (found := LLAMA.search(text)) is not None:
        return Window(AcceptanceFacts(None, int(found[2]), int(found[1])))
    if "statistics" in text and (found := LLAMA_TOTAL.search(text)) is not None:
        return Window(AcceptanceFacts(int(found[1]), int(found[2]), int(found[3])), is_total=True)
    return None


def by_context(windows: tuple[Window, ...]) -> tuple[tuple[int, float, int], ...]:
    """→ (up to this many tokens of context, mean length, windows), by doublings from 1,024."""
    sums: dict[int, list[float]] = {}
    for window in windows:
        if window.context_len is not None and window.acceptance.tau is not None:
            edge = max(1024, 1 << max(window.context_len - 1, 0).bit_length())
            sums.setdefault(edge, []).append(window.acceptance.tau)
    return tuple((edge, sum(found) / len(found), len(found)) for edge, found in sorted(sums.items()))
