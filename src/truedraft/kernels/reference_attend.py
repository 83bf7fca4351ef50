"""Attention over paged K/V in plain torch.

On a CPU, span by span: the integers are at hand, and each span reads only the keys it can see. On
other devices, all spans in one padded batch, since reading the integers would stall the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from truedraft.kernels.ops import Spans


@dataclass(frozen=True, slots=True)
class Rule:
    """Which keys a row sees and how scores are formed."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None

    def visible(self, rows: Tensor, keys: Tensor) -> Tensor:
        """bool, of the broadcast shape: whether a row at `rows` sees a key at `keys`."""
        seen = (keys <= rows) if self.causal else torch.ones_like(keys <= rows)
        if self.window is not None:
            seen = seen & (rows - keys < self.window)
            if not self.causal:
                seen = seen & (keys - rows < self.window)
        return seen


def attend(
    q_TNH: Tensor,
    k_pool_PWKH: Tensor,
    v_pool_PWKH: Tensor,
    spans: Spans,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """See kernels.ops.Attend."""
    rule = Rule(scale, causal, window, softcap)
    by_span = q_TNH.device.type == "cpu"
    return (attend_by_span if by_span else attend_padded)(q_TNH, k_pool_PWKH, v_pool_PWKH, spans, rule)


def attend_by_span(
    q_TNH: Tensor, k_pool_PWKH: Tensor, v_pool_PWKH: Tensor, spans: Spans, rule: Rule
) -> Tensor:
    """One scaled_dot_product_attention a span, over no more keys than the span can see."""
    o_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
    row_starts = spans.row_start_B.tolist()
    position_starts = spans.position_start_B.tolist()
    for b, (position, kv_len) in enumerate(zip(position_starts, spans.kv_len_B.tolist(), strict=True)):
        begin, end = row_starts[b], row_starts[b + 1]
        if begin == end:
            continue
        first, last = _key_range(position, position + end - begin, kv_len, rule)
        pages_M = spans.page_table_BM[b]
        k_SKH = _gather(k_pool_PWKH, pages_M, first, last)
        v_SKH = _gather(v_pool_PWKH, pages_M, first, last)
        mask_RS = _span_mask(position, end - begin, first, last, rule, q_TNH.device)
        q_RNH = q_TNH[begin:end]
        o_RNH = _attend_dense(q_RNH[None], k_SKH[None], v_SKH[None], mask_RS, rule)
        o_TNH[begin:end] = o_RNH[0]
    return o_TNH


def attend_padded(
    q_TNH: Tensor, k_pool_PWKH: Tensor, v_pool_PWKH: Tensor, spans: Spans, rule: Rule
) -> Tensor:
    """All spans at once, padded to `max_rows` and `max_kv_len`; never waits for the device."""
    num_rows, device = q_TNH.shape[0], q_TNH.device
    num_spans = spans.position_start_B.shape[0]
    uniform = num_rows == num_spans * spans.max_rows
    offsets_R = torch.arange(spans.max_rows, device=device)
    row_start_B1 = spans.row_start_B[:-1, None].long()
    if uniform:
        q_BRNH = q_TNH.reshape(num_spans, spans.max_rows, *q_TNH.shape[1:])
    else:
        q_BRNH = q_TNH[(row_start_B1 + offsets_R).clamp_(max=num_rows - 1)]
    num_pages = -(-spans.max_kv_len // spans.page_len)
    pages_BM = spans.page_table_BM[:, :num_pages].long().clamp(min=0)
    k_BSKH = k_pool_PWKH[pages_BM].flatten(1, 2)[:, : spans.max_kv_len]
    v_BSKH = v_pool_PWKH[pages_BM].flatten(1, 2)[:, : spans.max_kv_len]
    keys_S = torch.arange(spans.max_kv_len, device=device)
    rows_BR1 = (spans.position_start_B[:, None] + offsets_R)[..., None]
    mask_BRS = rule.visible(rows_BR1, keys_S) & (keys_S < spans.kv_len_B[:, None, None])
    # A padding row may see nothing: give it key 0, so that no NaN is born in rows thrown away.
    mask_BRS[..., 0] |= ~mask_BRS.any(-1)
    o_BRNH = _attend_dense(q_BRNH, k_BSKH, v_BSKH, mask_BRS[:, None], rule)
    if uniform:
        return o_BRNH.reshape(q_TNH.shape)
    rows_T = torch.arange(num_rows, device=device)
    spans_T = torch.searchsorted(spans.row_start_B.long(), rows_T, right=True) - 1
    return o_BRNH[spans_T, rows_T - spans.row_start_B[spans_T]]


def _key_range(begin: int, end: int, kv_len: int, rule: Rule) -> tuple[int, int]:
    """First and one past the last key that rows at positions begin … end−1 can see."""
    first, last = 0, min(kv_len, end) if rule.causal else kv_len
    if rule.window is not None:
        first = max(0, begin - rule.window + 1)
        last = min(last, end - 1 + rule.window)
    return first, last


def _gather(pool_PWKH: Tensor, pages_M: Tensor, first: int, last: int) -> Tensor:
    """Keys first … last−1 of one sequence. A view where they stand on one page, else a copy."""
    page_len = pool_PWKH.shape[1]
    first_page, last_page = first // page_len, (last - 1) // page_len
    base = first_page * page_len
    if first_page == last_page:
        return pool_PWKH[int(pages_M[first_page])][first - base : last - base]
    pages_PWKH = pool_PWKH.index_select(0, pages_M[first_page : last_page + 1])
    return pages_PWKH.flatten(0, 1)[first - base : last - base]


def _span_mask(
    position: int, num_rows: int, first: int, last: int, rule: Rule, device: torch.device
) -> Tensor | None:
    """bool mask_RS, or None where every row sees every key of the range."""
    end = position + num_rows - 1
    sees_last = not rule.causal or last - 1 <= position
    sees_window = rule.window is None or (end - first < rule.window and last - 1 - position < rule.window)
    if sees_last and sees_window:
        return None
    rows_R1 = torch.arange(position, position + num_rows, device=device)[:, None]
    return rule.visible(rows_R1, torch.arange(first, last, device=device))


def _attend_dense(q_BRNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, mask: Tensor | None, rule: Rule) -> Tensor:
    """Grouped-query attention; `mask` broadcasts to [B, 1, R, S]. → o_BRNH.

    A group's query heads are packed into rows, so that K and V are never repeated.
    """
    num_batch, num_rows, num_heads, head_dim = q_BRNH.shape
    num_kv_heads = k_BSKH.shape[2]
    group = num_heads // num_kv_heads
    q_BKMH = q_BRNH.reshape(num_batch, num_rows, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    q_BKMH = q_BKMH.reshape(num_batch, num_kv_heads, group * num_rows, head_dim)
    k_BKSH, v_BKSH = k_BSKH.transpose(1, 2), v_BSKH.transpose(1, 2)
    if mask is not None:
        mask = mask.repeat(*([1] * (mask.dim() - 2)), group, 1)
    if rule.softcap is None:
        o_BKMH = functional.scaled_dot_product_attention(
            q_BKMH, k_BKSH, v_BKSH, attn_mask=mask, scale=rule.scale
        )
    else:
        o_BKMH = _attend_capped(q_BKMH, k_BKSH, v_BKSH, mask, rule.scale, rule.softcap)
    o_BKGRH = o_BKMH.reshape(num_batch, num_kv_heads, group, num_rows, head_dim)
    return o_BKGRH.permute(0, 3, 1, 2, 4).reshape(num_batch, num_rows, num_heads, head_dim)


def _attend_capped(
    q_BKMH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention with scores capped to softcap · tanh(score / softcap); in fp32 throughout."""
    scores_BKMS = (q_BKMH.float() @ k_BKSH.float().transpose(-1, -2)) * scale
    scores_BKMS = softcap * torch.tanh(scores_BKMS / softcap)
    if mask is not None:
        scores_BKMS = scores_BKMS.masked_fill(~mask, float("-inf"))
    return (scores_BKMS.softmax(-1) @ v_BKSH.float()).to(q_BKMH.dtype)
