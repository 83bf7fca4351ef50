"""What rules on vLLM share."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.topics.window import mixed

VLLM = ("vllm",)
ANY_VLLM = ("vllm", "vllm-ascend")
V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def architecture(facts: PairFacts) -> str:
    names = facts.drafter.config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def uses_v2(facts: PairFacts) -> bool | None:
    """→ whether vLLM's V2 model runner is used; None where the release is not known."""
    said = facts.run.environment.get(V2_VARIABLE)
    if said is not None:
        return said.strip() == "1"
    if facts.run.version is None:
        return None
    if facts.engine == "vllm-ascend":
        return False
    if facts.run.version >= (0, 26) and mixed(facts):
        return True  # forced
    if facts.run.version >= (0, 28) and facts.draft("algorithm") == "dflash2":
        return True  # forced
    return facts.run.version >= (0, 29)
