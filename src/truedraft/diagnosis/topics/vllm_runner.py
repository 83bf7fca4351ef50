"""Attention layouts and positions against vLLM's two model runners."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM, V2_VARIABLE, VLLM, uses_v2
from truedraft.diagnosis.topics.window import mixed, sliding


def mixed_old(facts: PairFacts) -> tuple[str, ...]:
    if not mixed(facts) or not facts.older(0, 24):
        return ()
    return facts.draft_said("layer_types"), f"vLLM {show_version(facts.run.version)}"


def mixed_v1(facts: PairFacts) -> Hit | None:
    if not mixed(facts) or facts.older(0, 24) or uses_v2(facts) is not False:
        return None
    evidence = (
        facts.draft_said("layer_types"),
        facts.draft_said("window"),
        f"{facts.engine} {show_version(facts.run.version)} uses the V1 model runner",
    )
    if facts.engine == "vllm-ascend" or (facts.run.version or ()) >= (0, 26):
        return Hit(evidence)
    return Hit(
        evidence,
        remedy="Upgrade to vLLM 0.26 or newer, which takes the V2 runner for such drafters; "
        f"{V2_VARIABLE}=1 selects it on 0.24 and 0.25, where this layout was not finished",
    )


def mixed_v2_early(facts: PairFacts) -> tuple[str, ...]:
    version = facts.run.version
    if not mixed(facts) or version is None or not (0, 24) <= version < (0, 26) or not uses_v2(facts):
        return ()
    return facts.draft_said("layer_types"), f"vLLM {show_version(version)} with {V2_VARIABLE}=1"


def mixed_fine(facts: PairFacts) -> tuple[str, ...]:
    if not mixed(facts) or not uses_v2(facts) or facts.older(0, 26):
        return ()
    return (facts.draft_said("layer_types"),)


def dflash2_v1(facts: PairFacts) -> tuple[str, ...]:
    if facts.draft("algorithm") != "dflash2" or uses_v2(facts) is not False or facts.older(0, 28):
        return ()
    return (f"{V2_VARIABLE} = {facts.run.environment.get(V2_VARIABLE, 'unset')}", "algorithm: dflash2")


def uneven_geometry(facts: PairFacts) -> tuple[str, ...]:
    if not facts.drafter.layer_types or len(set(facts.draft("causal") or ())) < 2 or not sliding(facts):
        return ()
    if uses_v2(facts) is not False or not facts.older(0, 26):
        return ()
    return facts.draft_said("causal"), f"vLLM {show_version(facts.run.version)}"


def short_table(facts: PairFacts) -> tuple[str, ...]:
    reach, served = facts.draft("max_position"), facts.served_len
    if reach is None or served is None or reach >= served or not facts.older(0, 33):
        return ()
    return (
        facts.draft_said("max_position"),
        f"served length {served}",
        f"vLLM {show_version(facts.run.version)}",
    )


def lowered_length(facts: PairFacts) -> tuple[str, ...]:
    reach, served = facts.draft("max_position"), facts.served_len
    if reach is None or served is None or reach >= served or facts.older(0, 33) or facts.run.version is None:
        return ()
    if facts.draft("rope_type") not in ("yarn", "dynamic", "longrope"):
        return ()
    return (
        facts.draft_said("max_position"),
        f"rope type {facts.draft('rope_type')}",
        f"served length {served}",
    )


RULES = (
    Rule(
        "vllm.mixed_old",
        WARN,
        "Sliding layers run as full attention in this release",
        mixed_old,
        "Mixed sliding and full drafters are understood from 0.26 on: acceptance collapses past the window",
        "Upgrade to 0.26 or newer",
        "https://github.com/vllm-project/vllm/pull/40898",
        ANY_VLLM,
    ),
    Rule(
        "vllm.mixed_v1",
        FAIL,
        "Mixed sliding and full layers are refused under the V1 runner",
        mixed_v1,
        "The V1 runner has one attention layout for all drafter layers: a refusal at start, or a device assert on the "
        "first request",
        f"Set {V2_VARIABLE}=1, or use vLLM 0.26 or newer without switching the V2 runner off",
        "https://github.com/vllm-project/vllm/issues/50710",
        ANY_VLLM,
    ),
    Rule(
        "vllm.mixed_v2_early",
        WARN,
        "Mixed windows under an early V2 runner",
        mixed_v2_early,
        "V2 honours mixed sliding and full drafters from 0.26 on",
        "Upgrade to 0.26 or newer, and measure τ past the window",
        "https://github.com/vllm-project/vllm/pull/46104",
        VLLM,
    ),
    Rule(
        "vllm.mixed_needs_v2",
        INFO,
        "This drafter needs the V2 runner",
        mixed_fine,
        "vLLM chooses it by itself; the log must say so",
        "Look for `Using V2 Model Runner` in the log",
        "https://github.com/vllm-project/vllm/issues/50710",
        ANY_VLLM,
    ),
    Rule(
        "vllm.dflash2_v1",
        FAIL,
        "DFlash2 would draft as DFlash under the V1 runner",
        dflash2_v1,
        "The candidate head exists in V2 only",
        f"Unset {V2_VARIABLE}",
        "https://github.com/noonghunna/club-3090/issues/1064",
        ANY_VLLM,
    ),
    Rule(
        "vllm.short_table",
        FAIL,
        "The first long request will read past the drafter's rotary table",
        short_table,
        "Before 0.33 vLLM sizes the table by the drafter's max_position_embeddings: an illegal memory access, hours "
        "after the start",
        "Set --max-model-len to the drafter's max_position_embeddings, or upgrade to 0.33",
        "https://github.com/vllm-project/vllm/issues/57941",
        ANY_VLLM,
    ),
    Rule(
        "vllm.lowered_length",
        WARN,
        "vLLM will lower the served length to the drafter's",
        lowered_length,
        "From 0.33 it raises the drafter's table for plain and linear rope only; for yarn, dynamic and longrope it cuts "
        "the length",
        "Expect a shorter context, or serve without the drafter",
        "https://github.com/vllm-project/vllm/pull/57964",
        ANY_VLLM,
    ),
    Rule(
        "vllm.causal_mix",
        WARN,
        "Layers of different causality under the V1 runner",
        uneven_geometry,
        "V1 gives all drafter layers one mask",
        "Use vLLM 0.26 or newer",
        "https://github.com/vllm-project/vllm/issues/50707",
        ANY_VLLM,
        ("vllm.mixed_v1", "vllm.mixed_old"),
    ),
)
