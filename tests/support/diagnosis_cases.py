"""Builds texts that engines print, for tests of diagnosis."""

from __future__ import annotations

from collections.abc import Iterable

from truedraft.diagnosis.evidence import Evidence, gather, run_of
from truedraft.diagnosis.explain import Diagnosis, explain
from truedraft.diagnosis.facts import RunFacts
from truedraft.diagnosis.intake import Intake, Sorter

SERVING = (
    "INFO Initializing a V1 LLM engine (v0.33.0) with config: model='m'\n"
    "INFO Starting vLLM server on http://0.0.0.0:8000\n"
)


def vllm_line(rounds: int, rates: Iterable[float], **said: object) -> str:
    """The `SpecDecoding metrics` line of a window of `rounds` with these rates by position."""
    found = tuple(rates)
    accepted = said.get("accepted", round(rounds * sum(found)))
    tau = said.get("tau", 1 + sum(found))
    return (
        f"INFO 11-30 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {tau:.2f}, "
        f"Accepted throughput: 8.90 tokens/s, Drafted throughput: 97.50 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {rounds * len(found)} tokens, Per-position acceptance rate: "
        f"{', '.join(f'{rate:.3f}' for rate in found)}, Avg Draft acceptance rate: 9.1%\n"
    )


def vllm_metrics(
    rounds: float | None, kept: Iterable[float] = (), *, generated: float, width: int = 15, **more: float
) -> str:
    """A /metrics text of vLLM with counters since the start."""
    found = tuple(kept)
    lines = [f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}']
    lines += [f'vllm:{name}{{engine="0",model_name="m"}} {value}' for name, value in more.items()]
    if rounds is not None:
        lines += [
            "# HELP vllm:spec_decode_num_drafts_total Number of drafts.",
            "# TYPE vllm:spec_decode_num_drafts_total counter",
            f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {float(rounds)}',
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {rounds * width:e}',
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {sum(found)}',
            *(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                f'{{engine="0",model_name="m",position="{index}"}} {count}'
                for index, count in enumerate(found)
            ),
        ]
    return "\n".join(lines) + "\n"


def sorted_texts(*texts: str) -> Intake:
    """All texts through one Sorter, named text-0, text-1 …"""
    sorter = Sorter()
    for index, text in enumerate(texts):
        sorter.text(f"text-{index}", text.splitlines(keepends=True))
    return sorter.done()


def evidence_of(*texts: str, **said: object) -> Evidence:
    """The evidence of these texts; `said` goes to `gather`."""
    intake = sorted_texts(*texts)
    run, notes = run_of(intake, RunFacts())
    return gather(intake, run, notes=notes, **said)  # type: ignore[arg-type]


def diagnosis_of(*texts: str, **said: object) -> Diagnosis:
    """The diagnosis of these texts."""
    return explain(evidence_of(*texts, **said))
