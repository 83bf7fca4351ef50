"""Looks at evidence for one cause each: what speaks for it and against it beyond rules and printed lines."""

from __future__ import annotations

from truedraft.diagnosis.cause import Weighed
from truedraft.diagnosis.evidence import Evidence
from truedraft.diagnosis.facts import show_version

MANY_AT_ONCE = 16


def capture(evidence: Evidence) -> list[Weighed]:
    """Compares the layers that the engine captured with those of the drafter's config."""
    captured = None if evidence.log is None else evidence.log.boundary_ids
    if captured is None or evidence.capture_layers is None:
        return []
    wanted = tuple(index + 1 for index in evidence.capture_layers)
    if captured == wanted:
        return [(-2.0, f"the engine captured {list(captured)}: the config's layers, one higher")]
    return [(5.0, f"the engine captured {list(captured)}, the config's layers one higher are {list(wanted)}")]


def release(evidence: Evidence) -> list[Weighed]:
    """Releases that are known to draft badly."""
    version, engine = evidence.run.version, evidence.run.engine
    if version is None:
        return []
    if engine == "vllm" and (0, 25) <= version < (0, 26):
        return [
            (3.0, f"vLLM {show_version(version)}: 41 % in position 0 where 0.26 has 82 % (speculators#757)")
        ]
    if engine == "vllm" and version < (0, 22, 1):
        return [(1.5, f"vLLM {show_version(version)}: speculators' layer ids are read one off before 0.22.1")]
    if engine == "vllm" and version >= (0, 26):
        return [(-1.0, f"vLLM {show_version(version)} has the known fixes")]
    return []


def head(evidence: Evidence) -> list[Weighed]:
    """The release that left heads of padded vocabularies empty."""
    version = evidence.run.version
    if evidence.run.engine != "vllm" or version is None:
        return []
    if (0, 24) <= version < (0, 26):
        return [
            (1.0, f"vLLM {show_version(version)} leaves the head empty where vocabularies differ by padding")
        ]
    return []


def prompts(evidence: Evidence) -> list[Weighed]:
    """Random prompts have no answer that a drafter could foresee."""
    names = {bench.dataset for bench in evidence.benches if bench.dataset is not None}
    if any(name.startswith("random") for name in names):
        return [(4.0, "the benchmark's data set is random tokens")]
    return [(-1.5, f"the data set is {', '.join(sorted(names))}")] if names else []


def eager(evidence: Evidence) -> list[Weighed]:
    """Whether the command itself forbids graphs."""
    if evidence.run.flags.get("enforce-eager") in (True, "true") or evidence.run.flags.get(
        "speculative.enforce_eager"
    ):
        return [(3.0, "the command has enforce_eager")]
    return []


def concurrency(evidence: Evidence) -> list[Weighed]:
    """How many requests ran at once."""
    counts = [bench.concurrency for bench in evidence.benches if bench.concurrency is not None]
    running = None if evidence.metrics is None else evidence.metrics.values.get("running")
    if counts:
        most = max(counts)
        said = f"the benchmark ran {most} requests at once"
        return [(2.5, said)] if most >= MANY_AT_ONCE else [(-2.0, said)]
    if running is not None and running >= MANY_AT_ONCE:
        return [(1.5, f"{running:.0f} requests run at once")]
    return []


def prefix(evidence: Evidence) -> list[Weighed]:
    """Whether the prefix cache found anything."""
    values = {} if evidence.metrics is None else evidence.metrics.values
    queries, hits = values.get("cache_queries"), values.get("cache_hits")
    if not queries or hits is None:
        return []
    share = hits / queries
    said = f"prefix cache: {hits:,.0f} of {queries:,.0f} tokens hit"
    return [(3.0, said)] if share < 0.001 and queries > 10_000 else [(-1.0, said)] if share > 0.1 else []


def restored(evidence: Evidence) -> list[Weighed]:
    """Whether prompts came from the prefix cache at all."""
    values = {} if evidence.metrics is None else evidence.metrics.values
    hits = values.get("cache_hits")
    if hits:
        return [(0.5, f"{hits:,.0f} tokens came from the prefix cache")]
    return [(-2.0, "nothing came from the prefix cache")] if hits == 0 else []


def no_command(evidence: Evidence) -> list[Weighed]:
    """Whether the command speculates at all."""
    flags = evidence.run.flags
    if not flags:
        return []
    if any(name.startswith(("speculative", "spec-")) for name in flags):
        return [(-2.0, "the command asks for speculation")]
    return [(4.0, "the command has no speculative options")]


def target_only(evidence: Evidence) -> list[Weighed]:
    """What the user saw of the target without a drafter."""
    if evidence.target_only_broken is None:
        return []
    if evidence.target_only_broken:
        return [(6.0, "answers are broken without the drafter too")]
    return [(-4.0, "answers are fine without the drafter")]


def data_parallel(evidence: Evidence) -> list[Weighed]:
    """Whether several data parallel ranks draft."""
    size = evidence.run.flag_int("data-parallel-size", "dp-size")
    if size is None:
        return []
    return [(2.0, f"data parallel size {size}")] if size > 1 else [(-1.0, "one data parallel rank")]
