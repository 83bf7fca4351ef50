"""Runs all rules over a pair: facts in, findings out, worst first."""

from __future__ import annotations

from collections.abc import Iterable

from truedraft.contract.finding import Finding, Severity
from truedraft.contract.reading import DrafterReading, TargetReading
from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.diagnosis.facts import PairFacts, RunFacts
from truedraft.diagnosis.rule import Rule
from truedraft.diagnosis.table import RULES

_ORDER = (Severity.FAIL, Severity.WARN, Severity.INFO)


def diagnose(facts: PairFacts, rules: Iterable[Rule] = RULES) -> tuple[Finding, ...]:
    """→ every rule's finding, worst first; a finding that another one covers is left out."""
    found = {finding.rule: (rule, finding) for rule in rules if (finding := rule.run(facts)) is not None}
    kept = [finding for rule, finding in found.values() if not any(name in found for name in rule.covered_by)]
    return tuple(sorted(kept, key=lambda finding: _ORDER.index(finding.severity)))


def diagnose_pair(
    target: TargetSpec, drafter: DrafterSpec, run: RunFacts | None = None
) -> tuple[Finding, ...]:
    """→ what the two specs alone show. With the files at hand `diagnose` sees more (tensors, tokenizers)."""
    rules = [rule for rule in RULES if rule.id != "file.no_weights"]
    return diagnose(
        PairFacts(reading_of_drafter(drafter), reading_of_target(target), run or RunFacts()), rules
    )


def reading_of_target(spec: TargetSpec) -> TargetReading:
    """→ the reading that a spec stands for; what only files show stays empty."""
    values = {name: getattr(spec, name) for name in spec.__slots__ if name not in ("attention", "origins")}
    rope = spec.attention.rope
    values |= {
        "num_heads": spec.attention.num_heads,
        "num_kv_heads": spec.attention.num_kv_heads,
        "head_dim": spec.attention.head_dim,
        "windows": spec.attention.windows,
        "rope_theta": rope.theta,
        "rope_partial_frac": rope.partial_frac,
        "rope_type": str((rope.scaling or {}).get("rope_type", "default")),
    }
    return TargetReading(
        source=spec.source,
        path=spec.path,
        format=spec.format,
        config={},
        config_file="target config.json",
        values=values,
        origins=spec.origins,
        missing=(),
        conflicts=(),
        tensors=(),
        spec=spec,
    )


def reading_of_drafter(spec: DrafterSpec) -> DrafterReading:
    """→ the reading that a spec stands for; what only files show stays empty."""
    values = {name: getattr(spec, name) for name in spec.__slots__ if name not in ("attention", "origins")}
    rope, windows = spec.attention.rope, spec.attention.windows
    values |= {
        "num_heads": spec.attention.num_heads,
        "num_kv_heads": spec.attention.num_kv_heads,
        "head_dim": spec.attention.head_dim,
        "windows": windows,
        "window": next((window for window in windows if window is not None), None),
        "rope_theta": rope.theta,
        "rope_partial_frac": rope.partial_frac,
        "rope_type": str((rope.scaling or {}).get("rope_type", "default")),
    }
    kinds = tuple("full_attention" if window is None else "sliding_attention" for window in windows)
    return DrafterReading(
        source=spec.source,
        path=spec.path,
        format=spec.format,
        config={"architectures": [spec.architecture]},
        config_file="drafter config.json",
        values=values | {"layer_types": kinds},
        origins=spec.origins,
        missing=(),
        conflicts=(),
        tensors=(),
        spec=spec,
        layer_types=kinds,
        layout_said="anchor" if spec.sample_from_anchor else "masks",
        head_rows=spec.vocab_size if spec.own_head else None,
    )
