"""Embedding, head, vocabulary map and mask token."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.files import suggestions
from truedraft.diagnosis.topics.pairing import PADDING_ROWS


def mask_missing(facts: PairFacts) -> Hit | None:
    if facts.draft("mask_token_id") is not None or "mask_token_id" not in facts.drafter.missing:
        return None
    evidence = ["drafter config.json: dflash_config.mask_token_id = absent"]
    evidence += [said for said in (suggestions(facts, "mask_token_id"),) if said]
    if facts.engine == "sglang":
        return Hit(
            tuple(evidence), severity=WARN, cause="SGLang may add a token of its own to the tokenizer then"
        )
    return Hit(tuple(evidence))


def mask_out_of_range(facts: PairFacts) -> tuple[str, ...]:
    mask, rows = (
        facts.draft("mask_token_id"),
        facts.targets("vocab_size") or facts.draft("embedding_vocab_size"),
    )
    if mask is None or rows is None or mask < rows:
        return ()
    said = facts.target_said("vocab_size") if facts.targets("vocab_size") else f"{rows} embedding rows"
    return facts.draft_said("mask_token_id"), said


def mask_is_padding(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None or facts.target.tokenizer is None or facts.target.tokenizer.num_tokens is None:
        return ()
    mask, rows, known = (
        facts.draft("mask_token_id"),
        facts.targets("vocab_size"),
        facts.target.tokenizer.num_tokens,
    )
    if mask is None or rows is None or not known <= mask < rows:
        return ()
    return facts.draft_said(
        "mask_token_id"
    ), f"target tokenizer: ids end at {known - 1}; embedding rows: {rows}"


def mask_is_eos(facts: PairFacts) -> tuple[str, ...]:
    mask, eos = facts.draft("mask_token_id"), facts.targets("eos_ids") or ()
    return (facts.draft_said("mask_token_id"), facts.target_said("eos_ids")) if mask in eos else ()


def map_without_head(facts: PairFacts) -> tuple[str, ...]:
    if not facts.draft("has_d2t") or facts.draft("own_head"):
        return ()
    return ("drafter tensor d2t: present", "drafter tensor lm_head.weight: absent")


def reduced_without_map(facts: PairFacts) -> tuple[str, ...]:
    rows, theirs = facts.drafter.head_rows, facts.targets("vocab_size")
    if rows is None or theirs is None or facts.draft("has_d2t") or theirs - rows <= PADDING_ROWS:
        return ()
    return f"drafter lm_head.weight has {rows} rows, and there is no d2t", facts.target_said("vocab_size")


def reduced(facts: PairFacts) -> tuple[str, ...]:
    rows, theirs = facts.drafter.head_rows, facts.targets("vocab_size")
    if rows is None or theirs is None or not facts.draft("has_d2t") or rows >= theirs:
        return ()
    return f"drafter lm_head.weight has {rows} rows ({rows / theirs:.0%})", facts.target_said("vocab_size")


def gemma(facts: PairFacts) -> tuple[str, ...]:
    if not str(facts.targets("model_type") or "").startswith("gemma"):
        return ()
    scale, cap = (
        facts.drafter.origins.get("embedding_scale"),
        facts.drafter.origins.get("final_logit_softcap"),
    )
    if scale is None or cap is None or (scale.kind == "key" and cap.kind == "key"):
        return ()
    return facts.draft_said("embedding_scale"), facts.draft_said("final_logit_softcap")


def softcap_differs(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None:
        return ()
    text = facts.target.config.get("text_config")
    scopes = (text if isinstance(text, dict) else {}, facts.target.config)
    theirs = next((s["final_logit_softcapping"] for s in scopes if s.get("final_logit_softcapping")), None)
    ours = facts.draft("final_logit_softcap")
    if ours is None or theirs is None or float(ours) == theirs:
        return ()
    return facts.draft_said("final_logit_softcap"), f"target config.json: final_logit_softcapping = {theirs}"


def mask_embedding(facts: PairFacts) -> tuple[str, ...]:
    if "mask_embedding" not in facts.drafter.extras:
        return ()
    names = [t.name for t in facts.drafter.tensors if "mask_embedding" in t.name or "mask_hidden" in t.name]
    return tuple(f"drafter tensor {name}: present" for name in names[:3])


RULES = (
    Rule(
        "head.mask_missing",
        FAIL,
        "The drafter does not say which token is its mask",
        mask_missing,
        "The block's empty places are rows of the target's embedding: which one, only training knows",
        "Write dflash_config.mask_token_id into its config; `truedraft recover` measures candidates",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1621",
    ),
    Rule(
        "head.mask_out_of_range",
        FAIL,
        "The mask token is not in the target's embedding",
        mask_out_of_range,
        "Its id is at least as high as the number of rows",
        "Use the drafter of this target, or correct mask_token_id",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1621",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "head.mask_is_padding",
        WARN,
        "The mask token is a padding row of the embedding",
        mask_is_padding,
        "The row exists and was never trained as a token: right only if the drafter was trained with it",
        "Check the id against the drafter's card; measure τ",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1621",
    ),
    Rule(
        "head.mask_is_eos",
        WARN,
        "The mask token ends a sequence",
        mask_is_eos,
        "Published drafters use an id that text does not contain",
        "Check the id against the drafter's card",
    ),
    Rule(
        "head.map_without_head",
        FAIL,
        "There is a vocabulary map, but no head of that vocabulary",
        map_without_head,
        "d2t numbers the rows of the drafter's own head",
        "Get the complete checkpoint",
        "https://github.com/vllm-project/vllm/pull/46435",
    ),
    Rule(
        "head.reduced_without_map",
        FAIL,
        "The drafter's head is smaller than the vocabulary, and no map says which tokens it has",
        reduced_without_map,
        "Without d2t its rows cannot be told apart",
        "Get the complete checkpoint",
    ),
    Rule(
        "head.reduced",
        INFO,
        "The drafter can propose only part of the vocabulary",
        reduced,
        "Tokens outside its table are never drafted, which caps acceptance",
        "Nothing to do; a full-vocabulary drafter accepts more",
    ),
    Rule(
        "head.gemma_scale",
        WARN,
        "A Gemma drafter that does not state embedding scale and soft cap",
        gemma,
        "Gemma multiplies embeddings by √hidden and caps logits; implementations disagree on what its drafters expect",
        "Measure τ both ways with `truedraft recover`",
        "https://github.com/vllm-project/vllm/pull/41703",
    ),
    Rule(
        "head.softcap_differs",
        WARN,
        "Drafter and target cap logits differently",
        softcap_differs,
        "The cap does not change the most likely token, but it changes drafts sampled at a temperature",
        "Check the drafter's card",
        "https://github.com/vllm-project/vllm/pull/41703",
    ),
    Rule(
        "head.mask_embedding",
        WARN,
        "The drafter brings its own row for the mask",
        mask_embedding,
        "Some engines refuse the tensor, others ignore it and look up mask_token_id instead",
        "Use an engine that says it reads it",
    ),
)
