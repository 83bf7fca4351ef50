"""Number formats of drafter and target."""

from __future__ import annotations

from truedraft.contract.specs import TensorHeader
from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule
from truedraft.diagnosis.topics.files import conflict_said

PLAIN = ("BF16", "F16", "F32", "F64")
MAPS = ("d2t", "t2d")


def packed(facts: PairFacts) -> tuple[TensorHeader, ...]:
    """→ drafter matrices that are not plain numbers."""
    return tuple(
        t for t in facts.drafter.tensors if t.name not in MAPS and len(t.shape) >= 2 and t.dtype not in PLAIN
    )


def packed_said(facts: PairFacts) -> tuple[str, ...]:
    """→ evidence: the first packed tensors, and the declared method."""
    said = [f"drafter tensor {t.name}: {t.dtype} {list(t.shape)}" for t in packed(facts)[:3]]
    if facts.drafter.quantisation is not None:
        said.append(f"drafter quantisation: {facts.drafter.quantisation}")
    return tuple(said)


def is_quantised(facts: PairFacts) -> bool:
    return bool(packed(facts)) or facts.drafter.quantisation is not None


def packed_local(facts: PairFacts) -> tuple[str, ...]:
    return packed_said(facts) if is_quantised(facts) else ()


def half(facts: PairFacts) -> tuple[str, ...]:
    return (facts.draft_said("dtype"),) if facts.draft("dtype") == "F16" else ()


def dtype_differs(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if c.name == "dtype" and not is_quantised(facts)]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def declared_not_packed(facts: PairFacts) -> tuple[str, ...]:
    declared = facts.drafter.config.get("quantization_config")
    if not facts.drafter.tensors or not isinstance(declared, dict) or packed(facts):
        return ()
    return ("drafter config.json: quantization_config present", "all drafter matrices are plain numbers")


def target_rotated(facts: PairFacts) -> tuple[str, ...]:
    declared = {} if facts.target is None else facts.target.config.get("quantization_config")
    text = str(declared).lower()
    found = [word for word in ("quarot", "rotat", "hadamard", "spinquant") if word in text]
    return (f"target config.json: quantization_config mentions {found[0]!r}",) if found else ()


def target_low_bits(facts: PairFacts) -> tuple[str, ...]:
    kind = (
        "" if facts.target is None or facts.target.quantisation is None else facts.target.quantisation.lower()
    )
    low = any(mark in kind for mark in ("q2", "q3", "iq1", "iq2", "int2", "int3"))
    return (f"target quantisation: {facts.target.quantisation}",) if low and facts.target is not None else ()


def target_quantised(facts: PairFacts) -> tuple[str, ...]:
    if facts.target is None or facts.target.quantisation is None or target_low_bits(facts):
        return ()
    return (f"target quantisation: {facts.target.quantisation}",)


RULES = (
    Rule(
        "quant.packed_local",
        FAIL,
        "The drafter's weights are quantised",
        packed_local,
        "The local engine reads float32, float16 and bfloat16 drafters",
        "Use the bfloat16 drafter: it is small, and quantised ones lose acceptance",
        "https://github.com/sgl-project/sglang/issues/39087",
        engines=("local",),
    ),
    Rule(
        "quant.half",
        WARN,
        "The drafter is in float16",
        half,
        "Its activations exceed float16's range: acceptance as low as 0.06 of 15 is on record; bfloat16 is fine",
        "Run it in bfloat16 or float32",
        "https://github.com/InternLM/lmdeploy/pull/4991",
    ),
    Rule(
        "quant.dtype_differs",
        WARN,
        "The config's dtype is not that of the weights",
        dtype_differs,
        "Exporters forget to write it; engines convert to what the config says",
        "Correct dtype in the config",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1211",
    ),
    Rule(
        "quant.declared_not_packed",
        WARN,
        "The config declares a quantisation that the weights do not have",
        declared_not_packed,
        "A loader would look for packed tensors that are not there",
        "Remove quantization_config from the drafter's config",
    ),
    Rule(
        "quant.target_rotated",
        WARN,
        "The target's weights are rotated",
        target_rotated,
        "Hidden states lie in the rotated basis, which the drafter never saw: acceptance drops",
        "Use a plainly quantised target, or rotate the drafter's fc alike",
        "https://github.com/vllm-project/vllm-ascend/issues/5974",
    ),
    Rule(
        "quant.target_low_bits",
        WARN,
        "The target is quantised to very few bits",
        target_low_bits,
        "Its hidden states differ from those that the drafter was trained with",
        "Measure τ against a target of more bits",
        "https://github.com/z-lab/dflash/issues/152",
    ),
    Rule(
        "quant.target_quantised",
        INFO,
        "The target is quantised",
        target_quantised,
        "Drafters are trained with the full-precision target; mild quantisation costs little",
        "Compare τ with the drafter's card",
        "https://github.com/jundot/omlx/issues/2445",
    ),
)
