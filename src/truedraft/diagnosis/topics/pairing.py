"""Whether this drafter was made for this target."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule

PADDING_ROWS = 1024  # vocabularies are padded to multiples of up to this many rows
VARIANT_MARKS = ("abliterated", "uncensored", "heretic", "decensored", "josiefied")


def other_target(facts: PairFacts) -> Hit | None:
    """One finding for everything that says "made for another model"."""
    if facts.target is None:
        return None
    evidence: list[str] = []
    for draft, target in (("num_target_layers", "num_layers"), ("target_hidden_size", "hidden_size")):
        ours, theirs = facts.draft(draft), facts.targets(target)
        if ours is not None and theirs is not None and ours != theirs:
            evidence += [facts.draft_said(draft), facts.target_said(target)]
    if vocabulary_differs(facts):
        evidence += [facts.draft_said("vocab_size"), facts.target_said("vocab_size")]
    if not evidence:
        return None
    ids, depth = facts.draft("capture_layers"), facts.targets("num_layers")
    if ids and depth and max(ids) >= depth:
        evidence.append(facts.draft_said("capture_layers"))
    return Hit(tuple(evidence))


def vocabulary_differs(facts: PairFacts) -> bool:
    """Whether a drafter that borrows the target's head was made for another vocabulary."""
    ours, theirs = facts.draft("vocab_size"), facts.targets("vocab_size")
    if ours is None or theirs is None or facts.draft("own_head") or facts.draft("has_d2t"):
        return False
    return bool(abs(ours - theirs) > PADDING_ROWS)


def fc_width(facts: PairFacts) -> tuple[str, ...]:
    ids, width = facts.draft("capture_layers"), facts.targets("hidden_size")
    fc = next((t for t in facts.drafter.tensors if t.name.removeprefix("model.") == "fc.weight"), None)
    if fc is None or len(fc.shape) != 2 or not ids or width is None or fc.shape[1] == len(ids) * width:
        return ()
    return (
        f"drafter fc.weight {list(fc.shape)}",
        f"{len(ids)} capture layers × target hidden_size {width} = {len(ids) * width}",
    )


def vocabulary_padding(facts: PairFacts) -> tuple[str, ...]:
    ours, theirs = facts.draft("vocab_size"), facts.targets("vocab_size")
    if (
        ours is None
        or theirs is None
        or ours == theirs
        or facts.draft("own_head")
        or vocabulary_differs(facts)
    ):
        return ()
    return facts.draft_said("vocab_size"), facts.target_said("vocab_size")


def own_embedding(facts: PairFacts) -> tuple[str, ...]:
    rows, theirs = facts.drafter.embedding_rows, facts.targets("vocab_size")
    if rows is None or theirs is None or abs(rows - theirs) <= PADDING_ROWS:
        return ()
    return f"drafter embed_tokens.weight has {rows} rows", facts.target_said("vocab_size")


def tokenizer(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None or facts.target.tokenizer is None or facts.drafter.tokenizer is None:
        return ()
    ours, theirs = facts.drafter.tokenizer, facts.target.tokenizer
    if ours.vocab_sha256 is None or theirs.vocab_sha256 is None or ours.vocab_sha256 == theirs.vocab_sha256:
        return ()
    return (
        f"drafter tokenizer.json: {ours.num_tokens} tokens, fingerprint {ours.vocab_sha256[:12]}",
        f"target tokenizer.json: {theirs.num_tokens} tokens, fingerprint {theirs.vocab_sha256[:12]}",
    )


def no_depth(facts: PairFacts) -> tuple[str, ...]:
    if facts.drafter.format == "speculators" or facts.draft("num_target_layers") is not None:
        return ()
    return () if facts.drafter.config_problem else (facts.draft_said("num_target_layers"),)


def verifier_name(facts: PairFacts) -> tuple[str, ...]:
    outer = facts.drafter.config.get("speculators_config")
    verifier = outer.get("verifier") if isinstance(outer, dict) else None
    names = verifier.get("architectures") if isinstance(verifier, dict) else None
    architecture = facts.targets("architecture")
    if not isinstance(names, list) or not names or architecture is None or architecture in names:
        return ()
    return (
        f"drafter config.json: speculators_config.verifier.architectures = {names}",
        facts.target_said("architecture"),
    )


def variant_target(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None:
        return ()
    names = (facts.target.source, str(facts.target.config.get("_name_or_path") or ""))
    found = next((name for name in names if any(mark in name.lower() for mark in VARIANT_MARKS)), None)
    ours = facts.drafter.source.lower()
    if found is None or any(mark in ours for mark in VARIANT_MARKS):
        return ()
    return f"target: {found}", f"drafter: {facts.drafter.source}"


def heads(facts: PairFacts) -> tuple[str, ...]:
    num, kv = facts.draft("num_heads"), facts.draft("num_kv_heads")
    if not num or not kv or num % kv == 0:
        return ()
    return facts.draft_said("num_heads"), facts.draft_said("num_kv_heads")


def head_dim(facts: PairFacts) -> tuple[str, ...]:
    size = facts.draft("head_dim")
    return (facts.draft_said("head_dim"),) if size is not None and size % 2 else ()


RULES = (
    Rule(
        "pair.other_target",
        FAIL,
        "This drafter was made for another target",
        other_target,
        "A drafter reads hidden states of the very model that it was trained with: depth, width and vocabulary "
        "must be that model's",
        "Serve the target that the drafter names, or get the drafter of this target",
        "https://github.com/vllm-project/vllm/pull/48113",
    ),
    Rule(
        "pair.fc_width",
        FAIL,
        "The drafter's fc does not take what the target's capture layers give",
        fc_width,
        "fc is as wide as the capture layers side by side",
        "Use the drafter of this target; check the number of capture layers",
        "https://github.com/vllm-project/vllm/pull/48113",
        covered_by=("pair.other_target", "capture.count"),
    ),
    Rule(
        "pair.vocab_padding",
        INFO,
        "Vocabularies differ by padding only",
        vocabulary_padding,
        "The drafter borrows the target's embedding and head, so its own number is not used here",
        "Nothing to do; on vLLM before 0.26 see head.padded_vocab",
        "https://github.com/vllm-project/vllm/pull/46435",
    ),
    Rule(
        "pair.own_embedding",
        FAIL,
        "The drafter's own embedding is of another vocabulary",
        own_embedding,
        "Token ids of the target would look up other tokens' rows, or none",
        "Use the drafter of this target",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "pair.tokenizer",
        WARN,
        "Drafter and target come with different tokenizers",
        tokenizer,
        "The target's is used; the drafter was trained with other token ids",
        "Check that the drafter was trained for this very target; measure τ before relying on it",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "pair.depth_unsaid",
        INFO,
        "The drafter does not say how many layers its target has",
        no_depth,
        "Without num_target_layers a drafter of another model of the same width goes unnoticed",
        "Add num_target_layers to its config",
    ),
    Rule(
        "pair.verifier",
        WARN,
        "The drafter names another kind of verifier",
        verifier_name,
        "speculators records the architecture that the drafter was trained with",
        "Check that this is the right target, or only another class name of it (text-only against multimodal)",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "pair.variant_target",
        WARN,
        "The target is a variant that its drafter was probably not made for",
        variant_target,
        "Drafters of the base model fall to about a tenth of their acceptance on abliterated variants, without an error",
        "Measure τ before relying on it; draft about 4 tokens, or train a drafter for this target",
        "https://github.com/AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-DFlash/issues/6",
    ),
    Rule(
        "pair.heads",
        FAIL,
        "Query heads do not divide into key/value heads",
        heads,
        "Each key/value head serves a whole number of query heads",
        "Use the config.json that belongs to these weights",
    ),
    Rule(
        "pair.head_dim",
        FAIL,
        "The head dimension is odd",
        head_dim,
        "Rotary positions turn pairs of values",
        "Use the config.json that belongs to these weights",
    ),
)
