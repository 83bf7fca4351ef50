"""From timed answers to figures: rates, ratios, τ, acceptance; as a frozen record and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truedraft.bench.measure import Answer, BenchSettings, Group
from truedraft.bench.statistics import Spread, median_spread, spread_of
from truedraft.contract.backend import ModelInfo
from truedraft.contract.request import SpeculationStats


@dataclass(frozen=True, slots=True)
class Rates:
    """Figures of one concurrency. Rates are medians over groups; the ratio pairs arms by group."""

    concurrency: int
    plain_tok_per_s: Spread | None
    dflash_tok_per_s: Spread | None
    ratio: Spread | None
    tau: Spread | None
    num_answers: int
    num_same_answers: int  # token for token the same under both arms


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `truedraft bench` found. Groups by kind come from the lowest concurrency."""

    info: ModelInfo
    settings: BenchSettings
    rates: tuple[Rates, ...]
    tau: Spread | None
    tau_by_kind: Mapping[str, Spread | None]
    ratio_by_kind: Mapping[str, Spread | None]
    acceptance_by_position: tuple[float, ...]  # share of rounds that kept draft i+1
    mean_verify_len: float | None  # rows verified a speculative round
    num_rounds: int
    num_plain_steps: int  # single-token steps of the DFlash arm
    cost_curve_ms: Mapping[int, float]

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, or `even` where the interval of the ratio holds 1."""
        ratio = self.rates[0].ratio if self.rates else None
        if ratio is None or ratio.low <= 1 <= ratio.high:
            return "even"
        return "faster" if ratio.low > 1 else "slower"


def build_report(
    groups: Sequence[Group],
    info: ModelInfo,
    settings: BenchSettings,
    cost_curve_ms: Mapping[int, float],
) -> BenchReport:
    """Figures of `groups`. τ and acceptance by kind and position come from the first concurrency."""
    first = [group for group in groups if group.concurrency == settings.concurrencies[0]]
    answers = [answer for group in first for answer in group.dflash]
    stats = [answer.usage.speculation for answer in answers]
    kinds = tuple(dict.fromkeys(answer.prompt.kind for answer in answers))
    num_rounds = sum(one.num_rounds for one in stats)
    return BenchReport(
        info=info,
        settings=settings,
        rates=tuple(_rates(groups, width) for width in settings.concurrencies),
        tau=spread_of(stats, pooled_tau),
        tau_by_kind={
            kind: spread_of([a.usage.speculation for a in answers if a.prompt.kind == kind], pooled_tau)
            for kind in kinds
        },
        ratio_by_kind={kind: _ratio_of_kind(first, kind) for kind in kinds},
        acceptance_by_position=acceptance_by_position(stats),
        mean_verify_len=1 + sum(one.num_drafted for one in stats) / num_rounds if num_rounds else None,
        num_rounds=num_rounds,
        num_plain_steps=sum(one.num_plain_steps for one in stats),
        cost_curve_ms=dict(cost_curve_ms),
    )


def pooled_tau(stats: Sequence[SpeculationStats]) -> float | None:
    """Tokens committed a round over all rounds together; None without rounds."""
    num_rounds = sum(one.num_rounds for one in stats)
    return sum(one.num_committed for one in stats) / num_rounds if num_rounds else None


def acceptance_by_position(stats: Sequence[SpeculationStats]) -> tuple[float, ...]:
    """Share of the rounds that verified draft i+1 which also kept it."""
    length = max((len(one.drafted_by_position) for one in stats), default=0)
    shares: list[float] = []
    for place in range(length):
        drafted = sum(one.drafted_by_position[place] for one in stats if place < len(one.drafted_by_position))
        kept = sum(one.accepted_by_position[place] for one in stats if place < len(one.accepted_by_position))
        if not drafted:
            break
        shares.append(kept / drafted)
    return tuple(shares)


def rate_of(answers: Sequence[Answer], wall_s: float) -> float:
    """Tokens a second, prefill included."""
    return sum(len(answer.token_ids) for answer in answers) / wall_s


def report_json(report: BenchReport) -> dict[str, Any]:
    """The report for JSON; top-level rates are those of the first concurrency."""
    sampling = report.settings.sampling
    first = report.rates[0]
    return {
        "target": report.info.target,
        "drafter": report.info.drafter,
        "engine": report.info.engine,
        "device": report.info.device,
        "dtype": report.info.dtype,
        "speculation": report.settings.speculation,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "verdict": report.verdict,
        "plain_tok_per_s": _spread_json(first.plain_tok_per_s),
        "dflash_tok_per_s": _spread_json(first.dflash_tok_per_s),
        "ratio": _spread_json(first.ratio),
        "tau": _spread_json(report.tau),
        "tau_by_kind": {kind: _spread_json(one) for kind, one in report.tau_by_kind.items()},
        "ratio_by_kind": {kind: _spread_json(one) for kind, one in report.ratio_by_kind.items()},
        "acceptance_by_position": [round(share, 4) for share in report.acceptance_by_position],
        "mean_verify_len": None if report.mean_verify_len is None else round(report.mean_verify_len, 3),
        "num_rounds": report.num_rounds,
        "num_plain_steps": report.num_plain_steps,
        "cost_curve_ms": {str(rows): round(ms, 4) for rows, ms in sorted(report.cost_curve_ms.items())},
        "by_concurrency": {
            str(one.concurrency): {
                "plain_tok_per_s": _spread_json(one.plain_tok_per_s),
                "dflash_tok_per_s": _spread_json(one.dflash_tok_per_s),
                "ratio": _spread_json(one.ratio),
                "tau": _spread_json(one.tau),
                "num_answers": one.num_answers,
                "num_same_answers": one.num_same_answers,
            }
            for one in report.rates
        },
    }


def _rates(groups: Sequence[Group], concurrency: int) -> Rates:
    chosen = [group for group in groups if group.concurrency == concurrency]
    pairs = [(a, b) for group in chosen for a, b in zip(group.plain, group.dflash, strict=True)]
    return Rates(
        concurrency=concurrency,
        plain_tok_per_s=median_spread([rate_of(group.plain, group.plain_s) for group in chosen]),
        dflash_tok_per_s=median_spread([rate_of(group.dflash, group.dflash_s) for group in chosen]),
        ratio=median_spread([_ratio(group) for group in chosen]),
        tau=spread_of([b.usage.speculation for _, b in pairs], pooled_tau),
        num_answers=len(pairs),
        num_same_answers=sum(a.token_ids == b.token_ids for a, b in pairs),
    )


def _ratio(group: Group) -> float:
    plain = rate_of(group.plain, group.plain_s)
    return rate_of(group.dflash, group.dflash_s) / plain if plain else 0.0


def _ratio_of_kind(groups: Sequence[Group], kind: str) -> Spread | None:
    """Paired by answer, each timed alone or beside its neighbours in the group."""
    ratios = [
        (len(b.token_ids) / b.total_s) / (len(a.token_ids) / a.total_s)
        for group in groups
        for a, b in zip(group.plain, group.dflash, strict=True)
        if a.prompt.kind == kind and a.token_ids and b.token_ids
    ]
    return spread_of(ratios, statistics.median)


def _spread_json(spread: Spread | None) -> dict[str, float | int] | None:
    if spread is None:
        return None
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in dataclasses.asdict(spread).items()
    }
