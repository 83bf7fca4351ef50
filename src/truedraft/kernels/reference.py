"""Every operation in plain torch: any device, any dtype; what the other providers are tested against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from truedraft.kernels.ops import Ops, SingleOps
from truedraft.kernels.reference_attend import attend
from truedraft.kernels.reference_layer import composed


def torch_ops() -> Ops:
    """The provider that needs nothing but torch."""
    return composed(
        SingleOps(
            name="torch",
            row_invariant=False,
            linear=functional.linear,
            rms_norm=rms_norm,
            add_rms_norm=add_rms_norm,
            rope=rope,
            silu_mul=silu_mul,
            write_kv=write_kv,
            attend=attend,
        )
    )


def rms_norm(x_TD: Tensor, w_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) in fp32, rounded to x's dtype, then times w. Any leading shape."""
    wide_TD = x_TD.float()
    scale_T1 = torch.rsqrt(wide_TD.square().mean(-1, keepdim=True) + eps)
    return (wide_TD * scale_T1).to(x_TD.dtype) * w_D


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(residual + x), residual + x); the sum is rounded before it is normed."""
    total_TD = residual_TD + x_TD
    return rms_norm(total_TD, w_D, eps), total_TD


def rope(x_TXH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Rotates each head's first cos.shape[-1] elements, halves paired; the rest pass unchanged.

    cos and sin repeat their first half in their second, and may be wider than x's dtype: then the
    products are taken in the wide dtype and rounded once.
    """
    rotary_len = cos_TH.shape[-1]
    turned_TXH = x_TXH[..., :rotary_len]
    first_TXh, second_TXh = turned_TXH.chunk(2, dim=-1)
    swapped_TXH = torch.cat((-second_TXh, first_TXh), dim=-1)
    y_TXH = (turned_TXH * cos_TH.unsqueeze(1) + swapped_TXH * sin_TH.unsqueeze(1)).to(x_TXH.dtype)
    if rotary_len == x_TXH.shape[-1]:
        return y_TXH
    return torch.cat((y_TXH, x_TXH[..., rotary_len:]), dim=-1)


def silu_mul(gate_up_T2F: Tensor) -> Tensor:
    """silu(first half) · second half: y_TF."""
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
    return functional.silu(gate_TF) * up_TF


def write_kv(pool_PWKH: Tensor, slots_T: Tensor, x_TKH: Tensor) -> None:
    """Puts row t of x at slot `slots_T[t]` (page · W + offset), in place."""
    num_pages, page_len, num_heads, head_dim = pool_PWKH.shape
    pool_PWKH.view(num_pages * page_len, num_heads, head_dim).index_copy_(0, slots_T, x_TKH)
