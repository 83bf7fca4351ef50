"""The operations that models and engine are written against, and who provides them.

Models take an `Ops` at construction and call nothing faster than these behind its back, so one
model class serves the plain-torch reference, our C kernels on CPUs and whatever runs on a GPU.

Axes: T rows, D width, O outputs, N query heads, K key/value heads, H head dim, F MLP width,
P pages, W tokens a page, B sequences, M pages of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the rows of one forward stand, one span a sequence. int32 tensors on the model's device.

    Span b owns rows `row_start_B[b] … row_start_B[b+1]` (row_start has B+1 entries), whose first
    row stands at position `position_start_B[b]`; its keys are positions 0 … kv_len_B[b]−1, its own
    rows included, found through `page_table_BM`. `max_rows` and `max_kv_len` are host integers.
    """

    row_start_B: Tensor
    position_start_B: Tensor
    kv_len_B: Tensor
    page_table_BM: Tensor
    page_len: int
    max_rows: int
    max_kv_len: int


class Attend(Protocol):
    """Attention over the paged cache: (q_TNH, k_pool_PWKH, v_pool_PWKH, spans) → o_TNH.

    Row at position p sees key j where j < kv_len, j ≤ p if `causal`, p − j < window, and (not
    causal) j − p < window. `scale` multiplies q·k; `softcap` c caps scores to c·tanh(score/c).
    """

    def __call__(
        self,
        q_TNH: Tensor,
        k_pool_PWKH: Tensor,
        v_pool_PWKH: Tensor,
        spans: Spans,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor: ...


class WriteAttend(Protocol):
    """Writes row t of k and v at slot `slots_T[t]` of the pools, in place, then attends: → o_TNH."""

    def __call__(
        self,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        k_pool_PWKH: Tensor,
        v_pool_PWKH: Tensor,
        slots_T: Tensor,
        spans: Spans,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor: ...


class InputWeights(NamedTuple):
    """What a layer does before attention. `qkv_OD` and its bias: q's, k's, then v's heads."""

    norm_D: Tensor
    qkv_OD: Tensor
    qkv_bias_O: Tensor | None
    q_norm_H: Tensor | None
    k_norm_H: Tensor | None
    eps: float
    num_heads: int
    num_kv_heads: int
    head_dim: int


class OutputWeights(NamedTuple):
    """What a layer does after attention. X: the query heads side by side; `gate_up_2FD`: gate, then up."""

    out_DX: Tensor
    out_bias_D: Tensor | None
    norm_D: Tensor
    gate_up_2FD: Tensor
    gate_up_bias_2F: Tensor | None
    down_DF: Tensor
    down_bias_D: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class SingleOps:
    """One provider's single operations. All outputs are new tensors unless a field says otherwise.

    linear(x_TD, w_OD, bias_O | None) → y_TO, in x's dtype, accumulated in fp32.
    rms_norm(x_TD, w_D, eps) → y_TD: computed in fp32, w applied after rounding to x's dtype, as
        transformers' Llama and Qwen3 do; also for x of any leading shape (q/k norm over H).
    add_rms_norm(x_TD, residual_TD, w_D, eps) → (normed_TD, residual_TD): residual + x, then norm.
    rope(x_TXH, cos_TH, sin_TH) → y_TXH: rotate-half (neox) style.
    silu_mul(gate_up_T2F) → y_TF: silu(first half) · second half.
    write_kv(pool_PWKH, slots_T int64, x_TKH) → None: in place, slot = page · W + offset.
    attend: see Attend.
    `row_invariant`: each output row is the same bits however many other rows are beside it, so
        that verifying G rows gives exactly what G single steps give.
    """

    name: str
    row_invariant: bool
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor], None]
    attend: Attend


@dataclass(frozen=True, slots=True)
class Ops(SingleOps):
    """One provider's operations, with what a decoder layer does in few calls.

    The three below give, bit for bit, what the provider's single operations give one after another.

    attention_inputs(x_TD, residual_TD | None, weights, cos_TH, sin_TH) → (q_TNH, k_TKH, v_TKH,
        residual_TD): residual + x (None: x alone), norm, q, k and v, norm of q's and k's heads where
        there is one, rope of both. The new residual may be x itself.
    write_attend: see WriteAttend.
    attention_outputs(o_TNH, residual_TD, weights) → (x_TD, residual_TD): output product, added to
        the residual, norm, gated MLP. The MLP's product is left to be added by what comes next.
    """

    attention_inputs: Callable[
        [Tensor, Tensor | None, InputWeights, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]
    ]
    write_attend: WriteAttend
    attention_outputs: Callable[[Tensor, Tensor, OutputWeights], tuple[Tensor, Tensor]]
