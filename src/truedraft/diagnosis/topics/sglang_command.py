"""SGLang's launch command: flags that are wrong, refused, or change the output."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, WARN, Rule

SGLANG = ("sglang",)

BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "trtllm_mha", "intel_xpu")


def _given(facts: PairFacts, *names: str) -> tuple[str, ...]:
    return tuple(f"--{name} = {facts.run.flags[name]}" for name in names if name in facts.run.flags)


def other_algorithm(facts: PairFacts) -> tuple[str, ...]:
    said = facts.run.flag_text("speculative-algorithm")
    wanted = ("dspark", "dflash") if facts.draft("algorithm") == "dspark" else ("dflash",)
    return _given(facts, "speculative-algorithm") if said is not None and said not in wanted else ()


def no_drafter(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.flag_text("speculative-algorithm") is None:
        return ()
    if any(name in facts.run.flags for name in ("speculative-draft-model-path", "speculative-draft-model")):
        return ()
    return ("--speculative-draft-model-path = absent",)


def _block(facts: PairFacts) -> int | None:
    return facts.run.flag_int("speculative-num-draft-tokens", "speculative-dflash-block-size")


def block_differs(facts: PairFacts) -> tuple[str, ...]:
    said, block_len = _block(facts), facts.draft("block_len")
    if said is None or block_len is None or said == block_len:
        return ()
    return f"--speculative-num-draft-tokens = {said}", facts.draft_said("block_len")


def two_blocks(facts: PairFacts) -> tuple[str, ...]:
    names = ("speculative-num-draft-tokens", "speculative-dflash-block-size")
    said = {facts.run.flag_int(name) for name in names if name in facts.run.flags}
    return _given(facts, *names) if len(said) > 1 else ()


def block_unsaid(facts: PairFacts) -> tuple[str, ...]:
    if facts.draft("block_len") is not None or _block(facts) is not None:
        return ()
    return ("drafter config.json: block_size = absent",)


def pipeline(facts: PairFacts) -> tuple[str, ...]:
    size = facts.run.flag_int("pp-size", "pipeline-parallel-size") or 1
    return (f"--pp-size = {size}",) if size > 1 else ()


def short_window(facts: PairFacts) -> tuple[str, ...]:
    window = facts.run.flag_int("speculative-draft-window-size", "speculative-dflash-draft-window-size")
    block_len = _block(facts) or facts.draft("block_len")
    if window is None or block_len is None or window >= block_len:
        return ()
    return f"--speculative-draft-window-size = {window}", f"block {block_len}"


def data_attention(facts: PairFacts) -> tuple[str, ...]:
    if "enable-dp-attention" not in facts.run.flags or "enable-dp-lm-head" in facts.run.flags:
        return ()
    return "--enable-dp-attention", "--enable-dp-lm-head = absent"


def data_attention_memory(facts: PairFacts) -> tuple[str, ...]:
    return ("--enable-dp-attention",) if "enable-dp-attention" in facts.run.flags else ()


def unknown_backend(facts: PairFacts) -> tuple[str, ...]:
    said = facts.run.flag_text("speculative-draft-attention-backend")
    return (
        (f"--speculative-draft-attention-backend = {said}",)
        if said is not None and said not in BACKENDS
        else ()
    )


def trtllm_backend(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.flag_text("speculative-draft-attention-backend") != "trtllm_mha":
        return ()
    all_slide = bool(facts.drafter.layer_types) and all(
        kind == "sliding_attention" for kind in facts.drafter.layer_types
    )
    if all_slide or all(facts.draft("causal") or (False,)):
        return ()
    return "--speculative-draft-attention-backend = trtllm_mha", facts.draft_said("layer_types")


def lossy(facts: PairFacts) -> tuple[str, ...]:
    found = []
    for name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc"):
        value = facts.run.flags.get(name)
        if value is not None and str(value) not in ("1", "1.0"):
            found.append(f"--{name} = {value}")
    return tuple(found)


def simulated(facts: PairFacts) -> tuple[str, ...]:
    return tuple(
        f"{k} = {v}" for k, v in facts.run.environment.items() if k.startswith("SGLANG_SIMULATE_ACC")
    )


def track_interval(facts: PairFacts) -> tuple[str, ...]:
    interval, block_len = (
        facts.run.flag_int("mamba-track-interval"),
        _block(facts) or facts.draft("block_len"),
    )
    if interval is None or block_len is None or interval >= block_len:
        return ()
    return f"--mamba-track-interval = {interval}", f"block {block_len}"


def hybrid_strategy(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None or "linear_attention" not in facts.target.layer_types:
        return ()
    said = facts.run.flag_text("mamba-radix-cache-strategy", "mamba-scheduler-strategy") or "auto"
    return (f"--mamba-radix-cache-strategy = {said}",) if said in ("auto", "no_buffer") else ()


def prefill_role(facts: PairFacts) -> tuple[str, ...]:
    if (
        facts.run.flag_text("disaggregation-mode") != "prefill"
        or "speculative-algorithm" not in facts.run.flags
    ):
        return ()
    return ("--disaggregation-mode = prefill", "--speculative-algorithm")


RULES = (
    Rule(
        "sglang.other_algorithm",
        FAIL,
        "The algorithm is not that of the drafter",
        other_algorithm,
        "Started as EAGLE the fusion layer is skipped: accept length exactly 1.00, no warning",
        "Set --speculative-algorithm DFLASH",
        "https://github.com/sgl-project/sglang/pull/21272",
        SGLANG,
    ),
    Rule(
        "sglang.no_drafter",
        FAIL,
        "No drafter is named",
        no_drafter,
        "DFLASH requires its path",
        "Add --speculative-draft-model-path",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.block_differs",
        WARN,
        "The block in the command is not the drafter's",
        block_differs,
        "SGLang counts the anchor (vLLM's number plus one) and only warns",
        "Set it to block_size",
        "https://github.com/vllm-project/vllm/pull/16035",
        SGLANG,
    ),
    Rule(
        "sglang.two_blocks",
        FAIL,
        "Two flags give the block, differently",
        two_blocks,
        "They must match",
        "Keep one",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.block_unsaid",
        WARN,
        "SGLang will assume a block of 16",
        block_unsaid,
        "The drafter's config does not say, and the default is silent",
        "Write block_size into the drafter's config",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.pipeline",
        FAIL,
        "DFLASH runs without pipeline parallelism only",
        pipeline,
        "Refused at start",
        "Use tensor parallelism",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.short_window",
        FAIL,
        "The draft window is shorter than the block",
        short_window,
        "Refused at start",
        "Leave the flag out, or raise it",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.data_attention",
        FAIL,
        "Data-parallel attention needs the head to be parallel too",
        data_attention,
        "Refused at start",
        "Add --enable-dp-lm-head",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.data_attention_memory",
        WARN,
        "Draft cache is undercounted under data-parallel attention",
        data_attention_memory,
        "It is divided by tp instead of attention-tp: out of memory at fraction 0.80",
        "Lower --mem-fraction-static",
        "https://github.com/sgl-project/sglang/issues/38202",
        SGLANG,
    ),
    Rule(
        "sglang.unknown_backend",
        WARN,
        "SGLang will replace the draft's attention backend",
        unknown_backend,
        "Backends it does not know for drafts fall back with a warning",
        "Use flashinfer, fa3, fa4 or triton",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.trtllm_backend",
        WARN,
        "trtllm_mha cannot run this drafter's layers",
        trtllm_backend,
        "It needs all layers to slide, or to be causal",
        "Use flashinfer, fa3 or fa4",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.lossy",
        WARN,
        "Thresholds below 1 change the output",
        lossy,
        "Tokens are accepted that the target would not have drawn",
        "Leave the thresholds at 1",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.simulated",
        WARN,
        "Acceptance is simulated",
        simulated,
        "These variables are for benchmarks",
        "Unset them before serving",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.track_interval",
        FAIL,
        "The state-tracking interval is shorter than the block",
        track_interval,
        "A bare assert",
        "Raise --mamba-track-interval (256 by default)",
        None,
        SGLANG,
    ),
    Rule(
        "sglang.hybrid_strategy",
        WARN,
        "Overlap may be off for this hybrid target",
        hybrid_strategy,
        "`auto` can fall to no_buffer, which disables overlap and lengthens the time to the first token",
        "Set --mamba-radix-cache-strategy extra_buffer, and look at the chosen one in the log",
        "https://github.com/sgl-project/sglang/pull/19169",
        SGLANG,
    ),
    Rule(
        "sglang.prefill_role",
        FAIL,
        "Speculation on the prefill side crashes",
        prefill_role,
        "The drafter belongs to the side that decodes",
        "Remove the speculative flags from the prefill side",
        "https://github.com/sgl-project/sglang/issues/36140",
        SGLANG,
    ),
)
