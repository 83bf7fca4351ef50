"""Batch sizes against vLLM's token budget: the commonest refusal at start."""

from __future__ import annotations

from truedraft.diagnosis.budget import SMALL_BUDGET, BudgetResult, default_sizes, token_budget
from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule

VLLM = ("vllm", "vllm-ascend")


def sizes(facts: PairFacts) -> tuple[int, int, str] | None:
    """→ (max_num_batched_tokens, max_num_seqs, where they come from), or None where not known."""
    batched, seqs = facts.run.flag_int("max-num-batched-tokens"), facts.run.flag_int("max-num-seqs")
    if batched is not None and seqs is not None:
        return batched, seqs, "flags"
    default = default_sizes(facts.run.gpu, facts.run.platform)
    if default is None:
        return None
    return batched or default[0], seqs or default[1], "flags and defaults" if batched or seqs else "defaults"


def _result(facts: PairFacts) -> tuple[BudgetResult, int, int, int, str] | None:
    found, drafted = sizes(facts), facts.num_drafted
    if found is None or drafted is None or drafted < 1:
        return None
    batched, seqs, source = found
    result = token_budget(facts.run.version, batched, seqs, drafted, facts.draft("algorithm") or "dflash")
    return result, batched, seqs, drafted, source


def _said(batched: int, seqs: int, drafted: int, source: str) -> str:
    return f"max_num_batched_tokens {batched}, max_num_seqs {seqs} ({source}), {drafted} drafted tokens"


def too_small(facts: PairFacts) -> Hit | None:
    found = _result(facts)
    if found is None or found[0].budget > 0:
        return None
    result, batched, seqs, drafted, source = found
    return Hit(
        (
            _said(batched, seqs, drafted, source),
            f"budget in vLLM {show_version(facts.run.version)}: {result.formula} = {result.budget}",
        ),
        remedy=f"Set --max-num-batched-tokens to at least {max(result.minimum, SMALL_BUDGET)} "
        f"(the smallest that starts is {result.minimum}), or lower --max-num-seqs",
    )


def small(facts: PairFacts) -> tuple[str, ...]:
    found = _result(facts)
    if found is None or not 0 < found[0].budget < SMALL_BUDGET:
        return ()
    result, batched, seqs, drafted, source = found
    return _said(batched, seqs, drafted, source), f"budget: {result.formula} = {result.budget}"


def compiled_range(facts: PairFacts) -> tuple[str, ...]:
    found = _result(facts)
    if found is None or not facts.older(0, 33):
        return ()
    _, batched, seqs, drafted, source = found
    rows = seqs * (drafted + 1)
    if rows <= batched:
        return ()
    return _said(batched, seqs, drafted, source), f"{seqs} × ({drafted} + 1) = {rows} rows > {batched}"


def capped(facts: PairFacts) -> tuple[str, ...]:
    found = _result(facts)
    if found is None or facts.older(0, 33) or found[0].budget <= 0:
        return ()
    result, batched, seqs, drafted, source = found
    if result.max_seqs >= seqs:
        return ()
    return _said(
        batched, seqs, drafted, source
    ), f"{batched} // ({drafted} + 1) = {result.max_seqs} sequences at once"


def unsized(facts: PairFacts) -> tuple[str, ...]:
    return (
        () if sizes(facts) is not None else ("max-num-batched-tokens or max-num-seqs and the GPU: not given",)
    )


RULES = (
    Rule(
        "budget.too_small",
        FAIL,
        "vLLM will refuse to start: no token budget is left after the drafts",
        too_small,
        "Draft slots of all sequences are taken off max_num_batched_tokens, and the message does not say by how much",
        "Raise --max-num-batched-tokens or lower --max-num-seqs",
        "https://github.com/vllm-project/vllm/issues/50708",
        engines=VLLM,
    ),
    Rule(
        "budget.small",
        WARN,
        "The token budget is small",
        small,
        "vLLM schedules prompts within what the drafts leave; below 8,192 it warns itself",
        "Raise --max-num-batched-tokens",
        "https://github.com/vllm-project/vllm/pull/56025",
        engines=VLLM,
    ),
    Rule(
        "budget.compiled_range",
        WARN,
        "All sequences drafting at once exceed the batched tokens",
        compiled_range,
        "The warm-up run then leaves the compiled range: a device assert or a compile error, depending on the release",
        "Raise --max-num-batched-tokens above that product, or lower --max-num-seqs",
        "https://github.com/vllm-project/vllm/pull/53970",
        engines=VLLM,
        covered_by=("budget.too_small",),
    ),
    Rule(
        "budget.capped",
        WARN,
        "Fewer sequences run at once than max_num_seqs says",
        capped,
        "From 0.33 vLLM caps concurrency to what fits K + 1 rows a sequence, and only warns",
        "Raise --max-num-batched-tokens to max_num_seqs × (K + 1)",
        engines=VLLM,
    ),
    Rule(
        "budget.unknown",
        INFO,
        "The token budget was not checked",
        unsized,
        "Default sizes depend on the GPU's memory",
        "Give --max-num-batched-tokens and --max-num-seqs, or the GPU",
        engines=VLLM,
    ),
)
