"""Positions: theta, scaling, rotated share, and how far they reach."""

from __future__ import annotations

from typing import Any

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import INFO, WARN, Rule
from truedraft.diagnosis.topics.files import conflict_said

TRAINED_LEN = 4096  # what most published recipes train at


def scaling(facts: PairFacts) -> dict[str, Any]:
    """→ the drafter's rope scaling, wherever it stands."""
    config = facts.drafter.config
    for scope in (config.get("transformer_layer_config"), config):
        if isinstance(scope, dict):
            for key in ("rope_scaling", "rope_parameters"):
                if isinstance(scope.get(key), dict):
                    return dict(scope[key])
    return {}


def two_thetas(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if c.name == "rope_theta"]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def theta_differs(facts: PairFacts) -> tuple[str, ...]:
    ours, theirs = facts.draft("rope_theta"), facts.targets("rope_theta")
    if ours is None or theirs is None or ours == theirs:
        return ()
    return facts.draft_said("rope_theta"), facts.target_said("rope_theta")


def partial_differs(facts: PairFacts) -> tuple[str, ...]:
    ours, theirs = facts.draft("rope_partial_frac") or 1.0, facts.targets("rope_partial_frac") or 1.0
    if facts.target is None or ours == theirs or facts.draft("head_dim") != facts.targets("head_dim"):
        return ()  # with another head dim, another share is the rule
    return f"drafter partial_rotary_factor = {ours:g}", f"target partial_rotary_factor = {theirs:g}"


def short_positions(facts: PairFacts) -> tuple[str, ...]:
    reach, served = facts.draft("max_position"), facts.served_len
    if reach is None or served is None or reach >= served:
        return ()
    return facts.draft_said("max_position"), f"served length {served}"


def yarn_window(facts: PairFacts) -> tuple[str, ...]:
    parts, served = scaling(facts), facts.served_len
    kind = parts.get("rope_type") or parts.get("type")
    factor, original = parts.get("factor"), parts.get("original_max_position_embeddings")
    if kind != "yarn" or not isinstance(factor, int | float) or type(original) is not int or served is None:
        return ()
    return (f"drafter YaRN: {original} × {factor:g} = {original * factor:.0f}", f"served length {served}")[
        : 2 * (served > original * factor)
    ]


def interleaved(facts: PairFacts) -> tuple[str, ...]:
    config = facts.drafter.config
    for key in ("rope_is_neox_style", "is_neox_style"):
        if config.get(key) is False:
            return (f"drafter config.json: {key} = False",)
    return ()


def mscale(facts: PairFacts) -> tuple[str, ...]:
    parts = scaling(facts)
    found = [key for key in ("mscale", "mscale_all_dim", "attention_factor") if key in parts]
    return tuple(f"drafter config.json: rope scaling has {key} = {parts[key]}" for key in found)


def beyond_training(facts: PairFacts) -> tuple[str, ...]:
    served, windows = facts.served_len, facts.draft("windows") or ()
    if (
        served is None
        or served <= 4 * TRAINED_LEN
        or not windows
        or all(window is not None for window in windows)
    ):
        return ()
    return (
        f"served length {served}",
        f"{sum(window is None for window in windows)} drafter layers see all of it",
    )


def scaling_differs(facts: PairFacts) -> tuple[str, ...]:
    ours, theirs = facts.draft("rope_type"), facts.targets("rope_type")
    if facts.target is None or ours is None or theirs is None or ours == theirs:
        return ()
    return f"drafter rope type = {ours}", f"target rope type = {theirs}"


RULES = (
    Rule(
        "rope.two_thetas",
        WARN,
        "rope_theta and rope_parameters disagree",
        two_thetas,
        "Engines differ in which they read",
        "Keep one; `truedraft recover` measures which is right",
        "https://github.com/jundot/omlx/issues/2557",
    ),
    Rule(
        "rope.theta_differs",
        WARN,
        "Drafter and target turn positions at different speeds",
        theta_differs,
        "Nearly all published drafters use their target's theta; a wrong one shows as acceptance that falls with "
        "position and length, never as an error",
        "Check the drafter's card; `truedraft recover` measures theta",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "rope.partial_differs",
        WARN,
        "Drafter and target rotate different shares of a head",
        partial_differs,
        "Trainers that drop partial_rotary_factor make drafters whose acceptance falls fast with position",
        "Check how it was trained; `truedraft recover` measures it",
        "https://github.com/vllm-project/speculators/issues/613",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "rope.scaling_differs",
        INFO,
        "Drafter and target scale positions differently",
        scaling_differs,
        "A target extended by YaRN or llama3 scaling may reach further than its drafter does",
        "Measure acceptance at the lengths that you serve",
        "https://github.com/deepseek-ai/DeepSpec/pull/59",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "rope.short_positions",
        WARN,
        "The drafter's positions end before the served length",
        short_positions,
        "Past its table a drafter extrapolates and accepts little; vLLM before 0.33 reads past the table instead: an "
        "illegal memory access on the first long request",
        "Cap the model length at the drafter's max_position_embeddings, or use vLLM 0.33",
        "https://github.com/vllm-project/vllm/pull/57964",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "rope.yarn_window",
        WARN,
        "The drafter's YaRN window ends before the served length",
        yarn_window,
        "Acceptance decays from the end of the window on, whatever the text",
        "Cap the model length, or expect plain decoding beyond the window",
        "https://github.com/lightseekorg/tokenspeed/issues/1132",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "rope.interleaved",
        WARN,
        "The drafter pairs neighbouring values in its rotary positions",
        interleaved,
        "Most engines assume halves; a mismatch never errors, acceptance just collapses",
        "Serve it with an engine that reads this key, and measure τ",
    ),
    Rule(
        "rope.mscale",
        INFO,
        "The drafter's rope scaling has magnitude keys",
        mscale,
        "Some loaders drop them, which costs acceptance without an error",
        "Measure τ against the drafter's card",
    ),
    Rule(
        "rope.beyond_training",
        INFO,
        "The served length is far beyond what drafters are trained at",
        beyond_training,
        "Published recipes train at about 4,096 tokens; acceptance of full layers falls at many times that",
        "Measure acceptance at 2K, 8K, 16K and 32K; send long requests without speculation where it does not pay",
        "https://github.com/spiritbuun/buun-llama-cpp/issues/32",
        covered_by=("pair.other_target",),
    ),
)
