"""vLLM's speculative config: keys that are missing, refused, ignored, or change the output."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM, VLLM

SPEC = "speculative."


def _given(facts: PairFacts, *names: str) -> tuple[str, ...]:
    return tuple(f"--{name} = {facts.run.flags[name]}" for name in names if name in facts.run.flags)


def _has_spec(facts: PairFacts) -> bool:
    return any(
        name.startswith(SPEC) or name in ("spec-method", "spec-model", "spec-tokens")
        for name in facts.run.flags
    )


def main_is_drafter(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, "model") if facts.run.flags.get("model") == facts.drafter.source else ()


def no_speculation(facts: PairFacts) -> tuple[str, ...]:
    said = set(facts.run.flags) - {"max-model-len", "max-num-seqs"}  # sizes to plan for are no command
    if not said or _has_spec(facts) or main_is_drafter(facts):
        return ()
    return ("the command has no --speculative-config",)


def no_tokens(facts: PairFacts) -> tuple[str, ...]:
    if not _has_spec(facts) or facts.run.flag_int(f"{SPEC}num_speculative_tokens", "spec-tokens") is not None:
        return ()
    return ("speculative config: num_speculative_tokens = absent",)


def too_many_tokens(facts: PairFacts) -> tuple[str, ...]:
    said, block_len = (
        facts.run.flag_int(f"{SPEC}num_speculative_tokens", "spec-tokens"),
        facts.draft("block_len"),
    )
    if said is None or block_len is None or said <= block_len - 1 + bool(facts.draft("sample_from_anchor")):
        return ()
    return f"num_speculative_tokens = {said}", facts.draft_said("block_len")


def fewer_tokens(facts: PairFacts) -> tuple[str, ...]:
    said, block_len = (
        facts.run.flag_int(f"{SPEC}num_speculative_tokens", "spec-tokens"),
        facts.draft("block_len"),
    )
    if said is None or block_len is None or said >= block_len - 1:
        return ()
    return f"num_speculative_tokens = {said}", facts.draft_said("block_len")


def guessed_method(facts: PairFacts) -> tuple[str, ...]:
    model = facts.run.flag_text(f"{SPEC}model", "spec-model")
    method = facts.run.flag_text(f"{SPEC}method", "spec-method")
    if method is not None or model is None or "dflash" in model or facts.drafter.format == "speculators":
        return ()
    return "speculative config: method = absent", f"speculative config: model = {model}"


def other_method(facts: PairFacts) -> tuple[str, ...]:
    method = facts.run.flag_text(f"{SPEC}method", "spec-method")
    allowed = {"dspark": ("dspark", "dflash")}.get(str(facts.draft("algorithm")), ("dflash",))
    return (f"speculative config: method = {method}",) if method is not None and method not in allowed else ()


def twice(facts: PairFacts) -> tuple[str, ...]:
    pairs = (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens"))
    found = [(a, SPEC + b) for a, b in pairs if a in facts.run.flags and SPEC + b in facts.run.flags]
    return tuple(line for names in found for line in _given(facts, *names))


def new_shortcuts(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, "spec-method", "spec-model", "spec-tokens") if facts.older(0, 33) else ()


def gone_values(facts: PairFacts) -> tuple[str, ...]:
    found = _given(facts, f"{SPEC}synthetic_acceptance_rate")
    if facts.run.flag_text(f"{SPEC}rejection_sample_method") in ("strict", "probabilistic"):
        found += _given(facts, f"{SPEC}rejection_sample_method")
    return found if not facts.older(0, 33) else ()


def lossy(facts: PairFacts) -> tuple[str, ...]:
    method = facts.run.flag_text(f"{SPEC}rejection_sample_method")
    return (f"rejection_sample_method = {method}",) if method in ("fly", "synthetic") else ()


def dead_length(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, f"{SPEC}max_model_len")


def refused_keys(facts: PairFacts) -> tuple[str, ...]:
    return _given(
        facts,
        f"{SPEC}tensor_parallel_size",
        f"{SPEC}disable_padded_drafter_batch",
        f"{SPEC}draft_lm_head_quantization",
    )


def early_keys(facts: PairFacts) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    for name, version in (
        ("attention_backend", (0, 22)),
        ("num_speculative_tokens_per_batch_size", (0, 24)),
        ("kv_cache_dtype", (0, 26)),
    ):
        if facts.older(*version):
            found += _given(facts, SPEC + name)
    return (*found, f"vLLM {show_version(facts.run.version)}") if found else ()


def ignored_backend(facts: PairFacts) -> tuple[str, ...]:
    version = facts.run.version
    if version is None or not (0, 24) <= version < (0, 26):
        return ()
    return _given(facts, f"{SPEC}attention_backend")


def bad_synthetic(facts: PairFacts) -> tuple[str, ...]:
    keys = [f"{SPEC}synthetic_acceptance_rates", f"{SPEC}synthetic_acceptance_length"]
    given = _given(facts, *keys)
    wanted = facts.run.flag_text(f"{SPEC}rejection_sample_method") == "synthetic"
    return (
        (*given, f"rejection_sample_method synthetic: {wanted}")
        if (len(given) == 1) != wanted and (given or wanted)
        else ()
    )


RULES = (
    Rule(
        "command.main_is_drafter",
        FAIL,
        "The drafter is served as the main model",
        main_is_drafter,
        "The hub's automatic snippet puts the drafter where the target belongs: a bare assert in vLLM",
        "Serve the target, and name the drafter in --speculative-config",
        "https://github.com/jundot/omlx/issues/886",
    ),
    Rule(
        "command.no_speculation",
        WARN,
        "The command does not speculate",
        no_speculation,
        "Without --speculative-config the drafter is never loaded, and nothing says so",
        'Add --speculative-config \'{"method": "dflash", "model": "DRAFT", "num_speculative_tokens": BLOCK - 1}\'',
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.no_tokens",
        FAIL,
        "The number of drafted tokens is not given",
        no_tokens,
        "vLLM asks for it and does not read block_size",
        "Set num_speculative_tokens to block_size − 1",
        "https://github.com/vllm-project/recipes/pull/837",
        ANY_VLLM,
    ),
    Rule(
        "command.too_many_tokens",
        WARN,
        "More tokens are drafted than the drafter was trained for",
        too_many_tokens,
        "vLLM never compares the two; positions beyond the block are seldom accepted and still verified",
        "Set num_speculative_tokens to block_size − 1",
        "https://github.com/raullenchai/Rapid-MLX/issues/2195",
        ANY_VLLM,
    ),
    Rule(
        "command.fewer_tokens",
        INFO,
        "Fewer tokens are drafted than the drafter was trained for",
        fewer_tokens,
        "A block of 16 cut to 8 accepts a little less in each round than a drafter trained at 8",
        "Right under high concurrency; at one stream block_size − 1 is faster",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.guessed_method",
        FAIL,
        "vLLM will not recognise the drafter as DFlash",
        guessed_method,
        "Without a method it looks for `dflash` in the path, and else takes the drafter for an ordinary draft model",
        'Add "method": "dflash"',
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.other_method",
        FAIL,
        "The method is not that of the drafter",
        other_method,
        "Another method skips the fusion of captured layers: accept length exactly 1.00, no warning",
        "Set the method to dflash",
        "https://github.com/sgl-project/sglang/pull/21272",
        ANY_VLLM,
    ),
    Rule(
        "command.twice",
        FAIL,
        "A shortcut and the speculative config say the same thing",
        twice,
        "vLLM refuses both together",
        "Keep one",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.new_shortcuts",
        FAIL,
        "This release has no such shortcuts",
        new_shortcuts,
        "--spec-method, --spec-model and --spec-tokens came with 0.33",
        "Use --speculative-config",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.gone_values",
        FAIL,
        "This release no longer has these names",
        gone_values,
        "Old documents list strict, probabilistic and synthetic_acceptance_rate; 0.33 has standard, block, synthetic, fly",
        "Leave rejection_sample_method out, or use a current name",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.lossy",
        WARN,
        "This way of accepting changes the output",
        lossy,
        "`fly` accepts tokens that the target would not have chosen; `synthetic` accepts by dice, for benchmarks",
        "Leave rejection_sample_method out",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.synthetic",
        FAIL,
        "Synthetic acceptance needs exactly one of its two keys",
        bad_synthetic,
        "Rates or a length, and only with the method synthetic",
        "Remove them outside of benchmarks",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.dead_length",
        WARN,
        "The drafter's max_model_len does nothing",
        dead_length,
        "The key is parsed and never used: long requests keep drafting at 5 to 8 % acceptance",
        "Route long requests to a deployment without the drafter",
        "https://github.com/vllm-project/vllm/issues/52258",
        ANY_VLLM,
    ),
    Rule(
        "command.refused_keys",
        FAIL,
        "vLLM refuses this key for DFlash",
        refused_keys,
        "tensor_parallel_size has another name here; unpadded drafting and draft head quantisation are for other methods",
        "Remove the key; draft_tensor_parallel_size is the name for parallel drafters",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.early_keys",
        FAIL,
        "This release does not have the key yet",
        early_keys,
        "attention_backend came with 0.22, dynamic draft lengths with 0.24, the draft's kv_cache_dtype with 0.26",
        "Upgrade, or remove the key",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.ignored_backend",
        WARN,
        "The draft's attention backend may be ignored",
        ignored_backend,
        "The V2 runner honours the key from 0.26 on",
        "Compare with the backend line in the log, or upgrade",
        "https://github.com/vllm-project/vllm/pull/46770",
        VLLM,
    ),
)
