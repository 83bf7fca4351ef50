"""Which format and which algorithm a drafter is: the file's own words first, then its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from truedraft.errors import CheckpointError

Format = Literal["zlab", "speculators", "specforge", "deepspec", "unknown"]

# Substrings of architecture names, most telling first.
ARCHITECTURES = (
    ("DFlash2", "dflash2"),
    ("MuseGlimmer", "dflash2"),
    ("DSpark", "dspark"),
    ("Domino", "domino"),
    ("JetSpec", "jetspec"),
    ("JetFlow", "jetspec"),
    ("LiLiCorr", "lilicorr"),
    ("XPress", "xpress"),
    ("Laguna", "laguna"),
)
# Parts that decide the algorithm whatever the config says.
PARTS = (
    ("candidate_selector", "dflash2"),
    ("dynamic_conv", "dflash2"),
    ("markov_head", "dspark"),
    ("domino_head", "domino"),
)
OTHERS = ("eagle3", "eagle", "mtp", "medusa", "mlp", "peagle", "independent")


def sniff_format(config: Mapping[str, Any]) -> Format:
    """→ who wrote this config. SpecForge writes z-lab's format with keys of its own."""
    if any(
        key in config for key in ("speculators_model_type", "speculators_config", "transformer_layer_config")
    ):
        return "speculators"
    if "markov_rank" in config or ("target_layer_ids" in config and "num_anchors" in config):
        return "deepspec"
    nested = config.get("dflash_config")
    if isinstance(nested, Mapping):
        return "specforge" if any(key in nested for key in ("projector_type", "attention_mode")) else "zlab"
    if any(name in architecture_of(config) for name in ("DFlash", "DSpark")) or "target_layer_ids" in config:
        return "zlab"
    return "unknown"


def architecture_of(config: Mapping[str, Any]) -> str:
    """→ the first architecture's name, or an empty text."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def sniff_algorithm(config: Mapping[str, Any], extras: tuple[str, ...], layer_types: tuple[str, ...]) -> str:
    """→ "dflash", "dflash2", "dspark", "domino", "jetspec", … Raises CheckpointError for EAGLE and its kin."""
    said = str(config.get("speculators_model_type") or "").lower()
    nested = config.get("dflash_config")
    nested = nested if isinstance(nested, Mapping) else {}
    projector = str(nested.get("projector_type") or config.get("projector_type") or "").lower()
    name = architecture_of(config)
    if said in OTHERS or "eagle" in name.lower():
        raise CheckpointError(
            f"This is no DFlash drafter but one of kind {said or name}",
            allowed="DFlash drafters in safetensors",
        )
    for part, algorithm in PARTS:
        if part in extras:
            return algorithm
    if projector in ("dspark", "domino"):
        return projector
    if said and said != "dflash":
        return said
    for piece, algorithm in ARCHITECTURES:
        if piece in name:
            return algorithm
    all_full = all(kind == "full_attention" for kind in layer_types)
    if nested.get("causal") is True and all_full:
        return "jetspec"  # same file format; every block row sees only earlier rows
    return "dflash"
