"""Reads the JSON that `vllm bench serve` and SGLang's bench_serving write, and compares two runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truedraft.diagnosis.acceptance import AcceptanceFacts

SPEC = "spec_decode_"
MARKS = ("output_throughput", "request_throughput", "mean_tpot_ms", "total_output_tokens")


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """One benchmark. Speeds in output tokens a second over all requests; times in milliseconds."""

    name: str
    tok_per_s: float | None
    tpot_ms: float | None
    concurrency: int | None
    num_completed: int | None
    num_failed: int | None
    dataset: str | None
    acceptance: AcceptanceFacts | None

    @property
    def speculates(self) -> bool:
        return self.acceptance is not None


def is_bench(value: Mapping[str, Any]) -> bool:
    """Whether this object is the result of a serving benchmark."""
    return sum(mark in value for mark in MARKS) >= 2 or any(str(key).startswith(SPEC) for key in value)


def read_bench(value: Mapping[str, Any], name: str) -> BenchFacts:
    """→ what the result says; wrong types count as absent."""

    def number(*keys: str) -> float | None:
        for key in keys:
            said = value.get(key)
            if isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said):
                return float(said)
        return None

    def count(*keys: str) -> int | None:
        said = number(*keys)
        return None if said is None or abs(said) > 1e15 else int(said)

    dataset = value.get("dataset_name", value.get("dataset"))
    return BenchFacts(
        name,
        number("output_throughput"),
        number("mean_tpot_ms"),
        count("max_concurrency"),
        count("completed"),
        count("failed"),
        dataset if isinstance(dataset, str) else None,
        _acceptance(value, number, count),
    )


def _acceptance(value: Mapping[str, Any], number: Any, count: Any) -> AcceptanceFacts | None:
    tau = number(f"{SPEC}acceptance_length", "accept_length")
    drafted, accepted = count(f"{SPEC}draft_tokens"), count(f"{SPEC}accepted_tokens")
    if tau is None and drafted is None:
        return None
    said = value.get(f"{SPEC}per_position_acceptance_rates")
    rates = (
        tuple(float(rate) for rate in said if isinstance(rate, int | float)) if isinstance(said, list) else ()
    )
    if any(rate > 1 for rate in rates):  # the printed table has per cent
        rates = tuple(rate / 100 for rate in rates)
    return AcceptanceFacts(count(f"{SPEC}num_drafts"), drafted, accepted, rates, tau)


def speed_up(runs: tuple[BenchFacts, ...]) -> tuple[float, BenchFacts, BenchFacts] | None:
    """→ (ratio, with speculation, without) of two runs of which one speculates, at one concurrency."""
    fast = [run for run in runs if run.speculates and run.tok_per_s]
    plain = [run for run in runs if not run.speculates and run.tok_per_s]
    for one in fast:
        for other in plain:
            if one.concurrency == other.concurrency and one.tok_per_s and other.tok_per_s:
                return one.tok_per_s / other.tok_per_s, one, other
    return None


def unfair(one: BenchFacts, other: BenchFacts) -> tuple[str, ...]:
    """→ why two runs cannot be compared: other data, failed requests, other counts."""
    found = [
        f"{run.name}: {run.num_failed} requests failed; failed is not slow"
        for run in (one, other)
        if run.num_failed
    ]
    if one.dataset != other.dataset:
        found.append(f"data sets differ: {one.dataset}, {other.dataset}")
    if one.num_completed != other.num_completed:
        found.append(f"completed requests differ: {one.num_completed}, {other.num_completed}")
    return tuple(found)
