"""Heads, packed weights and caches as vLLM handles them."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, WARN, Hit, Rule
from truedraft.diagnosis.topics.quantisation import is_quantised, packed_said
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM, VLLM
from truedraft.diagnosis.topics.window import mixed


def padded_vocab(facts: PairFacts) -> tuple[str, ...]:
    ours, theirs = (
        facts.draft("embedding_vocab_size") or facts.draft("vocab_size"),
        facts.targets("vocab_size"),
    )
    own = facts.draft("own_head") or facts.draft("has_d2t") or facts.drafter.config.get("draft_vocab_size")
    if (
        ours is None
        or theirs is None
        or ours == theirs
        or own
        or not facts.older(0, 26)
        or facts.older(0, 24)
    ):
        return ()
    return (
        facts.draft_said("vocab_size"),
        facts.target_said("vocab_size"),
        "drafter lm_head.weight: absent",
        f"vLLM {show_version(facts.run.version)}",
    )


def own_head_lost(facts: PairFacts) -> tuple[str, ...]:
    rows, theirs = facts.drafter.head_rows, facts.targets("vocab_size")
    if facts.engine != "vllm-ascend" or rows is None or theirs is None or rows == theirs:
        return ()
    return f"drafter lm_head.weight has {rows} rows", facts.target_said("vocab_size")


def nested_head(facts: PairFacts) -> tuple[str, ...]:
    name = str(facts.targets("architecture") or "")
    if not name.endswith("ForConditionalGeneration") or not facts.older(0, 26) or facts.draft("own_head"):
        return ()
    return facts.target_said("architecture"), f"vLLM {show_version(facts.run.version)}"


def quantised_drafter(facts: PairFacts) -> Hit | None:
    if not is_quantised(facts):
        return None
    if facts.older(0, 32):
        return Hit((*packed_said(facts), f"vLLM {show_version(facts.run.version)}"))
    return Hit(
        packed_said(facts),
        severity=WARN,
        title="The drafter is quantised",
        cause="From 0.32 vLLM projects the context layer by layer; lower acceptance without an error is on record",
        remedy="Measure τ against the bfloat16 drafter before relying on it",
    )


def dflash2_quantised_head(facts: PairFacts) -> tuple[str, ...]:
    if facts.draft("algorithm") != "dflash2" or facts.target is None or facts.target.quantisation is None:
        return ()
    return "algorithm: dflash2", f"target quantisation: {facts.target.quantisation}"


def page_sizes(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None or "linear_attention" not in facts.target.layer_types or not facts.older(0, 22):
        return ()
    ours = (facts.draft("head_dim") or 0) * (facts.draft("num_kv_heads") or 0)
    theirs = (facts.targets("head_dim") or 0) * (facts.targets("num_kv_heads") or 0)
    if not ours or not theirs or max(ours, theirs) % min(ours, theirs) == 0:
        return ()
    return f"drafter: {ours} values a token and layer", f"target: {theirs} values a token and layer"


def prefix_reuse(facts: PairFacts) -> tuple[str, ...]:
    hybrid = facts.target is not None and "linear_attention" in facts.target.layer_types
    if not (hybrid or mixed(facts)) or "no-enable-prefix-caching" in facts.run.flags:
        return ()
    return ("target has recurrent layers",) if hybrid else (facts.draft_said("layer_types"),)


def gemma_fix(facts: PairFacts) -> tuple[str, ...]:
    if not str(facts.targets("model_type") or "").startswith("gemma4"):
        return ()
    return (facts.target_said("model_type"),)


RULES = (
    Rule(
        "head.padded_vocab",
        FAIL,
        "The head will not be shared: expect no acceptance at all",
        padded_vocab,
        "Vocabularies differ by padding, so V2 builds an id map and takes the drafter's own head, which is empty",
        "Upgrade to 0.26 or newer",
        "https://github.com/vllm-project/vllm/pull/46435",
        VLLM,
    ),
    Rule(
        "head.own_head_lost",
        WARN,
        "This engine has overwritten drafters' own heads",
        own_head_lost,
        "vllm-ascend shared the target's head over a reduced one in several releases: acceptance 25 % to 1.7 %",
        "Gate every upgrade on a measured acceptance length",
        "https://github.com/vllm-project/vllm-ascend/issues/11374",
        ("vllm-ascend",),
    ),
    Rule(
        "head.nested",
        WARN,
        "The target's head is nested under its language model",
        nested_head,
        "Older releases did not find it there and left the drafter an empty head: no acceptance",
        "Upgrade, and gate on the acceptance of position 0",
        "https://github.com/vllm-project/vllm/pull/47914",
        VLLM,
    ),
    Rule(
        "quant.packed_vllm",
        FAIL,
        "This release slices packed drafter weights as if they were dense",
        quantised_drafter,
        "Shapes do not match in the profile run; fixed in 0.32",
        "Use the bfloat16 drafter, or vLLM 0.32 or newer",
        "https://github.com/vllm-project/vllm/issues/51581",
        ANY_VLLM,
    ),
    Rule(
        "quant.dflash2_head",
        WARN,
        "DFlash2 picks candidates from the target's head, and the target is quantised",
        dflash2_quantised_head,
        "Releases refuse it, some even where the head itself is dense",
        "Use a checkpoint with a dense head",
        "https://github.com/vllm-project/vllm/pull/52883",
        ("vllm", "sglang"),
    ),
    Rule(
        "hybrid.page_sizes",
        WARN,
        "Cache pages of target and drafter do not divide",
        page_sizes,
        "Old releases assert while they unify page sizes of a hybrid target and its drafter",
        "Upgrade, or set another block size",
        "https://github.com/vllm-project/vllm/issues/46480",
        ANY_VLLM,
    ),
    Rule(
        "hybrid.prefix_reuse",
        WARN,
        "Prefix caching may find nothing with this pair",
        prefix_reuse,
        "The drafter's own cache group blocks hits on hybrid targets and mixed drafters: 0 of a million tokens on record",
        "Send one long prompt twice and look at the hits; weigh them against the gain in decoding",
        "https://github.com/vllm-project/vllm/issues/51250",
        ANY_VLLM,
    ),
    Rule(
        "head.gemma4_fix",
        WARN,
        "Gemma 4 needs a release whose drafter scales and caps like the target",
        gemma_fix,
        "Without it the drafter misses embedding scale, soft cap and masking: low acceptance or gibberish",
        "Compare greedy answers with and without the drafter",
        "https://github.com/vllm-project/vllm/pull/41703",
        ANY_VLLM,
    ),
)
