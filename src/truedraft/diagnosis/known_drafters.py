"""Values of published drafters, for suggestions that are marked as such; nothing is taken from here.

Capture layers are 0-based layer outputs. Sources: the configs that their authors published and
copies of them in training frameworks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    """One published drafter, as far as its values are known."""

    name: str
    num_target_layers: int
    hidden_size: int
    capture_layers: tuple[int, ...]
    mask_token_id: int | None
    block_len: int | None
    rope_theta: float | None
    window: str  # "full", "4 sliding 2048 + 1 full" …


KNOWN = (
    KnownDrafter("Qwen3-4B-DFlash-b16", 36, 2560, (1, 9, 17, 25, 33), 151669, 16, 1e6, "full"),
    KnownDrafter("Qwen3-8B-DFlash-b16", 36, 4096, (1, 9, 17, 25, 33), 151669, 16, 1e6, "full"),
    KnownDrafter(
        "LLaMA3.1-8B-Instruct-DFlash-UltraChat", 32, 4096, (1, 8, 15, 22, 29), None, 10, None, "full"
    ),
    KnownDrafter("Qwen3-Coder-30B-A3B-DFlash", 48, 2048, (1, 12, 23, 34, 45), None, 16, None, "full"),
    KnownDrafter("gpt-oss-20b-DFlash", 24, 2880, (1, 6, 11, 16, 21), 200000, 8, None, "full"),
    KnownDrafter("Qwen3.5-4B-DFlash", 32, 2560, (1, 8, 15, 22, 29), 248070, 16, 1e7, "full"),
    KnownDrafter("Qwen3.5-27B-DFlash", 64, 5120, (1, 16, 31, 46, 61), 248070, 16, 1e7, "full"),
    KnownDrafter(
        "Qwen3.6-27B-DFlash", 64, 5120, (1, 16, 31, 46, 61), 248070, 16, 1e7, "4 sliding 2048 + 1 full"
    ),
    KnownDrafter("Qwen3.8-27B-DFlash2", 64, 5120, (5, 19, 33, 47, 61), 248070, 8, 1e7, "5 sliding 2048"),
    KnownDrafter("qwen3.6-27b-dspark (SpecForge)", 64, 5120, (2, 17, 32, 47, 62), None, 16, 1e7, "full"),
    KnownDrafter("Qwen3.5/3.6-35B-A3B-DFlash", 40, 2048, (1, 10, 19, 28, 37), 248070, 16, 1e7, "full"),
    KnownDrafter(
        "Qwen3.5-122B-A10B-DFlash", 48, 3072, (1, 7, 14, 20, 26, 32, 39, 45), 248077, 16, 1e7, "sliding 4096"
    ),
    KnownDrafter(
        "Qwen3.5-397B-A17B-DFlash", 60, 4096, (1, 9, 17, 25, 33, 41, 49, 57), 248077, 16, None, "unknown"
    ),
    KnownDrafter(
        "Qwen3.8-Flash-Next drafter",
        48,
        2560,
        (1, 7, 13, 20, 26, 33, 39, 46),
        248077,
        16,
        None,
        "5 sliding + 1 full",
    ),
    KnownDrafter("Muse-Glimmer-30B-DFlash2", 52, 6656, (1, 13, 25, 37, 49), 201818, 16, 5e5, "sliding 2048"),
    KnownDrafter(
        "gemma-4-31B-it-DFlash", 60, 5376, (1, 12, 23, 35, 46, 57), 4, 16, 1e6, "4 sliding 2048 + 1 full"
    ),
    KnownDrafter("Kimi-K2.5-DFlash", 61, 7168, (1, 12, 24, 35, 47, 58), 163838, None, 5e4, "unknown"),
    KnownDrafter(
        "MiMo-V2.5-DFlash", 48, 4096, (0, 11, 23, 35, 47), 151675, 8, 1e4, "5 sliding 1024, not causal"
    ),
    KnownDrafter("Laguna-S-DFlash", 48, 3072, (1, 10, 19, 29, 38, 47), 12, 16, 5e5, "6 sliding 512, causal"),
    KnownDrafter("dspark_gemma4_12b_block7", 48, 3840, (5, 17, 29, 41, 46), 4, 7, 1e6, "full"),
    KnownDrafter("LFM2.5-DSpark", 30, 2048, (2, 9, 17, 21, 27), 125017, 9, 1e7, "full"),
    KnownDrafter("truedraft demo drafter (SmolLM2-135M)", 30, 576, (1, 8, 14, 20, 27), 16, 8, 1e5, "full"),
)


def family(hidden_size: int | None, num_target_layers: int | None) -> tuple[KnownDrafter, ...]:
    """→ published drafters for targets of this width (and depth, where it is known)."""
    if hidden_size is None:
        return ()
    return tuple(
        known
        for known in KNOWN
        if known.hidden_size == hidden_size and num_target_layers in (None, known.num_target_layers)
    )


def reference_formula(num_target_layers: int, num_captured: int) -> tuple[int, ...]:
    """→ the layers that z-lab's reference falls back to: evenly from 1 to L − 3."""
    if num_captured == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + index * span / (num_captured - 1)) for index in range(num_captured))
