"""vLLM's parallelism and modes against a drafter."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM

SPEC = "speculative."

AUX_RELAY = (
    "qwen2",
    "qwen3",
    "llama",
    "sarvam",
    "minimax_m3",
    "deepseek_v4",
    "kimi_k3",
)  # pass states between stages


def _given(facts: PairFacts, *names: str) -> tuple[str, ...]:
    return tuple(f"--{name} = {facts.run.flags[name]}" for name in names if name in facts.run.flags)


def _has_spec(facts: PairFacts) -> bool:
    return any(
        name.startswith(SPEC) or name in ("spec-method", "spec-model", "spec-tokens")
        for name in facts.run.flags
    )


def dynamic_parallel(facts: PairFacts) -> tuple[str, ...]:
    if (facts.run.flag_int("data-parallel-size") or 1) < 2:
        return ()
    return _given(facts, f"{SPEC}num_speculative_tokens_per_batch_size")


def draft_parallel(facts: PairFacts) -> tuple[str, ...]:
    tp = facts.run.flag_int("tensor-parallel-size") or 1
    draft = facts.run.flag_int(f"{SPEC}draft_tensor_parallel_size")
    if draft is None or draft in (1, tp):
        return ()
    return f"draft_tensor_parallel_size = {draft}", f"tensor-parallel-size = {tp}"


def heads_split(facts: PairFacts) -> tuple[str, ...]:
    tp = facts.run.flag_int("tensor-parallel-size") or 1
    tp = facts.run.flag_int(f"{SPEC}draft_tensor_parallel_size") or tp
    heads, kv = facts.draft("num_heads"), facts.draft("num_kv_heads")
    if not heads or not kv or tp < 2 or (heads % tp == 0 and (kv % tp == 0 or tp % kv == 0)):
        return ()
    return facts.draft_said("num_heads"), facts.draft_said("num_kv_heads"), f"tensor-parallel-size = {tp}"


def pipeline(facts: PairFacts) -> tuple[str, ...]:
    stages = facts.run.flag_int("pipeline-parallel-size") or 1
    family = str(facts.targets("model_type") or "")
    if stages < 2 or not family or family in AUX_RELAY:
        return ()
    return f"pipeline-parallel-size = {stages}", facts.target_said("model_type")


def sleep_mode(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, "enable-sleep-mode")


def lora(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, "enable-lora", "lora-modules")


def expert_parallel(facts: PairFacts) -> tuple[str, ...]:
    theirs = [c.get("num_experts") for c in _configs(facts) if c.get("num_experts")]
    ours = facts.drafter.config.get("num_experts")
    if "enable-expert-parallel" not in facts.run.flags or not ours or not theirs or ours == theirs[0]:
        return ()
    return f"drafter config.json: num_experts = {ours}", f"target config.json: num_experts = {theirs[0]}"


def _configs(facts: PairFacts) -> list[dict[str, object]]:
    if facts.target is None:
        return []
    text = facts.target.config.get("text_config")
    return [text if isinstance(text, dict) else {}, dict(facts.target.config)]


def full_length_hang(facts: PairFacts) -> tuple[str, ...]:
    if (facts.run.flag_int("data-parallel-size") or 1) < 2 or not facts.drafter.config.get("num_experts"):
        return ()
    return _given(facts, "data-parallel-size")


def prefill_node(facts: PairFacts) -> tuple[str, ...]:
    transfer = str(facts.run.flags.get("kv-transfer-config", ""))
    return ("--kv-transfer-config: kv_producer",) if "kv_producer" in transfer and _has_spec(facts) else ()


def no_graphs(facts: PairFacts) -> tuple[str, ...]:
    return _given(facts, "enforce-eager", f"{SPEC}enforce_eager")


RULES = (
    Rule(
        "command.dynamic_parallel",
        WARN,
        "Dynamic draft lengths are switched off under data parallelism",
        dynamic_parallel,
        "vLLM warns once and goes on with a fixed length",
        "Expect a fixed number of drafts",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.draft_parallel",
        FAIL,
        "The drafter's tensor parallelism must be 1 or the target's",
        draft_parallel,
        "Other values are refused",
        "Set draft_tensor_parallel_size to 1, or leave it out",
        None,
        ANY_VLLM,
    ),
    Rule(
        "command.heads_split",
        FAIL,
        "The drafter's heads do not divide over the GPUs",
        heads_split,
        "A bare assert without text",
        "Set draft_tensor_parallel_size to 1",
        "https://github.com/NVIDIA-NeMo/RL/issues/3723",
        ANY_VLLM,
    ),
    Rule(
        "command.pipeline",
        FAIL,
        "This target does not pass captured states between pipeline stages",
        pipeline,
        "Only a few families relay them",
        "Use tensor parallelism",
        "https://github.com/vllm-project/vllm/issues/52761",
        ANY_VLLM,
    ),
    Rule(
        "command.sleep_mode",
        WARN,
        "A level-2 sleep kills the drafter",
        sleep_mode,
        "Waking up reloads the target's weights only: no acceptance from then on",
        "Use level 1, or restart",
        "https://github.com/vllm-project/vllm/pull/52487",
        ANY_VLLM,
    ),
    Rule(
        "command.lora",
        INFO,
        "Adapters apply to the target only",
        lora,
        "The drafter runs without them: less acceptance on adapted requests",
        "Measure τ with the adapters that you use",
        "https://github.com/vllm-project/vllm/issues/52038",
        ANY_VLLM,
    ),
    Rule(
        "command.expert_parallel",
        WARN,
        "Drafter and target have different numbers of experts",
        expert_parallel,
        "Under expert parallelism a filter made for the target drops the drafter's experts: low, flat acceptance",
        "Switch expert parallelism off",
        "https://github.com/vcruz305/vllm-exl3/pull/35",
        ANY_VLLM,
    ),
    Rule(
        "command.dp_hang",
        WARN,
        "Ranks may disagree on drafting near the full length",
        full_length_hang,
        "With data parallelism and a drafter of experts that ends in a hang",
        "Keep K + 1 tokens below max_model_len",
        "https://github.com/vllm-project/vllm/issues/44185",
        ANY_VLLM,
    ),
    Rule(
        "command.prefill_node",
        WARN,
        "A drafter on the prefill side of a split deployment",
        prefill_node,
        "Speculation belongs to the side that decodes; the other crashes or pays for nothing",
        "Speculate on the decoding side only",
        "https://github.com/vllm-project/vllm/issues/48221",
        ANY_VLLM,
    ),
    Rule(
        "command.eager",
        WARN,
        "CUDA graphs are off",
        no_graphs,
        "An eager drafter costs more than it saves on small batches",
        "Leave --enforce-eager out",
        None,
        ANY_VLLM,
    ),
)
