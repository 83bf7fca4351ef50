"""The self-test that native kernels pass before anyone may use them: some milliseconds."""

from __future__ import annotations

import torch
from torch import Tensor

from truedraft.kernels.ops import InputWeights, Ops, OutputWeights, Spans
from truedraft.kernels.reference import torch_ops


def find_fault(ops: Ops) -> str | None:
    """Name of the first operation that differs from the reference beyond rounding, else None."""
    generator = torch.Generator().manual_seed(11)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 4e-2)):
        shapes = ((9, 80), (700, 80), (9, 6, 32), (4, 16, 2, 32))
        x_TD, w_OD, q_TNH, pool_PWKH = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
        w_OD = w_OD * 0.1
        wants = _apply(torch_ops(), x_TD, w_OD, q_TNH, pool_PWKH.clone())
        gots = _apply(ops, x_TD, w_OD, q_TNH, pool_PWKH.clone())
        for name, want in wants.items():
            if not torch.allclose(gots[name].float(), want.float(), atol=tolerance, rtol=tolerance):
                return f"{name} ({str(dtype).removeprefix('torch.')})"
        one_row = ops.linear(x_TD[5:6], w_OD, None)
        if ops.row_invariant and not torch.equal(one_row, gots["linear"][5:6]):
            return "linear: rows depend on their number"
    return None


def _apply(ops: Ops, x_TD: Tensor, w_OD: Tensor, q_TNH: Tensor, pool_PWKH: Tensor) -> dict[str, Tensor]:
    """Every operation once; `pool` is written to."""
    spans = Spans(
        row_start_B=torch.tensor([0, 8, 9], dtype=torch.int32),
        position_start_B=torch.tensor([13, 3], dtype=torch.int32),
        kv_len_B=torch.tensor([21, 4], dtype=torch.int32),
        page_table_BM=torch.tensor([[2, 0], [1, 1]], dtype=torch.int32),
        page_len=16,
        max_rows=8,
        max_kv_len=21,
    )
    angles_TH = torch.linspace(0, 6, 9 * 32).view(9, 32)
    norm_w_D = x_TD[0] + 1
    normed_TD, total_TD = ops.add_rms_norm(x_TD, x_TD * 0.5, norm_w_D, 1e-5)
    ops.write_kv(pool_PWKH, torch.tensor([5, 40, 0]), q_TNH[:3, 1:3])
    return {
        "linear": ops.linear(x_TD, w_OD, None),
        "rms_norm": ops.rms_norm(x_TD, norm_w_D, 1e-5),
        "add_rms_norm": torch.cat((normed_TD, total_TD)),
        "rope": ops.rope(q_TNH, angles_TH.cos(), angles_TH.sin()),
        "silu_mul": ops.silu_mul(x_TD),
        "write_kv": pool_PWKH,
        "attend": ops.attend(q_TNH, pool_PWKH, pool_PWKH.flip(1), spans, scale=0.2),
        "attend bidirectional": ops.attend(
            q_TNH, pool_PWKH, pool_PWKH, spans, scale=0.2, causal=False, window=7
        ),
        **_apply_fused(ops, x_TD, w_OD, pool_PWKH, spans, angles_TH),
    }


def _apply_fused(
    ops: Ops, x_TD: Tensor, w_OD: Tensor, pool_PWKH: Tensor, spans: Spans, angles_TH: Tensor
) -> dict[str, Tensor]:
    """A layer of 6 query and 2 key heads of 32, its MLP 96 wide."""
    norm_D, unit_H = x_TD[1] + 1, x_TD.new_ones(32)
    inputs = InputWeights(norm_D, w_OD[:320], None, unit_H, unit_H, 1e-5, 6, 2, 32)
    cos_TH, sin_TH = angles_TH.cos(), angles_TH.sin()
    q_TNH, k_TKH, v_TKH, total_TD = ops.attention_inputs(x_TD, x_TD * 0.5, inputs, cos_TH, sin_TH)
    slots_T = torch.tensor([*range(45, 48), *range(5), 19])
    pools = pool_PWKH.clone(), pool_PWKH.flip(1)
    o_TNH = ops.write_attend(q_TNH, k_TKH, v_TKH, *pools, slots_T, spans, scale=0.2)
    out_DX, down_DF = w_OD[320:512].t().contiguous(), w_OD[600:696].t().contiguous()
    outputs = OutputWeights(out_DX, None, norm_D, w_OD[400:592], None, down_DF, None, 1e-5)
    return {
        "attention_inputs": torch.cat((q_TNH, k_TKH, v_TKH), dim=1),
        "write_attend": o_TNH,
        "attention_outputs": torch.cat(ops.attention_outputs(o_TNH, total_TD, outputs)),
    }
