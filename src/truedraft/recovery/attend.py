"""Attention of many blocks at once over contexts that they share.

A block at anchor a sees the context rows of its own text before a, and itself; blocks do not see
each other. Context keys and values depend on feature and position alone, so one set a text serves
every anchor in it, and nothing is written back. Axes as in kernels.ops; A anchors, G block
positions, S context rows of one text, Q = N / K query heads a key/value head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """The anchors of one text: context rows `first` … `last`−1 stand at positions 0 …"""

    first: int
    last: int
    anchors_A: Tensor  # int64 positions, on the model's device


class BlockAttend:
    """models.interface.LayerAttend for blocks of all groups, flattened group by group.

    `windows` and `causal` (one a layer) count, not what the layers were built with.
    """

    def __init__(
        self,
        kv: tuple[Tensor, Tensor],
        groups: list[Group],
        block_len: int,
        windows: tuple[int | None, ...],
        causal: tuple[bool, ...],
    ) -> None:
        self._k_LTKH, self._v_LTKH = kv
        self._groups = groups
        self._block_len = block_len
        self._windows, self._causal = windows, causal
        self._masks: dict[tuple[int, int | None, bool], Tensor] = {}

    def __call__(
        self,
        layer: int,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        assert softcap is None, "drafters have no soft cap on scores"
        o_TNH = torch.empty_like(q_TNH, memory_format=torch.contiguous_format)
        row = 0
        for index, group in enumerate(self._groups):
            rows = slice(row, row + group.anchors_A.shape[0] * self._block_len)
            context = slice(group.first, group.last)
            keys = (self._k_LTKH[layer, context], k_TKH[rows])
            values = (self._v_LTKH[layer, context], v_TKH[rows])
            o_TNH[rows] = self._attend(q_TNH[rows], keys, values, self._mask(index, layer), scale)
            row = rows.stop
        return o_TNH

    def _attend(
        self,
        q_RNH: Tensor,
        keys: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor],
        mask_AGS: Tensor,
        scale: float,
    ) -> Tensor:
        """Scores against context and own block side by side, one softmax over both."""
        (k_SKH, k_RKH), (v_SKH, v_RKH) = keys, values
        block_len, (num_keys, num_kv_heads, head_dim) = self._block_len, k_SKH.shape
        group = q_RNH.shape[1] // num_kv_heads
        q_KQAGH = q_RNH.reshape(-1, block_len, num_kv_heads, group, head_dim).permute(2, 3, 0, 1, 4)
        shape_KQAG = q_KQAGH.shape[:4]
        q_KXH = q_KQAGH.reshape(num_kv_heads, -1, head_dim)
        of_context = (q_KXH @ k_SKH.permute(1, 2, 0)).view(*shape_KQAG, num_keys)
        k_KAGH = k_RKH.reshape(-1, block_len, num_kv_heads, head_dim).permute(2, 0, 1, 3)
        of_block = q_KQAGH @ k_KAGH.unsqueeze(1).transpose(-1, -2)
        scores = torch.cat((of_context, of_block), dim=-1).float() * scale
        weights = scores.masked_fill_(~mask_AGS, float("-inf")).softmax(-1).to(q_RNH.dtype)
        from_context = weights[..., :num_keys].reshape(num_kv_heads, -1, num_keys) @ v_SKH.transpose(0, 1)
        v_KAGH = v_RKH.reshape(-1, block_len, num_kv_heads, head_dim).permute(2, 0, 1, 3)
        o_KQAGH = from_context.view(*shape_KQAG, head_dim) + weights[..., num_keys:] @ v_KAGH.unsqueeze(1)
        return o_KQAGH.permute(2, 3, 0, 1, 4).reshape(q_RNH.shape)

    def _mask(self, index: int, layer: int) -> Tensor:
        """bool [A, G, S + G]: what every row sees. One tensor for all layers of equal rules."""
        window, causal = self._windows[layer], self._causal[layer]
        key = (index, window, causal)
        if key not in self._masks:
            self._masks[key] = visible(self._groups[index], self._block_len, window, causal)
        return self._masks[key]


def visible(group: Group, block_len: int, window: int | None, causal: bool) -> Tensor:
    """bool [A, G, S + G] of one group. The window rule is that of kernels.ops.Attend."""
    anchors_A11 = group.anchors_A[:, None, None]
    device = anchors_A11.device
    offsets_G = torch.arange(block_len, device=device)
    keys_S = torch.arange(group.last - group.first, device=device)
    rows_AG1 = anchors_A11 + offsets_G[:, None]
    context = (keys_S < anchors_A11) & ((rows_AG1 - keys_S < window) if window is not None else True)
    back_GG = offsets_G[:, None] - offsets_G
    block_GG = torch.ones_like(back_GG, dtype=torch.bool)
    if causal:
        block_GG &= back_GG >= 0
    if window is not None:
        block_GG &= back_GG.abs() < window
    num_anchors = group.anchors_A.shape[0]
    return torch.cat(
        (context.expand(num_anchors, block_len, -1), block_GG.expand(num_anchors, -1, -1)), dim=-1
    )
