"""What the drafter's own files leave open or contradict."""

from __future__ import annotations

from truedraft.contract.reading import Conflict
from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.known_drafters import family, reference_formula
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule

KEYS = {
    "num_layers": "num_hidden_layers",
    "mlp_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_position": "max_position_embeddings",
    "block_len": "block_size",
    "capture_layers": "dflash_config.target_layer_ids",
    "mask_token_id": "dflash_config.mask_token_id",
}
OWN_RULES = ("capture_layers", "mask_token_id")  # missing values that have a rule of their own
SOFT_RULES = ("capture_layers", "sample_from_anchor", "rope_theta", "dtype")


def conflict_said(conflict: Conflict) -> tuple[str, str]:
    """→ two evidence lines: what was used, and what says otherwise."""

    def line(value: object, where: str) -> str:
        return f"{where} = {list(value) if isinstance(value, tuple) else value}"

    return line(conflict.used, conflict.used_from.where), line(conflict.other, conflict.other_from.where)


def suggestions(facts: PairFacts, name: str) -> str:
    """→ `Known for this family: …` from published drafters, or an empty text."""
    depth = facts.targets("num_layers") or facts.draft("num_target_layers")
    known = family(facts.draft("hidden_size"), depth)
    said = {
        f"{drafter.name}: {list(value) if isinstance(value, tuple) else value}"
        for drafter in known
        if (value := getattr(drafter, "window" if name == "layer_types" else name, None)) is not None
    }
    return f"Known for this family (a suggestion, not a finding): {'; '.join(sorted(said))}" if said else ""


def no_config(facts: PairFacts) -> Hit | None:
    problem = facts.drafter.config_problem
    if problem is None:
        return None
    shapes = [
        f"shapes say {name} = {value} ({facts.drafter.origins[name].where})"
        for name, value in facts.drafter.values.items()
        if facts.drafter.origins[name].kind == "shape" and type(value) is int
    ]
    captured = facts.drafter.num_captured
    if captured is not None:
        shapes.append(f"shapes say {captured} capture layers, not which")
    return Hit((problem, *shapes), cause="Shapes cannot say: " + ", ".join(facts.drafter.missing))


def missing_values(facts: PairFacts) -> Hit | None:
    names = [name for name in facts.drafter.missing if name not in OWN_RULES]
    if not names:
        return None
    evidence = [f"drafter config.json: {KEYS.get(name, name)} = absent" for name in names]
    evidence += [f"{KEYS.get(name, name)}: {said}" for name in names if (said := suggestions(facts, name))]
    return Hit(tuple(evidence))


def hard_conflicts(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if c.hard and c.name != "capture_layers"]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def soft_conflicts(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if not c.hard and c.name not in SOFT_RULES]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def target_conflicts(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.target.conflicts if c.hard] if facts.target is not None else []
    return tuple(line for conflict in found for line in conflict_said(conflict))


def target_missing(facts: PairFacts) -> tuple[str, ...]:
    names = facts.target.missing if facts.target is not None else ()
    return tuple(f"target config: {KEYS.get(name, name)} = absent" for name in names)


def absent_tensors(facts: PairFacts) -> tuple[str, ...]:
    return _some(facts.drafter.absent, "absent") if facts.drafter.tensors else ()


def unexpected_tensors(facts: PairFacts) -> Hit | None:
    names = facts.drafter.unexpected
    return (
        Hit(_some(names, "in the file"), severity=FAIL if facts.engine == "local" else WARN)
        if names
        else None
    )


def _some(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    shown = tuple(f"drafter tensor {name}: {what}" for name in names[:6])
    return (*shown, f"and {len(names) - 6} more") if len(names) > 6 else shown


def no_weights(facts: PairFacts) -> tuple[str, ...]:
    return () if facts.drafter.tensors else (f"{facts.drafter.path}: no .safetensors file",)


def unknown_format(facts: PairFacts) -> tuple[str, ...]:
    if facts.drafter.format != "unknown" or facts.drafter.config_problem is not None:
        return ()
    return (f"drafter config.json: architectures = {facts.drafter.config.get('architectures', 'absent')}",)


def formula_said(num_target_layers: int | None, num_captured: int | None) -> str:
    """→ the reference's fallback for these sizes, as a suggestion."""
    if not num_target_layers or not num_captured or num_captured > num_target_layers:
        return ""
    ids = list(reference_formula(num_target_layers, num_captured))
    return f"z-lab's fallback formula gives {ids}, which is wrong for most published drafters"


RULES = (
    Rule(
        "file.no_config",
        FAIL,
        "The drafter has no usable config.json",
        no_config,
        "Shapes do not say everything",
        "Bring the config.json that belongs to these weights; or let `truedraft recover` measure what is missing",
    ),
    Rule(
        "file.missing_value",
        FAIL,
        "The drafter's config lacks values that it needs",
        missing_values,
        "Engines fill gaps with defaults that differ from each other, and say nothing",
        "Add the keys; `truedraft recover` measures those that acceptance can tell apart",
        "https://github.com/jundot/omlx/issues/2557",
        covered_by=("file.no_config",),
    ),
    Rule(
        "file.contradiction",
        FAIL,
        "The drafter's config contradicts its tensors",
        hard_conflicts,
        "Config and weights come from different checkpoints, or one was edited",
        "Use the config.json that belongs to these weights",
    ),
    Rule(
        "file.two_values",
        WARN,
        "The drafter's config gives one value twice, differently",
        soft_conflicts,
        "Engines differ in which key they read first: truedraft takes dflash_config, then the top level",
        "Keep one of the two",
    ),
    Rule(
        "file.target_contradiction",
        FAIL,
        "The target's config contradicts its tensors",
        target_conflicts,
        "Config and weights come from different checkpoints",
        "Use the config.json that belongs to these weights",
    ),
    Rule(
        "file.target_missing",
        FAIL,
        "The target's config lacks values that it needs",
        target_missing,
        "Without them the model cannot be built",
        "Use the complete config.json of this model",
    ),
    Rule(
        "file.tensors_absent",
        FAIL,
        "The drafter lacks tensors that its graph needs",
        absent_tensors,
        "The file is incomplete or another kind of drafter; uninitialised weights draft noise",
        "Download the checkpoint again, or export it again",
        "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/pull/44",
        covered_by=("engine.local_parts", "engine.local_algorithm", "quant.packed_local"),
    ),
    Rule(
        "file.tensors_unexpected",
        FAIL,
        "The drafter has tensors that no known graph uses",
        unexpected_tensors,
        "A part of the network would be loaded and never applied: acceptance is low, and nothing is printed",
        "Use an engine that names these tensors, or ask its authors what they are",
        "https://github.com/charlie12345/ROCmFPX/issues/44",
    ),
    Rule(
        "file.no_weights",
        INFO,
        "Only the drafter's config was checked",
        no_weights,
        "There are no tensors beside it to compare with",
        "Put the .safetensors file into the same folder before serving",
    ),
    Rule(
        "file.unknown_format",
        WARN,
        "The drafter's config is of no known format",
        unknown_format,
        "It has neither dflash_config nor speculators' keys nor DeepSpec's",
        "Check that this is a DFlash drafter",
    ),
)
