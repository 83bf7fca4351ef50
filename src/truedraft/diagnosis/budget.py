"""vLLM's token arithmetic by version: what a step may schedule once draft slots are taken off."""

from __future__ import annotations

from dataclasses import dataclass

from truedraft.diagnosis.facts import GpuFacts, Version

GIB = 1024**3
SMALL_BUDGET = 8192  # below it vLLM warns of poor performance


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """`budget` tokens a step may schedule; `max_seqs` sequences that really run at once.

    `minimum` is the smallest max_num_batched_tokens that starts with these sequences and drafts.
    """

    budget: int
    max_seqs: int
    minimum: int
    formula: str


def token_budget(
    version: Version | None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    num_drafted: int,
    algorithm: str = "dflash",
) -> BudgetResult:
    """→ the budget by the rule of this release (the newest one where the release is unknown).

    0.20 to 0.27: less (K − 1) a sequence; 0.28 to 0.32: less K a sequence (DSpark: K − 1);
    from 0.33 nothing is taken off, but sequences are capped to what fits (K + 1) rows each.
    """
    if version is None or version >= (0, 33):
        fits = max_num_batched_tokens // (num_drafted + 1)
        budget = max_num_batched_tokens if max_num_batched_tokens > num_drafted + 1 else 0
        return BudgetResult(
            budget, min(max_num_seqs, fits), num_drafted + 2, f"{max_num_batched_tokens} > {num_drafted} + 1"
        )
    charged = num_drafted if version >= (0, 28) and algorithm != "dspark" else num_drafted - 1
    return BudgetResult(
        max_num_batched_tokens - charged * max_num_seqs,
        max_num_seqs,
        charged * max_num_seqs + 1,
        f"{max_num_batched_tokens} − {charged} × {max_num_seqs}",
    )


def default_sizes(gpu: GpuFacts | None, platform: str | None = None) -> tuple[int, int] | None:
    """→ the server's default (max_num_batched_tokens, max_num_seqs), or None without a known device."""
    if platform == "cpu":
        return 2048, 128
    if gpu is None:
        return None
    if gpu.memory_bytes >= 160 * GIB:
        return 16_384, 1024
    if gpu.memory_bytes >= 70 * GIB and not any(name in gpu.name for name in ("A100", "GB10")):
        return 8192, 1024
    return 2048, 256
