"""Which drafters and targets which release of SGLang runs."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.quantisation import is_quantised, packed_said
from truedraft.diagnosis.topics.window import sliding

SGLANG = ("sglang",)

HOOKED = (  # model families whose class can capture layers for DFlash, 0.5.23
    "beam",
    "deepseek_v2",
    "deepseek_v3",
    "gemma4",
    "glm4_moe_lite",
    "glm5_next",
    "gpt_oss",
    "inkling",
    "kimi_k25",
    "kimi_k3",
    "laguna",
    "lfm2",
    "llama",
    "mimo_v2",
    "minicpmv",
    "minimax_m3",
    "muse_glimmer",
    "muse_spark",
    "nanbeige",
    "nemotron_h",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_vl",
)

DEAD_VARIABLES = ("SGLANG_ENABLE_SPEC_V2", "SGLANG_ENABLE_DFLASH_SPEC_V2")


def _given(facts: PairFacts, *names: str) -> tuple[str, ...]:
    return tuple(f"--{name} = {facts.run.flags[name]}" for name in names if name in facts.run.flags)


def too_old(facts: PairFacts) -> Hit | None:
    algorithm = facts.draft("algorithm")
    needed = {"dspark": (0, 5, 17)}.get(str(algorithm), (0, 5, 11))
    version = show_version(facts.run.version)
    if facts.older(*needed):
        return Hit((f"algorithm: {algorithm}", f"SGLang {version}; it needs {show_version(needed)}"))
    if algorithm == "dflash2" and facts.older(0, 5, 17):
        return Hit(
            (f"algorithm: {algorithm}", f"SGLang {version}"),
            cause="This release predates DSpark, and DFlash2 is younger still",
        )
    return None


def dflash2_unsure(facts: PairFacts) -> tuple[str, ...]:
    if facts.draft("algorithm") != "dflash2" or facts.older(0, 5, 17) or not facts.older(0, 5, 23):
        return ()
    return ("algorithm: dflash2", f"SGLang {show_version(facts.run.version)}")


def last_layer(facts: PairFacts) -> tuple[str, ...]:
    ids, depth = facts.draft("capture_layers") or (), facts.targets("num_layers")
    if depth is None or depth - 1 not in ids or not str(facts.targets("model_type")).startswith("qwen3_5"):
        return ()
    return facts.draft_said("capture_layers"), facts.target_said("num_layers")


def shadowed_hook(facts: PairFacts) -> tuple[str, ...]:
    if facts.targets("architecture") != "Qwen3_5ForCausalLM":
        return ()
    return (facts.target_said("architecture"),)


def no_hook(facts: PairFacts) -> tuple[str, ...]:
    family = str(facts.targets("model_type") or "").removesuffix("_text")
    if not family or any(family == name or family.startswith(f"{name}_") for name in HOOKED):
        return ()
    return (facts.target_said("model_type"),)


def old_mamba_flag(facts: PairFacts) -> Hit | None:
    seen = _given(facts, "mamba-scheduler-strategy")
    if not seen:
        return None
    if facts.older(0, 5, 21):
        return Hit(seen, severity=INFO, cause="The old name is an alias until 0.5.20")
    return Hit(seen)


def dead_variables(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.version is None or facts.older(0, 5, 15):
        return ()
    return tuple(
        f"{name} = {facts.run.environment[name]}" for name in DEAD_VARIABLES if name in facts.run.environment
    )


def old_window_flag(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.version is None or facts.older(0, 5, 13):
        return ()
    return _given(facts, "speculative-dflash-draft-window-size")


def greedy_only(facts: PairFacts) -> tuple[str, ...]:
    return (f"platform: {facts.run.platform}",) if facts.run.platform == "npu" else ()


def quantised(facts: PairFacts) -> tuple[str, ...]:
    return packed_said(facts) if is_quantised(facts) else ()


def depth_warning(facts: PairFacts) -> tuple[str, ...]:
    if sliding(facts) and facts.older(0, 5, 13):
        return (facts.draft_said("layer_types"), f"SGLang {show_version(facts.run.version)}")
    return ()


RULES = (
    Rule(
        "sglang.too_old",
        FAIL,
        "This release of SGLang does not run such drafters",
        too_old,
        "DFlash came with 0.5.11, DSpark with 0.5.17",
        "Upgrade SGLang",
        "https://github.com/sgl-project/sglang/pull/35371",
        SGLANG,
    ),
    Rule(
        "sglang.dflash2_unsure",
        WARN,
        "It is not known whether this release runs DFlash2",
        dflash2_unsure,
        "Support is in 0.5.23; earlier releases were not checked",
        "Use 0.5.23 or newer, and look for the draft class in the log",
        "https://github.com/sgl-project/sglang/pull/35371",
        SGLANG,
    ),
    Rule(
        "sglang.last_layer",
        FAIL,
        "SGLang cannot capture the last layer of this target",
        last_layer,
        "Its hook asks for the layer after it: IndexError at start",
        "Use another engine, or a patched build",
        "https://github.com/sgl-project/sglang/issues/32204",
        SGLANG,
    ),
    Rule(
        "sglang.shadowed_hook",
        WARN,
        "This target class captures one layer off",
        shadowed_hook,
        "A duplicate method of the text-only class drops the +1",
        "Serve the multimodal class, or a patched build",
        "https://github.com/sgl-project/sglang/pull/38096",
        SGLANG,
    ),
    Rule(
        "sglang.no_hook",
        FAIL,
        "This target class cannot capture layers in SGLang",
        no_hook,
        "It has no set_dflash_layers_to_capture",
        "Use another engine",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.old_mamba_flag",
        FAIL,
        "This release no longer has --mamba-scheduler-strategy",
        old_mamba_flag,
        "Model cards still show it; from 0.5.21 it ends in an argument error",
        "Use --mamba-radix-cache-strategy",
        "https://github.com/sgl-project/sglang/pull/23000",
        SGLANG,
    ),
    Rule(
        "sglang.dead_variables",
        WARN,
        "Environment variables that no release since 0.5.15 reads",
        dead_variables,
        "The v2 worker is the only one now",
        "Remove them",
        "https://github.com/sgl-project/sglang/pull/23000",
        SGLANG,
    ),
    Rule(
        "sglang.old_window_flag",
        WARN,
        "The draft window's flag has another name now",
        old_window_flag,
        "It was generalised in 0.5.13",
        "Use --speculative-draft-window-size",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.greedy_only",
        WARN,
        "Sampling becomes greedy in verification here",
        greedy_only,
        "Without the sampling kernel the output distribution changes",
        "Serve greedy requests only, or without speculation",
        None,
        SGLANG,
    ),
    Rule(
        "quant.packed_sglang",
        WARN,
        "Quantised drafters have accepted nothing in SGLang",
        quantised,
        "A W4A16 drafter went from 3.7 to 1.0 committed tokens, without an error; the bfloat16 one was fine",
        "Use the bfloat16 drafter, or run the acceptance probe first",
        "https://github.com/sgl-project/sglang/issues/39087",
        SGLANG,
    ),
    Rule(
        "sglang.early_windows",
        WARN,
        "Sliding drafters in the first releases",
        depth_warning,
        "The window was a flag of the command before 0.5.13, not read per layer",
        "Upgrade, and measure τ past the window",
        None,
        SGLANG,
    ),
)
