"""The composition root: from what the user named to a running Backend.

Order matters: everything that can be wrong is found before weights are read. Config, then both
checkpoints' headers, then the findings; one FAIL ends it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from truedraft.cli.findings_view import findings_json, print_findings
from truedraft.cli.options import PairOptions
from truedraft.cli.output import Say, counted
from truedraft.config.paths import cache_dir
from truedraft.contract.backend import Backend, ReadyReport
from truedraft.contract.finding import Finding, Severity
from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.errors import PairingError

DEMO_NAME = "smollm2-135m-dflash"
DEMO_TARGET = "SmolLM2-135M-Instruct (demo)"
DEMO_DRAFTER = "its DFlash drafter (demo)"


class LocalEngine(Backend, Protocol):
    """A Backend of this process, which can also check and time itself."""

    async def self_check(self) -> ReadyReport: ...

    def cost_curve(self) -> dict[int, float]:
        """Rows of one verify step → milliseconds, as measured at start."""
        ...


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoints, read as far as their headers, and what the rules say about them."""

    target: TargetSpec
    drafter: DrafterSpec | None
    findings: tuple[Finding, ...]
    name: str


class UnfitPairError(PairingError):
    """A rule failed. The findings were printed; `findings_json` holds them for programs."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        failed = [finding for finding in findings if finding.severity is Severity.FAIL]
        super().__init__(
            f"This pair cannot be loaded: {failed[0].title}",
            seen="; ".join(failed[0].evidence) or None,
            remedy=failed[0].remedy,
        )
        self.findings_json = findings_json(findings)


def load_backend(
    options: PairOptions,
    *,
    say: Say,
    needs_drafter: bool = False,
    **engine_changes: Any,
) -> LocalEngine:
    """Check, read and load the pair that `options` name; heavy. `say` gets lines for people.

    `engine_changes` override fields of the EngineConfig. Raises ConfigError, CheckpointError (PairingError where the two do not fit), CapacityError and
    BackendStartError.
    """
    options.check_pair(needs_drafter=needs_drafter)
    engine = options.engine_config(**engine_changes)
    pair = read_pair(options, say=say)
    warned = [finding for finding in pair.findings if finding.severity is Severity.WARN]
    if warned:
        print_findings(warned, file=sys.stderr)
    if pair.drafter is not None:
        say(f"fits: {counted(len(pair.findings), 'finding')}, {counted(len(warned), 'warning')}")
    target = converted(pair.target, options.dtype, say=say)
    from truedraft.backends.local import LocalBackend

    return LocalBackend.load(target, pair.drafter, engine, name=pair.name, on_progress=say)


def read_pair(options: PairOptions, *, say: Say) -> Pair:
    """Read the headers of both checkpoints and run the rules; no weights.

    Raises UnfitPairError where a rule fails, CheckpointError where a checkpoint cannot be used.
    """
    from truedraft.checkpoint.drafter import read_drafter
    from truedraft.checkpoint.target import read_target
    from truedraft.cli.inspect_pair import inspect
    from truedraft.diagnosis.facts import RunFacts

    where, draft, name = locate_pair(options, say=say)
    findings: tuple[Finding, ...] = ()
    if draft is not None:
        served_len = options.max_model_len
        run = RunFacts(flags={} if served_len is None else {"max-model-len": served_len})
        findings = inspect(draft, where, run).findings
        if any(finding.severity is Severity.FAIL for finding in findings):
            print_findings(findings, file=sys.stderr)
            raise UnfitPairError(findings)
    target = read_target(where)
    drafter = None if draft is None else read_drafter(draft)
    if options.demo:
        target = replace(target, source=DEMO_TARGET)
        drafter = None if drafter is None else replace(drafter, source=DEMO_DRAFTER)
    return Pair(target, drafter, findings, name)


def locate_pair(options: PairOptions, *, say: Say) -> tuple[str, str | None, str]:
    """→ where the target is, where the drafter is, and the name to serve them under."""
    if options.demo:
        from truedraft.cli.demo_files import demo_drafter, ensure_demo_target

        return str(ensure_demo_target(options.dtype, say=say)), str(demo_drafter()), DEMO_NAME
    assert options.target is not None, "check_pair comes first"
    path = Path(options.target)
    name = path.resolve().name if path.exists() else options.target
    return options.target, options.draft, name.removesuffix(".gguf")


def converted(target: TargetSpec, dtype: str, *, say: Say) -> TargetSpec:
    """A GGUF target as the safetensors folder that it is converted to once, in the cache; others as they are.

    Raises CheckpointError and CapacityError.
    """
    if target.format != "gguf":
        return target
    from truedraft.checkpoint.target import read_target
    from truedraft.cli.demo_files import stored_dtype
    from truedraft.models.gguf import convert_gguf

    file = Path(target.path).resolve()
    place = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    folder = cache_dir() / "gguf" / f"{file.stem}-{stored_dtype(dtype)}-{place}"
    if not folder.exists():
        say(f"converting {file.name} to {stored_dtype(dtype)} (once), into {folder}")
    return replace(read_target(convert_gguf(file, folder, stored_dtype(dtype))), source=target.source)
