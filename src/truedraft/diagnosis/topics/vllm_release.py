"""What which release of vLLM can load."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, Version, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM, VLLM, architecture

WITHOUT_HOOKS = ("qwen4_exp",)  # target families whose class cannot give captured states
MIN_VERSIONS: tuple[tuple[str, Version], ...] = (
    ("DFlash2", (0, 28)),
    ("MuseGlimmer", (0, 28)),
    ("XPress", (0, 33)),
    ("LiLiCorr", (0, 33)),
    ("Laguna", (0, 26)),
    ("DSpark", (0, 26)),
    ("DFlash", (0, 20)),
)

REGISTERED = (
    "DFlashDraftModel",
    "DFlash2DraftModel",
    "DFlash2BeamDraftModel",
    "MuseGlimmerAssistantModel",
    "DFlashMuseGlimmerAssistantModel",
    "DFlashLagunaForCausalLM",
    "DFlashQwen3XPressModel",
    "LiLiCorrDraftModel",
    "DFlashSpeculator",
    "Qwen3DSparkModel",
)


def too_old(facts: PairFacts) -> tuple[str, ...]:
    name = architecture(facts)
    needed = next((version for piece, version in MIN_VERSIONS if piece in name), None)
    if needed is None or not facts.older(*needed):
        return ()
    return (
        f"drafter config.json: architectures = [{name}]",
        f"vLLM {show_version(facts.run.version)}; it needs {show_version(needed)}",
    )


def early(facts: PairFacts) -> tuple[str, ...]:
    version = facts.run.version
    if version is None or not (0, 20) <= version < (0, 22, 1):
        return ()
    return (f"vLLM {show_version(version)}",)


def release_025(facts: PairFacts) -> tuple[str, ...]:
    version = facts.run.version
    return (f"vLLM {show_version(version)}",) if version is not None and (0, 25) <= version < (0, 26) else ()


def unregistered(facts: PairFacts) -> Hit | None:
    name = architecture(facts)
    if not name or name in REGISTERED or facts.drafter.format == "speculators":
        return None
    loaded = name if name.startswith("DFlash") or name.endswith("DFlash") else f"DFlash{name}"
    if loaded in REGISTERED or "DSpark" in name:
        return None
    return Hit((f"drafter config.json: architectures = [{name}]", f"vLLM would look for {loaded}"))


def other_family(facts: PairFacts) -> tuple[str, ...]:
    if architecture(facts) != "DSparkDraftModel" or facts.drafter.config.get("model_type") != "qwen3":
        return ()
    return (
        "drafter config.json: architectures = [DSparkDraftModel]",
        "drafter config.json: model_type = qwen3",
    )


def speculators_shift(facts: PairFacts) -> tuple[str, ...]:
    if facts.drafter.format != "speculators" or not facts.older(0, 22, 1):
        return ()
    return (f"vLLM {show_version(facts.run.version)}", "drafter format: speculators")


def speculators_dflash2(facts: PairFacts) -> tuple[str, ...]:
    said = facts.drafter.config.get("speculators_model_type")
    if said != "dflash2" or not facts.older(0, 30):
        return ()
    return "drafter config.json: speculators_model_type = dflash2", f"vLLM {show_version(facts.run.version)}"


def anchor_layout(facts: PairFacts) -> tuple[str, ...]:
    if not facts.draft("sample_from_anchor") or facts.draft("algorithm") == "dspark":
        return ()
    return (facts.draft_said("sample_from_anchor"),)


def no_runtime(facts: PairFacts) -> tuple[str, ...]:
    return ("algorithm: domino",) if facts.draft("algorithm") == "domino" else ()


def mask_hidden(facts: PairFacts) -> tuple[str, ...]:
    names = [t.name for t in facts.drafter.tensors if t.name.rsplit(".", 1)[-1] == "mask_hidden"]
    return tuple(f"drafter tensor {name}: present" for name in names)


def no_captured_states(facts: PairFacts) -> tuple[str, ...]:
    family = str(facts.targets("model_type") or "").removesuffix("_text")
    return (facts.target_said("model_type"),) if family in WITHOUT_HOOKS else ()


def refused_sampling(facts: PairFacts) -> tuple[str, ...]:
    return (f"vLLM {show_version(facts.run.version)} with a drafter",)


RULES = (
    Rule(
        "vllm.too_old",
        FAIL,
        "This release of vLLM does not know the drafter's architecture",
        too_old,
        "DFlash came with 0.20, Laguna, DSpark and mixed windows with 0.26, DFlash2 and Muse with 0.28, XPress and "
        "LiLiCorr with 0.33",
        "Upgrade vLLM, or rebuild the image",
        "https://github.com/eugr/spark-vllm-docker/issues/364",
        ANY_VLLM,
    ),
    Rule(
        "vllm.early",
        WARN,
        "An early release for DFlash",
        early,
        "Before 0.22.1 the draft's attention backend cannot be set and speculators' layer ids are one off",
        "Upgrade to 0.22.1 or newer",
        "https://github.com/vllm-project/vllm/pull/42704",
        ANY_VLLM,
    ),
    Rule(
        "vllm.release_025",
        WARN,
        "vLLM 0.25 samples DFlash drafts badly",
        release_025,
        "The same weights were measured at 41 % in position 0 on 0.25.1 and 82 % on 0.26.0",
        "Upgrade to 0.26 or newer before judging the drafter",
        "https://github.com/vllm-project/speculators/issues/757",
        VLLM,
    ),
    Rule(
        "vllm.unregistered",
        FAIL,
        "vLLM has no class of the drafter's name",
        unregistered,
        "A name that does not start or end with DFlash gets DFlash glued in front, and that one is not registered",
        "Rename the architecture to DFlashDraftModel in a copy of the config, where that is what it is",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/2913",
        ANY_VLLM,
    ),
    Rule(
        "vllm.other_family",
        FAIL,
        "The architecture's name belongs to another model family in vLLM",
        other_family,
        "DSparkDraftModel maps to a class for other backbones, which looks for keys that this config lacks",
        "Rename it to Qwen3DSparkModel in a copy of the config",
        "https://github.com/syv-ai/qwen38-27b-rtx3090/issues/25",
        ANY_VLLM,
    ),
    Rule(
        "vllm.speculators_shift",
        WARN,
        "This release captures one layer off for speculators' drafters",
        speculators_shift,
        "Boundary ids were passed on without the −1 that they need, and nothing says so",
        "Upgrade to 0.22.1 or newer",
        "https://github.com/vllm-project/vllm/pull/40727",
        ANY_VLLM,
    ),
    Rule(
        "vllm.speculators_dflash2",
        FAIL,
        "This release cannot read speculators' dflash2",
        speculators_dflash2,
        "The type is known from 0.30 on",
        "Upgrade to 0.30 or newer",
        "https://github.com/vllm-project/speculators/issues/1006",
        ANY_VLLM,
    ),
    Rule(
        "vllm.anchor_layout",
        FAIL,
        "vLLM does not run DFlash drafters whose anchor slot predicts",
        anchor_layout,
        "It refuses sample_from_anchor for DFlash, or drafts one place off where the key is missing",
        "Use the local engine, or a drafter of the common layout",
        "https://github.com/vllm-project/vllm/pull/54154",
        ANY_VLLM,
    ),
    Rule(
        "vllm.no_domino",
        FAIL,
        "vLLM has no runtime for Domino drafters",
        no_runtime,
        "Its correction head would not be applied",
        "Use an engine that runs Domino",
        "https://github.com/vllm-project/vllm/pull/48241",
        ANY_VLLM,
    ),
    Rule(
        "vllm.mask_hidden",
        FAIL,
        "vLLM refuses drafters that ship a mask_hidden tensor",
        mask_hidden,
        "Its DFlash class embeds mask_token_id",
        "Use an engine that reads the tensor",
        None,
        ANY_VLLM,
    ),
    Rule(
        "vllm.no_captured_states",
        FAIL,
        "This target class cannot give captured states in vLLM",
        no_captured_states,
        "It lacks the hooks: several start errors one after the other",
        "Wait for its support, or use another engine",
        "https://github.com/vllm-project/vllm/issues/56088",
        ANY_VLLM,
    ),
    Rule(
        "vllm.refused_sampling",
        INFO,
        "Requests with min_p or logit_bias are refused while a drafter is loaded",
        refused_sampling,
        "vLLM does not support them with speculation, and answers with an error",
        "Send such requests to a deployment without the drafter, or to the local engine",
        None,
        ANY_VLLM,
    ),
)
