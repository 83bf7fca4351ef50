"""Rotary position embedding: frequencies after the checkpoint's scaling rule, and their table."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from truedraft.contract.specs import RopeSpec
from truedraft.errors import CheckpointError

# The last block of a sequence may reach past the context; its rows are computed and thrown away.
_SPARE_POSITIONS = 64


def inverse_frequencies(rope: RopeSpec, head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """→ (float32 [rotary_len / 2], factor on cos and sin), equal to transformers' bit for bit.

    rotary_len is the part of the head that turns. Scaling rules: none, `linear`, `llama3`, `yarn`
    (arXiv 2309.00071). Raises CheckpointError for others.
    """
    rotary_len = int(head_dim * rope.partial_frac)
    exponents = torch.arange(0, rotary_len, 2, dtype=torch.float32) / rotary_len
    plain = 1.0 / (rope.theta**exponents)
    scaling = dict(rope.scaling or {})
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    try:
        if kind == "default":
            return plain, 1.0
        if kind == "linear":
            return plain / _number(scaling, "factor"), 1.0
        if kind == "llama3":
            return _llama3(plain, scaling), 1.0
        if kind == "yarn":
            return _yarn(rope.theta**exponents, rope.theta, rotary_len, max_position, scaling)
    except KeyError as error:
        raise CheckpointError(f"rope scaling {kind!r} lacks the key {error}", seen=scaling) from error
    raise CheckpointError(
        "This rope scaling is not supported", seen=kind, allowed="default, linear, llama3, yarn"
    )


def _number(scaling: Mapping[str, object], key: str) -> float:
    value = scaling[key]
    if not isinstance(value, (int, float)):
        raise CheckpointError(f"rope scaling: {key} is not a number", seen=value)
    return float(value)


def _llama3(plain: Tensor, scaling: Mapping[str, object]) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    trained_len = _number(scaling, "original_max_position_embeddings")
    wave_len = 2 * math.pi / plain
    slowed = torch.where(wave_len > trained_len / low, plain / factor, plain)
    blend = (trained_len / wave_len - low) / (high - low)
    blended = (1 - blend) * slowed / factor + blend * slowed
    between = ~(wave_len < trained_len / high) & ~(wave_len > trained_len / low)
    return torch.where(between, blended, slowed)


def _yarn(
    wave: Tensor, theta: float, rotary_len: int, max_position: int, scaling: Mapping[str, object]
) -> tuple[Tensor, float]:
    trained_len = _number(scaling, "original_max_position_embeddings")
    given = scaling.get("factor")
    factor = _number(scaling, "factor") if given is not None else max_position / trained_len

    def dimension(num_turns: float) -> float:
        """The (fractional) dimension that turns `num_turns` times within the trained length."""
        return rotary_len * math.log(trained_len / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(scaling.get("beta_fast") or 32))  # type: ignore[arg-type]
    high = dimension(float(scaling.get("beta_slow") or 1))  # type: ignore[arg-type]
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_len - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(rotary_len // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return (1.0 / (factor * wave)) * (1 - keep) + (1.0 / wave) * keep, _yarn_factor(factor, scaling)


def _yarn_factor(factor: float, scaling: Mapping[str, object]) -> float:
    """YaRN's correction of the attention's temperature, as a factor on cos and sin."""
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def correction(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return correction(_number(scaling, "mscale")) / correction(_number(scaling, "mscale_all_dim"))
    return correction(1.0)


class RopeTable(nn.Module):
    """cos and sin of every position up to `max_position`, computed in float32 and cast once.

    Only half of each is kept (the other half repeats it): 67 MB at 262,144 positions, head 128, bf16.
    """

    def __init__(
        self, rope: RopeSpec, head_dim: int, max_position: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        frequencies, factor = inverse_frequencies(rope, head_dim, max_position)
        positions = torch.arange(max_position + _SPARE_POSITIONS, dtype=torch.float32)
        angles = positions[:, None] * frequencies[None, :]
        table = torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1)
        self.cos_sin_MH: Tensor
        self.register_buffer("cos_sin_MH", table.to(device=device, dtype=dtype), persistent=False)

    def forward(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """→ cos_TH, sin_TH of these positions (int64), as wide as the part of the head that turns."""
        cos, sin = self.cos_sin_MH.index_select(0, positions_T).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
