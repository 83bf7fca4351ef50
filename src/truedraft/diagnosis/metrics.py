"""Reads /metrics texts of vLLM, SGLang, llama.cpp and truedraft, and takes the difference of two.

Counters of several engines (data parallel ranks) are summed; gauges of running requests too.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from truedraft.diagnosis.acceptance import AcceptanceFacts

MAX_SAMPLES = 200_000
MAX_POSITIONS = 1024
SAMPLE = re.compile(
    r"\s*([A-Za-z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|Inf|NaN))\b"
)
COMMENT = re.compile(r"\s*# (HELP|TYPE) [A-Za-z_:]")
LABEL = re.compile(r'position="(\d{1,6})"')

# Our name → the engines' names, without `_total`.
COUNTERS: dict[str, tuple[str, ...]] = {
    "rounds": ("vllm:spec_decode_num_drafts", "truedraft_spec_rounds", "sglang:spec_verify_calls"),
    "drafted": ("vllm:spec_decode_num_draft_tokens", "truedraft_spec_drafted_tokens"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens", "truedraft_spec_accepted_tokens"),
    "generated": (
        "vllm:generation_tokens",
        "sglang:generation_tokens",
        "truedraft_generation_tokens",
        "llamacpp:tokens_predicted",
    ),
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens", "truedraft_prompt_tokens"),
    "requests": ("vllm:request_success", "sglang:num_requests", "truedraft_requests"),
    "cache_queries": ("vllm:prefix_cache_queries",),
    "cache_hits": ("vllm:prefix_cache_hits",),
    "preemptions": ("vllm:num_preemptions", "truedraft_preemptions"),
}
BY_POSITION = ("vllm:spec_decode_num_accepted_tokens_per_pos", "truedraft_spec_accepted_by_position")
GAUGES: dict[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "truedraft_requests_running",
        "llamacpp:requests_processing",
    ),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "truedraft_requests_waiting"),
    "tau": ("sglang:spec_accept_length",),
}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "truedraft": "local", "llamacpp": "llama.cpp"}
_COUNTER_OF = {name: ours for ours, names in COUNTERS.items() for name in names}
_GAUGE_OF = {name: ours for ours, names in GAUGES.items() for name in names}


@dataclass(frozen=True, slots=True)
class MetricsFacts:
    """One reading of a server's counters, or the difference of two (`is_delta`).

    `values` has those of COUNTERS and GAUGES that are there. `by_position[i]`: rounds that kept
    draft i + 1. `problems`: what cannot be.
    """

    engine: str | None
    values: Mapping[str, float] = field(default_factory=dict)
    by_position: tuple[float, ...] = ()
    is_delta: bool = False
    problems: tuple[str, ...] = ()

    @property
    def speculates(self) -> bool:
        """Whether the server has counters of speculation at all."""
        return "rounds" in self.values or "drafted" in self.values or "tau" in self.values

    def acceptance(self) -> AcceptanceFacts | None:
        """→ the window of acceptance, or None where the server counts none."""
        values = self.values
        if "tau" in values and "drafted" not in values:
            rounds = values.get("rounds")
            return AcceptanceFacts(None if rounds is None else int(rounds), None, None, (), values["tau"])
        if "drafted" not in values or "accepted" not in values:
            return None
        rounds = int(values.get("rounds", 0))
        rates = tuple(count / rounds for count in self.by_position) if rounds else ()
        return AcceptanceFacts(rounds or None, int(values["drafted"]), int(values["accepted"]), rates)


def is_metrics_line(text: str) -> bool:
    """Whether this line belongs to a Prometheus text."""
    return COMMENT.match(text) is not None or SAMPLE.fullmatch(text.rstrip().partition(" # ")[0]) is not None


def read_metrics(lines: Iterable[str]) -> tuple[MetricsFacts, ...]:
    """→ one reading a snapshot: a sample that comes again begins the next. Never raises."""
    snapshots: list[dict[str, float]] = []
    current: dict[str, float] = {}
    for number, line in enumerate(lines):
        if number >= MAX_SAMPLES:
            break
        found = SAMPLE.match(line)
        if found is None or COMMENT.match(line):
            continue
        key = f"{found[1]}{{{found[2] or ''}}}"
        if key in current:
            snapshots.append(current)
            current = {}
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            current[key] = value
    return tuple(_facts(samples) for samples in (*snapshots, current) if samples)


def _facts(samples: Mapping[str, float]) -> MetricsFacts:
    values: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    engine: str | None = None
    for key, value in samples.items():
        name, _, labels = key.partition("{")
        bare = name.removesuffix("_total")
        engine = engine or ENGINES.get(re.split("[:_]", name, maxsplit=1)[0])
        if bare in BY_POSITION and (found := LABEL.search(labels)) and int(found[1]) < MAX_POSITIONS:
            positions[int(found[1])] += value
        elif bare in _COUNTER_OF and not name.endswith("_created"):
            values[_COUNTER_OF[bare]] += value
        elif name in _GAUGE_OF and _GAUGE_OF[name] == "tau":
            if value >= 1:  # 0 before the first round
                values["tau"] = max(values["tau"], value)
        elif name in _GAUGE_OF:
            values[_GAUGE_OF[name]] += value
    by_position = tuple(positions[index] for index in range(max(positions, default=-1) + 1))
    return MetricsFacts(engine, dict(values), by_position)


def difference(before: MetricsFacts, after: MetricsFacts) -> MetricsFacts:
    """→ what happened between two readings; a counter that fell is a problem, and counts as 0."""
    values, problems = dict(after.values), []
    for name in COUNTERS:
        if name not in after.values:
            continue
        change = after.values[name] - before.values.get(name, 0.0)
        if change < 0:
            problems.append(
                f"{name} fell from {before.values.get(name, 0.0):.0f} to {after.values[name]:.0f}: a restart between"
            )
        values[name] = max(change, 0.0)
    earlier = before.by_position + (0.0,) * (len(after.by_position) - len(before.by_position))
    by_position = tuple(max(b - a, 0.0) for a, b in zip(earlier, after.by_position, strict=False))
    delta = MetricsFacts(after.engine, values, by_position, True, tuple(problems))
    return MetricsFacts(after.engine, values, by_position, True, (*problems, *broken_invariants(delta)))


def broken_invariants(facts: MetricsFacts) -> tuple[str, ...]:
    """→ what the counters of one window cannot say together."""
    values, by_position = facts.values, facts.by_position
    found = []
    accepted, drafted, rounds = (values.get(name) for name in ("accepted", "drafted", "rounds"))
    if by_position and accepted is not None and abs(sum(by_position) - accepted) > 0.02 * max(accepted, 50):
        found.append(f"accepted by position sum to {sum(by_position):.0f}, the counter says {accepted:.0f}")
    if by_position and rounds is not None and by_position[0] > rounds * 1.02 + 1:
        found.append(f"position 0 kept {by_position[0]:.0f} of {rounds:.0f} rounds")
    if by_position and rounds and drafted is not None and drafted > rounds * len(by_position) * 1.02 + 1:
        found.append(f"{drafted:.0f} drafted in {rounds:.0f} rounds of at most {len(by_position)}")
    return tuple(found)


def server_info(value: Mapping[str, Any]) -> MetricsFacts | None:
    """→ SGLang's mean length since its start, from the JSON of /server_info; None for another object."""
    states = value.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    tau = first.get("avg_spec_accept_length") if isinstance(first, Mapping) else None
    if not isinstance(tau, int | float) or isinstance(tau, bool) or not 1 <= tau < MAX_POSITIONS:
        return None
    return MetricsFacts("sglang", {"tau": float(tau)})
