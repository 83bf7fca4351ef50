"""What the local engine can run."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, Rule

RUNNABLE = ("dflash",)
FAST_PATH = ("LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
# Parts that the algorithm's own rule already names.
ALGORITHM_PARTS = ("markov_head", "confidence_head", "candidate_selector", "dynamic_conv", "domino_head")


def algorithm(facts: PairFacts) -> tuple[str, ...]:
    name = facts.draft("algorithm")
    if name is None or name in RUNNABLE:
        return ()
    parts = [part for part in facts.drafter.extras if part in ALGORITHM_PARTS]
    said = f"drafter config.json: architectures = {facts.drafter.config.get('architectures', 'absent')}"
    return (f"algorithm: {name}", said, *(f"drafter has a {part}" for part in parts))


def parts(facts: PairFacts) -> tuple[str, ...]:
    handled = (*ALGORITHM_PARTS, "quantised_weights", "mask_embedding")
    return tuple(f"drafter has {part}" for part in facts.drafter.extras if part not in handled)


def mask_embedding(facts: PairFacts) -> tuple[str, ...]:
    return ("drafter has a mask_embedding",) if "mask_embedding" in facts.drafter.extras else ()


def prefixed_names(facts: PairFacts) -> tuple[str, ...]:
    names = [tensor.name for tensor in facts.drafter.tensors if tensor.name.startswith("model.")]
    return (f"{len(names)} drafter tensors like {names[0]}",) if names else ()


def fallback(facts: PairFacts) -> tuple[str, ...]:
    architecture = facts.targets("architecture")
    if architecture is None or architecture in FAST_PATH:
        return ()
    return (facts.target_said("architecture"),)


RULES = (
    Rule(
        "engine.local_algorithm",
        FAIL,
        "The local engine does not run this kind of drafter yet",
        algorithm,
        "It runs plain DFlash; this drafter has parts or rules beyond it",
        "Use a plain DFlash drafter of this target, or another engine",
        engines=("local",),
    ),
    Rule(
        "engine.local_parts",
        FAIL,
        "The drafter has parts that the local engine would not apply",
        parts,
        "Weights that are loaded and never applied show as low acceptance only",
        "Use another engine for this drafter",
        "https://github.com/charlie12345/ROCmFPX/issues/44",
        engines=("local",),
    ),
    Rule(
        "engine.local_mask_embedding",
        FAIL,
        "The drafter brings its own row for the mask, which the local engine does not read",
        mask_embedding,
        "The engine looks up mask_token_id in the target's embedding",
        "Use another engine for this drafter",
        engines=("local",),
    ),
    Rule(
        "engine.local_names",
        FAIL,
        "The drafter's tensor names have a prefix",
        prefixed_names,
        "Every DFlash format names its tensors without `model.`; the loader looks for those names",
        "Export the drafter again without the prefix",
        engines=("local",),
    ),
    Rule(
        "engine.local_fallback",
        INFO,
        "The target runs on the compatible path, not the fast one",
        fallback,
        "Families without own kernels run on transformers' modelling code",
        "Nothing to do; expect a lower speed",
        engines=("local",),
    ),
)
