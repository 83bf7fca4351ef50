"""Judges acceptance by position over a window of rounds: what it looks like, and where to look next.

Rates by position are unconditional: the share of rounds that kept draft i+1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "inconsistent",
    "too_few",
    "off",
    "not_speculation",
    "dead",
    "misaligned",
    "poor_match",
    "decays",
    "healthy",
]

MIN_ROUNDS = 60
WORTH_DRAFTING = 0.1  # a position kept less often than this costs more than it brings
TOLERANCE = 0.02

# Kept drafts by position, Qwen3-4B with a block of 16, GSM8K, greedy, 6,035 rounds, τ 6.50: a healthy curve.
REFERENCE_CURVE = (0.887, 0.747, 0.620, 0.526, 0.447, 0.378, 0.323, 0.282)

VLLM_LINE = re.compile(r"SpecDecoding metrics: (?P<rest>.*)")
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"


@dataclass(frozen=True, slots=True)
class AcceptanceFacts:
    """Counts over a window. `num_drafted` per round may vary; `by_position` has one rate a position.

    None: the engine does not count it (SGLang has only the mean length).
    `target_only_broken`: whether the target's answers are wrong without speculation too.
    """

    num_rounds: int | None
    num_drafted: int | None
    num_accepted: int | None
    by_position: tuple[float, ...] = ()
    tau: float | None = None
    target_only_broken: bool | None = None

    @property
    def mean_committed(self) -> float | None:
        """→ tokens committed a round, bonus included."""
        if self.num_rounds and self.num_accepted is not None:
            return 1 + self.num_accepted / self.num_rounds
        return self.tau


@dataclass(frozen=True, slots=True)
class AcceptanceVerdict:
    """`causes` most likely first; `next_step` is the measurement or change that decides."""

    kind: Kind
    title: str
    evidence: tuple[str, ...]
    causes: tuple[str, ...]
    next_step: str


def parse_vllm_line(line: str) -> AcceptanceFacts | None:
    """→ what vLLM's `SpecDecoding metrics` line says, or None for another line."""
    found = VLLM_LINE.search(line)
    if found is None:
        return None
    rest = found["rest"]

    def number(label: str) -> float | None:
        match = re.search(rf"{label}: {NUMBER}", rest)
        return float(match[1]) if match else None

    tau, accepted, drafted = number("Mean acceptance length"), number("Accepted"), number("Drafted")
    if accepted is None or drafted is None:
        return None
    rates = re.search(rf"Per-position acceptance rate: ((?:{NUMBER}(?:, *)?)+)", rest)
    by_position = tuple(float(item) for item in re.findall(NUMBER, rates[1])) if rates else ()
    num_rounds = round(drafted / len(by_position)) if by_position else None
    return AcceptanceFacts(num_rounds, int(drafted), int(accepted), by_position, tau)


def inconsistencies(facts: AcceptanceFacts) -> tuple[str, ...]:
    """→ what cannot be: rates that rise or leave [0, 1], sums or means that disagree."""
    found = []
    rates = facts.by_position
    if any(not 0 <= rate <= 1 for rate in rates):
        found.append("a rate by position is outside of 0 to 1")
    if any(later > earlier + 1e-9 for earlier, later in itertools.pairwise(rates)):
        found.append("rates by position rise: a draft cannot be kept where the one before was not")
    counts = (facts.num_accepted, facts.num_drafted)
    if counts[0] is not None and counts[1] is not None and counts[0] > counts[1]:
        found.append(f"{facts.num_accepted} accepted of {facts.num_drafted} drafted")
    if facts.tau is not None and facts.tau < 1 and (facts.num_rounds or facts.num_drafted):
        found.append(f"a mean length of {facts.tau:.2f}: every round commits at least one token")
    mean = facts.tau if facts.tau is not None else facts.mean_committed
    if rates and mean is not None and abs(sum(rates) - (mean - 1)) > TOLERANCE * max(1.0, mean):
        found.append(f"rates by position sum to {sum(rates):.2f}, the mean length says {mean - 1:.2f}")
    return tuple(found)


def judge_acceptance(facts: AcceptanceFacts) -> AcceptanceVerdict:
    """→ the verdict on one window."""
    broken = inconsistencies(facts)
    if broken:
        return AcceptanceVerdict(
            "inconsistent",
            "These figures contradict themselves: discard them",
            broken,
            ("other traffic on the server", "counters of two engines or restarts mixed"),
            "Measure again on a quiet server",
        )
    evidence = _evidence(facts)
    if facts.num_drafted == 0:
        return AcceptanceVerdict(
            "off",
            "Nothing is drafted",
            evidence,
            ("speculation is off or fell back to plain decoding", "the drafter was not loaded"),
            "Look for the drafter's load lines and warnings in the log",
        )
    if facts.target_only_broken and _keeps_almost_nothing(facts):
        return AcceptanceVerdict(
            "not_speculation",
            "Not the drafter: the target's own answers are broken",
            (*evidence, "wrong without speculation too"),
            ("the interconnect (custom all-reduce)", "the target's quantisation", "the chat template"),
            "Run the target without a drafter, and without custom all-reduce",
        )
    if facts.num_rounds is not None and facts.num_rounds < MIN_ROUNDS:
        return AcceptanceVerdict(
            "too_few", "Too few rounds to judge", evidence, (), f"Measure over at least {MIN_ROUNDS} rounds"
        )
    return _by_curve(facts, evidence)


def _keeps_almost_nothing(facts: AcceptanceFacts) -> bool:
    if facts.num_accepted is not None and facts.num_drafted:
        return facts.num_accepted <= 0.05 * facts.num_drafted
    return facts.tau is not None and facts.tau < 1.1


def _evidence(facts: AcceptanceFacts) -> tuple[str, ...]:
    mean = facts.mean_committed
    counted = facts.num_accepted is not None and facts.num_drafted is not None
    found = [f"{facts.num_accepted} accepted of {facts.num_drafted} drafted"] if counted else []
    if mean is not None:
        found.append(f"τ = {mean:.2f}")
    if facts.by_position:
        found.append("by position: " + " ".join(f"{rate:.3f}" for rate in facts.by_position))
    return tuple(found)


# What a curve looks like → title, causes (most likely first), next step.
CURVES: dict[Kind, tuple[str, tuple[str, ...], str]] = {
    "dead": (
        "The drafter drafts noise",
        (
            "the head is not shared or empty",
            "weights partly loaded",
            "the other block layout",
            "packed weights read as dense",
            "another mask token",
            "the attention backend",
        ),
        "Compare tensor names, vocabulary sizes and layout with `truedraft inspect`; then `truedraft recover`",
    ),
    "misaligned": (
        "The drafter works on inputs that it was not trained with",
        (
            "capture layers one off",
            "another precision of the target",
            "thinking mode or chat template",
            "a fine-tuned target",
            "a weak checkpoint",
        ),
        "`truedraft recover` measures capture layers, template and window",
    ),
    "poor_match": (
        "It works, but the match is poor",
        (
            "a variant of the target that the drafter was not made for",
            "thinking mode",
            "sampling temperature",
            "random benchmark prompts",
        ),
        "Draft about {useful} tokens; check the target's variant and the thinking mode",
    ),
    "decays": (
        "A good start that decays fast",
        ("an under-trained drafter", "another domain", "rope style or rotated share", "sampling temperature"),
        "Compare with the drafter's reference curve; draft about {useful} tokens meanwhile",
    ),
    "healthy": ("Acceptance is healthy", (), "Measure the speed-up against plain decoding"),
}


def _by_curve(facts: AcceptanceFacts, evidence: tuple[str, ...]) -> AcceptanceVerdict:
    rates, mean = facts.by_position, facts.mean_committed
    first = rates[0] if rates else (mean - 1 if mean is not None and mean < 2 else None)
    useful = sum(rate >= WORTH_DRAFTING for rate in rates)
    kind: Kind = "healthy"
    if first is not None and first < 0.1:
        kind = "dead"
    elif first is not None and first < 0.5:
        kind = "misaligned"
    elif rates and first is not None and first < 0.7 and useful < len(rates) / 2:
        kind = "poor_match"
    elif rates and _mean_conditional(rates) < 0.6:
        kind = "decays"
    elif not rates and mean is not None and mean < 2.5 and _drafts_many(facts):
        kind = "poor_match"
    title, causes, next_step = CURVES[kind]
    useful = useful if rates else round(mean or 1)
    return AcceptanceVerdict(kind, title, evidence, causes, next_step.format(useful=max(useful, 1)))


def _drafts_many(facts: AcceptanceFacts) -> bool:
    """→ whether a mean length of 2.5 is little of what is drafted a round; so where that is unknown."""
    if facts.num_rounds and facts.num_drafted is not None:
        return facts.num_drafted / facts.num_rounds >= 5
    return True


def add_windows(windows: Iterable[AcceptanceFacts]) -> AcceptanceFacts | None:
    """→ the sum of windows: counts added, rates weighted by rounds; a mean length alone is averaged."""
    found = list(windows)
    counted = [one for one in found if one.num_drafted is not None and one.num_accepted is not None]
    if not counted:
        lengths = [one.tau for one in found if one.tau is not None]
        return AcceptanceFacts(None, None, None, (), sum(lengths) / len(lengths)) if lengths else None
    rounds = [one.num_rounds for one in counted]
    known = sum(count for count in rounds if count)
    width = {len(one.by_position) for one in counted if one.num_drafted}
    rates: tuple[float, ...] = ()
    if len(width) == 1 and None not in rounds and known:
        with_rates = [one for one in counted if one.by_position]
        rates = tuple(
            sum(one.by_position[index] * (one.num_rounds or 0) for one in with_rates) / known
            for index in range(width.pop())
        )
    return AcceptanceFacts(
        None if None in rounds else known,
        sum(one.num_drafted or 0 for one in counted),
        sum(one.num_accepted or 0 for one in counted),
        rates,
    )


def _mean_conditional(rates: tuple[float, ...]) -> float:
    """→ mean chance to keep a draft after the first, given that the one before was kept."""
    pairs = [(a, b) for a, b in itertools.pairwise(rates) if a >= WORTH_DRAFTING]
    return sum(b / a for a, b in pairs) / len(pairs) if pairs else 1.0
