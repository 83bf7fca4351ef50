"""The block: how long it is, what its anchor's slot predicts, who sees whom in it."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.files import conflict_said


def contradiction(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if c.name == "sample_from_anchor"]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def unsaid(facts: PairFacts) -> Hit | None:
    if facts.drafter.layout_said is not None or facts.drafter.config_problem is not None:
        return None
    algorithm = facts.draft("algorithm")
    anchored = algorithm == "dspark"
    if not anchored and facts.drafter.format not in ("speculators", "specforge"):
        return None  # z-lab's format: an absent key is the convention
    used = "the anchor's slot predicts too" if anchored else "only the masks predict"
    return Hit(
        (f"drafter config.json: sample_from_anchor = absent; taken here: {used} (the habit of {algorithm})",),
        severity=WARN if anchored else INFO,
    )


def tiny_block(facts: PairFacts) -> tuple[str, ...]:
    block_len = facts.draft("block_len")
    if block_len is None or block_len + bool(facts.draft("sample_from_anchor")) >= 2:
        return ()
    return (facts.draft_said("block_len"),)


def long_block(facts: PairFacts) -> tuple[str, ...]:
    block_len = facts.draft("block_len")
    return (facts.draft_said("block_len"),) if block_len is not None and block_len > 32 else ()


def causal_full(facts: PairFacts) -> tuple[str, ...]:
    causal = facts.draft("causal") or ()
    full = [i for i, kind in enumerate(facts.drafter.layer_types) if kind == "full_attention"]
    if not full or not any(causal[i] for i in full if i < len(causal)):
        return ()
    return (facts.draft_said("causal"), facts.draft_said("layer_types"))


def causal_unsaid(facts: PairFacts) -> tuple[str, ...]:
    origin = facts.drafter.origins.get("causal")
    if origin is None or origin.kind != "default" or "sliding_attention" not in facts.drafter.layer_types:
        return ()
    return ("drafter config.json: is_causal = absent", facts.draft_said("layer_types"))


RULES = (
    Rule(
        "layout.contradiction",
        WARN,
        "The config says two things about the block's layout",
        contradiction,
        "sample_from_anchor and the number of proposed tokens disagree on whether the anchor's slot predicts; the "
        "wrong layout gives τ about 1.0 without an error",
        "Measure it with `truedraft recover`, then keep one statement",
        "https://github.com/sgl-project/sglang/issues/40144",
    ),
    Rule(
        "layout.unsaid",
        WARN,
        "No key says whether the anchor's slot predicts a token",
        unsaid,
        "Two layouts look alike in tensors; the wrong one gives τ about 1.0 without an error",
        "Write sample_from_anchor into the config; `truedraft recover` measures it",
        "https://github.com/vllm-project/vllm/issues/56792",
    ),
    Rule(
        "layout.tiny_block",
        FAIL,
        "The block is too short to draft anything",
        tiny_block,
        "A block is the anchor and at least one mask",
        "Correct block_size",
    ),
    Rule(
        "layout.long_block",
        WARN,
        "The block is longer than any published drafter's",
        long_block,
        "Published drafters use 7 to 16; longer drafts are seldom accepted",
        "Check block_size",
    ),
    Rule(
        "layout.causal_full",
        WARN,
        "Block rows of full layers see only earlier rows",
        causal_full,
        "is_causal or dflash_config.causal rules all layers; plain DFlash is bidirectional in full layers, JetSpec's "
        "heads are not",
        "Check the key against the drafter's card; `truedraft recover` measures it",
        "https://github.com/NVIDIA/Model-Optimizer/issues/2338",
    ),
    Rule(
        "layout.causal_unsaid",
        INFO,
        "Causality inside the block is taken from the layer types",
        causal_unsaid,
        "Without is_causal a sliding layer is causal and a full one is not; older reference code had no causal layer",
        "Write is_causal into the config where acceptance is low; `truedraft recover` measures it",
        "https://github.com/vllm-project/vllm/pull/40898",
    ),
)
