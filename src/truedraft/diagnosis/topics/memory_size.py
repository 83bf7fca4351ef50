"""Whether the pair fits the GPU's memory, with room to work."""

from __future__ import annotations

from truedraft.contract.units import format_bytes
from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.memory import MemoryPlan, plan_memory, recurrent_bytes
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule

GIB = 1024**3
HEAD_ROOM_BYTES = 2 * GIB  # left free after start, for workspaces of the first real prefill
SERVERS = ("vllm", "vllm-ascend", "sglang")


def _utilisation(facts: PairFacts) -> float:
    for name in ("gpu-memory-utilization", "mem-fraction-static"):
        try:
            return float(facts.run.flags[name])
        except (KeyError, TypeError, ValueError):
            continue
    return 0.9


def _available(facts: PairFacts) -> float | None:
    """→ bytes that weights and caches may take, over all GPUs of the tensor-parallel group."""
    if facts.run.gpu is None:
        return None
    gpus = facts.run.flag_int("tensor-parallel-size", "tp-size") or 1
    return facts.run.gpu.memory_bytes * gpus * (_utilisation(facts) if facts.engine in SERVERS else 1.0)


def _parts(plan: MemoryPlan) -> tuple[str, ...]:
    return (
        f"target weights {format_bytes(plan.target_weights_bytes)}, drafter weights "
        f"{format_bytes(plan.drafter_weights_bytes)}",
        f"caches of one sequence of {plan.num_tokens} tokens {format_bytes(plan.cache_bytes)}, "
        f"captured features of one prefill step {format_bytes(plan.features_bytes)}",
        f"together {format_bytes(plan.total_bytes)}",
    )


def too_large(facts: PairFacts) -> Hit | None:
    plan, available = plan_memory(facts), _available(facts)
    if plan is None or available is None or plan.total_bytes <= available:
        return None
    fixed = plan.target_weights_bytes + plan.drafter_weights_bytes + plan.features_bytes + plan.windowed_bytes
    per_token = plan.target_cache_per_token + plan.drafter_cache_per_token
    left = available - fixed - plan.recurrent_bytes
    remedy = None
    if left > 0 and per_token:
        remedy = (
            f"Limit the model length to about {int(left / per_token) // 256 * 256} tokens, or use more GPUs"
        )
    return Hit((*_parts(plan), f"available {format_bytes(available)}"), remedy=remedy)


def tight(facts: PairFacts) -> tuple[str, ...]:
    plan, available = plan_memory(facts), _available(facts)
    if plan is None or available is None or not available - HEAD_ROOM_BYTES < plan.total_bytes <= available:
        return ()
    return (*_parts(plan), f"available {format_bytes(available)}")


def no_head_room(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.gpu is None or facts.engine not in SERVERS:
        return ()
    left = facts.run.gpu.memory_bytes * (1 - _utilisation(facts))
    if left >= HEAD_ROOM_BYTES:
        return ()
    return (
        f"memory fraction {_utilisation(facts):g} of {format_bytes(facts.run.gpu.memory_bytes)} leaves {format_bytes(left)}",
    )


def long_context(facts: PairFacts) -> tuple[str, ...]:
    served = facts.served_len
    if served is None or served < 393_216 or facts.engine not in SERVERS or _utilisation(facts) <= 0.8:
        return ()
    return f"served length {served}", f"memory fraction {_utilisation(facts):g}"


def draft_share(facts: PairFacts) -> tuple[str, ...]:
    plan = plan_memory(facts)
    if plan is None or not plan.target_cache_per_token:
        return ()
    share = plan.drafter_cache_per_token / plan.target_cache_per_token
    if share <= 0.25:
        return ()
    return (
        f"target cache {format_bytes(plan.target_cache_per_token)} a token, drafter cache "
        f"{format_bytes(plan.drafter_cache_per_token)} ({share:.0%})",
    )


def recurrent(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None:
        return ()
    state = recurrent_bytes(facts.target)
    rows = (facts.num_drafted or 0) + 1
    if not state:
        return ()
    return (f"{format_bytes(state)} a sequence, {rows} verified rows: {format_bytes(state * rows)}",)


RULES = (
    Rule(
        "memory.too_large",
        FAIL,
        "The pair does not fit the GPU's memory at this length",
        too_large,
        "Drafter weights, its cache and the captured features come on top of what the target needs",
        "Use a GPU with more memory, more GPUs, or a quantised target",
        "https://github.com/warpfront/hipfire/issues/486",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "memory.tight",
        WARN,
        "One sequence of full length leaves little memory",
        tight,
        "The first real prefill wants workspaces that the profile did not see",
        "Limit the model length, and prefill a full-length prompt before calling it ready",
        "https://github.com/local-inference-lab/vllm/pull/88",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "memory.no_head_room",
        WARN,
        "The memory fraction leaves less than 2 GiB",
        no_head_room,
        "The server starts and runs out of memory on its first long prefill",
        "Lower the memory fraction",
        "https://github.com/local-inference-lab/vllm/pull/88",
        SERVERS,
        covered_by=("pair.other_target",),
    ),
    Rule(
        "memory.long_context",
        WARN,
        "Very long contexts need a lower memory fraction",
        long_context,
        "The peak of activations at such lengths is not in the profile: 0.90 failed and 0.80 held at 512K",
        "Set the memory fraction to 0.80",
        "https://github.com/noonghunna/club-3090/issues/1064",
        SERVERS,
        covered_by=("pair.other_target",),
    ),
    Rule(
        "memory.draft_cache",
        INFO,
        "The drafter's cache is a large share",
        draft_share,
        "Each full drafter layer keeps keys and values of the whole context",
        "Count it when sizing concurrency; drafters with windows need less",
        "https://github.com/Anbeeld/beellama.cpp/issues/97",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "memory.recurrent",
        INFO,
        "Recurrent states are kept for every verified row",
        recurrent,
        "Rolling back rejected drafts needs the state after each row",
        "Count it when sizing concurrency; fewer drafts need fewer states",
        covered_by=("pair.other_target",),
    ),
)
