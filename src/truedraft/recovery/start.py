"""Where a recovery starts: what the files say, filled up with what shapes, family and habit suggest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truedraft.contract.reading import DrafterReading
from truedraft.contract.specs import AttentionSpec, DrafterSpec, RopeSpec, TargetSpec
from truedraft.diagnosis.known_drafters import KnownDrafter, family, reference_formula
from truedraft.errors import ConfigError, PairingError
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.space import causal_by_type

SIZES = ("num_layers", "hidden_size", "mlp_size", "num_heads", "num_kv_heads", "head_dim")
USUAL_BLOCK_LEN = 8


@dataclass(frozen=True, slots=True)
class Start:
    """A spec that the weights fit, the candidate to begin with, and which of its fields the config says."""

    spec: DrafterSpec
    candidate: Candidate
    said: frozenset[str]
    family: tuple[KnownDrafter, ...]


def find_start(reading: DrafterReading, target: TargetSpec, special_ids: Iterable[int] = ()) -> Start:
    """→ where to begin. Raises ConfigError where the drafter cannot be measured (its sizes are not
    known, it has parts beyond plain DFlash), PairingError where `fc` does not fit the target.
    """
    _check_kind(reading)
    sizes = _sizes(reading)
    num_slots = _num_slots(reading, target)
    known = family(sizes["hidden_size"], target.num_layers)
    values = reading.values
    num_layers = sizes["num_layers"]
    windows = values.get("windows")
    if windows is None or len(windows) != num_layers:
        windows = (None,) * num_layers
    causal = values.get("causal")
    if causal is None or len(causal) != num_layers:
        causal = causal_by_type(windows)
    declared: tuple[int, ...] = values.get("capture_layers") or ()
    fits = len(declared) == num_slots and all(-1 <= layer < target.num_layers for layer in declared)
    candidate = Candidate(
        capture_layers=declared if fits else _usual_layers(known, target, num_slots),
        mask_token_id=_mask(values, known, target, special_ids),
        sample_from_anchor=bool(values.get("sample_from_anchor", False)),
        windows=windows,
        causal=causal,
        theta=float(values.get("rope_theta") or _known(known, "rope_theta") or target.attention.rope.theta),
        interleaved=_interleaved(reading),
        embedding_scale=float(values.get("embedding_scale", 1.0)),
        block_len=int(values.get("block_len") or _known(known, "block_len") or USUAL_BLOCK_LEN),
    )
    spec = candidate.applied(_spec(reading, target, sizes, candidate))
    return Start(spec, candidate, _said(reading, fits), known)


def _check_kind(reading: DrafterReading) -> None:
    algorithm = reading.values.get("algorithm", "dflash")
    if algorithm != "dflash" or reading.extras:
        raise ConfigError(
            f"{reading.path} cannot be measured: only plain DFlash drafters can",
            seen=", ".join(reading.extras) or algorithm,
        )
    if reading.absent:
        raise ConfigError(
            f"{reading.path} cannot be measured: it lacks tensors that a DFlash drafter has",
            seen=", ".join(reading.absent[:4]),
        )


def _sizes(reading: DrafterReading) -> dict[str, int]:
    """Shapes count more than the config."""
    sizes = {name: reading.values.get(name) for name in SIZES}
    for conflict in reading.conflicts:
        if conflict.name in SIZES and conflict.other_from.kind == "shape" and type(conflict.other) is int:
            sizes[conflict.name] = conflict.other
    unknown = [name for name, value in sizes.items() if not value]
    if unknown:
        raise ConfigError(
            f"{reading.path} cannot be measured: neither config nor shapes say its {', '.join(unknown)}"
        )
    return {name: int(value) for name, value in sizes.items() if value is not None}


def _num_slots(reading: DrafterReading, target: TargetSpec) -> int:
    fc = next((t for t in reading.tensors if t.name.removeprefix("model.") == "fc.weight"), None)
    if fc is None or len(fc.shape) != 2:
        raise ConfigError(f"{reading.path} cannot be measured: it has no fc.weight")
    if fc.shape[1] % target.hidden_size:
        raise PairingError(
            "The drafter's fc does not take this target's hidden states",
            seen=f"{fc.shape[1]} inputs",
            allowed=f"a multiple of {target.hidden_size}",
        )
    return fc.shape[1] // target.hidden_size


def _usual_layers(known: tuple[KnownDrafter, ...], target: TargetSpec, num_slots: int) -> tuple[int, ...]:
    fitting = [one.capture_layers for one in known if len(one.capture_layers) == num_slots]
    return fitting[0] if fitting else reference_formula(target.num_layers, num_slots)


def _known(known: tuple[KnownDrafter, ...], name: str) -> Any:
    return next((value for one in known if (value := getattr(one, name)) is not None), None)


def _mask(
    values: Any, known: tuple[KnownDrafter, ...], target: TargetSpec, special_ids: Iterable[int]
) -> int:
    found = values.get("mask_token_id")
    if found is not None and 0 <= found < target.vocab_size:
        return int(found)
    usual = _known(known, "mask_token_id")
    return int(usual) if usual is not None else max((*special_ids, 0))


def _interleaved(reading: DrafterReading) -> bool:
    return reading.config.get("rope_is_neox_style") is False


def _spec(
    reading: DrafterReading, target: TargetSpec, sizes: dict[str, int], candidate: Candidate
) -> DrafterSpec:
    """Sizes and fixed facts; what is searched is put over it."""
    values, path = reading.values, Path(reading.path)
    said = reading.spec.attention.rope if reading.spec is not None else None
    vocab = reading.head_rows or reading.d2t_len or target.vocab_size
    return DrafterSpec(
        source=reading.source,
        path=str(path if path.is_dir() else path.parent),
        format=reading.format if reading.format in ("zlab", "speculators") else "zlab",  # type: ignore[arg-type]
        algorithm="dflash",
        architecture="DFlashDraftModel",
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        mlp_size=sizes["mlp_size"],
        vocab_size=vocab,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        block_len=candidate.block_len,
        mask_token_id=candidate.mask_token_id,
        capture_layers=candidate.capture_layers,
        attention=AttentionSpec(
            sizes["num_heads"],
            sizes["num_kv_heads"],
            sizes["head_dim"],
            candidate.windows,
            said or RopeSpec(candidate.theta, None, float(values.get("rope_partial_frac", 1.0))),
        ),
        causal=candidate.causal,
        rms_eps=float(values.get("rms_eps", target.rms_eps)),
        max_position=int(values.get("max_position") or target.max_position),
        own_embedding=reading.embedding_rows is not None,
        own_head=reading.head_rows is not None,
        has_d2t=reading.d2t_len is not None,
        attention_bias=bool(values.get("attention_bias", False)),
        output_multiplier=float(values.get("output_multiplier", 1.0)),
        final_logit_softcap=values.get("final_logit_softcap"),
        dtype=str(values.get("dtype", "BF16")),
    )


def _said(reading: DrafterReading, layers_fit: bool) -> frozenset[str]:
    """Fields of Candidate that the config says, if only by leaving a key out."""
    if reading.config_problem is not None:
        return frozenset()
    by_absence = {"sample_from_anchor", "windows", "causal", "embedding_scale", "interleaved"}
    keys = {"mask_token_id": "mask_token_id", "theta": "rope_theta", "block_len": "block_len"}
    said = {field for field, name in keys.items() if reading.values.get(name) is not None}
    return frozenset(by_absence | said | ({"capture_layers"} if layers_fit else set()))
