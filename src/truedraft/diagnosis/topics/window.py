"""Sliding windows: their size, and whether anyone uses it."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule

KNOWN_TYPES = ("full_attention", "sliding_attention")


def sliding(facts: PairFacts) -> bool:
    return "sliding_attention" in facts.drafter.layer_types


def mixed(facts: PairFacts) -> bool:
    """Whether some layers slide and others see everything."""
    return sliding(facts) and "full_attention" in facts.drafter.layer_types


def no_size(facts: PairFacts) -> tuple[str, ...]:
    if not sliding(facts) or facts.draft("window") is not None:
        return ()
    return facts.draft_said("layer_types"), "drafter config.json: sliding_window = absent"


def switched_off(facts: PairFacts) -> tuple[str, ...]:
    if not sliding(facts) or facts.drafter.config.get("use_sliding_window") is not False:
        return ()
    return "drafter config.json: use_sliding_window = False", facts.draft_said("layer_types")


def unused(facts: PairFacts) -> tuple[str, ...]:
    if sliding(facts) or facts.draft("window") is None or not facts.drafter.layer_types:
        return ()
    return facts.draft_said("window"), facts.draft_said("layer_types")


def smaller_than_block(facts: PairFacts) -> tuple[str, ...]:
    window, block_len = facts.draft("window"), facts.draft("block_len")
    if not sliding(facts) or window is None or block_len is None or window >= block_len:
        return ()
    return facts.draft_said("window"), facts.draft_said("block_len")


def unknown_type(facts: PairFacts) -> tuple[str, ...]:
    odd = sorted({kind for kind in facts.drafter.layer_types if kind not in KNOWN_TYPES})
    return (f"drafter config.json: layer_types has {', '.join(odd)}",) if odd else ()


def pattern(facts: PairFacts) -> tuple[str, ...]:
    value = facts.drafter.config.get("sliding_window_pattern")
    return (f"drafter config.json: sliding_window_pattern = {value}",) if isinstance(value, list) else ()


RULES = (
    Rule(
        "window.no_size",
        FAIL,
        "Layers slide, but no window size is given",
        no_size,
        "layer_types has sliding_attention; sliding_window is null or absent",
        "Set sliding_window (2048 in most published drafters); `truedraft recover` measures it",
        "https://github.com/vllm-project/vllm/issues/50710",
    ),
    Rule(
        "window.switched_off",
        WARN,
        "use_sliding_window is false, yet layers are marked as sliding",
        switched_off,
        "Loaders that honour the switch run full attention in layers trained with a window: acceptance falls past it",
        "Set use_sliding_window to true, or the layers to full_attention; `truedraft recover` measures which",
        "https://github.com/vllm-project/speculators/pull/523",
    ),
    Rule(
        "window.unused",
        INFO,
        "A window size is given, but no layer slides",
        unused,
        "layer_types has no sliding_attention, or is absent",
        "Check that layer_types is complete: a drafter trained with windows and run without loses acceptance past them",
        "https://github.com/vllm-project/speculators/pull/523",
    ),
    Rule(
        "window.smaller_than_block",
        FAIL,
        "The window is shorter than the block",
        smaller_than_block,
        "Rows of one block could not see their own anchor",
        "Correct sliding_window or block_size",
    ),
    Rule(
        "window.unknown_type",
        FAIL,
        "The drafter has layers of an unknown type",
        unknown_type,
        "DFlash drafters have full and sliding attention only",
        "Check that this is a DFlash drafter",
    ),
    Rule(
        "window.pattern_list",
        WARN,
        "The window pattern is a list",
        pattern,
        "Some loaders expect a number there and crash",
        "State layer_types instead",
        "https://github.com/ggml-org/llama.cpp/issues/26894",
    ),
)
