"""The DFlash drafter: one module for z-lab's and speculators' checkpoints, for serving and training.

A drafter conditions on fused hidden states of the target ("context"): per context token the outputs
of the capture layers go through `fc` and a norm, and every drafter layer's k and v projections turn
the result into cache entries, which depend on nothing but feature and position. The block's rows
(anchor, masks) then run through ordinary decoder layers that attend to context and block.

Axes as in kernels.ops and models.interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from truedraft.contract.specs import DrafterSpec
from truedraft.errors import PairingError
from truedraft.kernels.ops import Ops
from truedraft.kernels.sampling import greedy
from truedraft.models.interface import LayerAttend, Target
from truedraft.models.layers import DecoderStack, Linear, StackShape, empty_parameter
from truedraft.models.slots import Part, Slot


class DFlashDrafter(nn.Module):
    """Satisfies `models.interface.Drafter`; parameters are empty until `models.weights` fills them.

    Borrows the target's embedding and head where its file has none. Which output position predicts
    which token is the engine's business (`spec.sample_from_anchor`).
    """

    d2t: Tensor | None

    def __init__(
        self,
        spec: DrafterSpec,
        target: Target,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        _check_pair(spec, target)
        self.spec = spec
        self.ops = ops
        self.dtype = dtype
        self.device = torch.device(device)
        self._target = (target,)  # in a tuple, so that its parameters do not count as ours
        self.stack = DecoderStack(_stack_shape(spec, target), ops, dtype, device)
        num_in = len(spec.capture_layers) * spec.target_hidden_size
        self.fc = Linear(ops, num_in, spec.hidden_size, False, dtype)
        self.context_norm = empty_parameter(dtype, spec.hidden_size)
        if spec.own_embedding:
            self.embedding_VD = empty_parameter(dtype, _embedding_rows(spec, target), spec.hidden_size)
        if spec.own_head:
            self.head_VD = empty_parameter(dtype, spec.vocab_size, spec.hidden_size)
        d2t = torch.empty(spec.vocab_size, dtype=torch.int64, device="meta") if spec.has_d2t else None
        self.register_buffer("d2t", d2t)
        self._context: tuple[Tensor, Tensor | None, Tensor] | None = None
        self._draft_head_SD: Tensor | None = None
        self._draft_ids_S: Tensor | None = None

    def context_kv(self, captured_TX: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """See models.interface.Drafter: k_LTKH and v_LTKH, contiguous."""
        ops, attention = self.ops, self.spec.attention
        num_layers, num_rows = self.spec.num_layers, captured_TX.shape[0]
        weight, bias, k_norm_LH = self._context_parameters()
        fused_TD = ops.rms_norm(self.fc(captured_TX), self.context_norm, self.spec.rms_eps)
        kv_T = ops.linear(fused_TD, weight, bias)
        heads_T2LKH = kv_T.view(num_rows, 2, num_layers, attention.num_kv_heads, attention.head_dim)
        # All layers' heads are normed at once with a weight of 1; the layer's own follows.
        unit_H = torch.ones(attention.head_dim, dtype=kv_T.dtype, device=kv_T.device)
        k_TLKH = ops.rms_norm(heads_T2LKH[:, 0], unit_H, self.spec.rms_eps) * k_norm_LH[:, None]
        cos_TH, sin_TH = self.stack.rope(positions_T)
        k_TLKH = ops.rope(k_TLKH.flatten(1, 2), cos_TH, sin_TH).view(k_TLKH.shape)
        return k_TLKH.transpose(0, 1).contiguous(), heads_T2LKH[:, 1].transpose(0, 1).contiguous()

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: LayerAttend) -> Tensor:
        """See models.interface.Drafter."""
        x_TD = self.embed(ids_T)
        if self.spec.embedding_scale != 1.0:
            x_TD = x_TD * self.spec.embedding_scale
        hidden_TD, _ = self.stack(x_TD, positions_T, attend)
        return hidden_TD

    def embed(self, ids_T: Tensor) -> Tensor:
        """→ rows of the embedding table in use, unscaled."""
        if self.spec.own_embedding:
            return self.embedding_VD.index_select(0, ids_T)
        return self._target[0].embed(ids_T)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """See models.interface.Drafter: multiplier and soft cap applied, in this order."""
        logits_RV = self._head(hidden_RD).float()
        if self.spec.output_multiplier != 1.0:
            logits_RV = logits_RV * self.spec.output_multiplier
        cap = self.spec.final_logit_softcap
        if cap:
            logits_RV = torch.tanh(logits_RV / cap) * cap
        return logits_RV

    def draft_ids(self, hidden_RD: Tensor) -> Tensor:
        """See models.interface.Drafter. Multiplier and soft cap keep the order, so they are skipped."""
        if self._draft_head_SD is not None:
            ids_R = highest(self.ops.linear(hidden_RD, self._draft_head_SD, None))
            return ids_R if self._draft_ids_S is None else self._draft_ids_S[ids_R]
        ids_R = highest(self._head(hidden_RD))
        if self.d2t is not None:
            ids_R = ids_R + self.d2t[ids_R]
        return ids_R

    def limit_drafts(self, num_first: int, more_ids: Sequence[int] = ()) -> int:
        """Draft only tokens below `num_first` and `more_ids`; → how many tokens that leaves.

        Tokenizers made by merging give their low ids to common pieces, and reading the rest of a
        large head costs a draft more than its rare tokens bring. Drafts are guesses: what is left
        out costs acceptance, never the text. Does nothing (→ 0) where the head is the drafter's own
        or the target does not show its head.
        """
        head_VD = getattr(self._target[0], "head_weight", None)
        if self.spec.own_head or head_VD is None or num_first >= head_VD.shape[0]:
            return 0
        late = sorted({token_id for token_id in more_ids if token_id >= num_first})
        self._draft_head_SD = head_VD[:num_first]  # a view
        if late:
            ids_S = torch.tensor([*range(num_first), *late], device=head_VD.device)
            self._draft_ids_S = ids_S
            self._draft_head_SD = head_VD.index_select(0, ids_S)
        return num_first + len(late)

    def train(self, mode: bool = True) -> Self:
        """Also drops the stacked copies of the k and v projections: training changes their source."""
        self._context = None
        return super().train(mode)

    def slots(self) -> list[Slot]:
        """Names as z-lab and speculators save them."""
        spec, width = self.spec, self.spec.hidden_size
        fc_shape = (width, len(spec.capture_layers) * spec.target_hidden_size)
        slots = [
            Slot("fc.weight", (Part("fc.weight", fc_shape),)),
            Slot("context_norm", (Part("hidden_norm.weight", (width,)),)),
        ]
        if spec.own_embedding:
            shape = tuple(self.embedding_VD.shape)
            slots.append(Slot("embedding_VD", (Part("embed_tokens.weight", shape),)))
        if spec.own_head:
            slots.append(Slot("head_VD", (Part("lm_head.weight", (spec.vocab_size, width)),)))
        if spec.has_d2t:
            slots.append(Slot("d2t", (Part("d2t", (spec.vocab_size,)),)))
        return slots + self.stack.slots("stack.", "")

    def surplus(self) -> frozenset[str]:
        """Tensors without a use here: `t2d` is the inverse of d2t; the verifier's parts are the target's."""
        return frozenset({"t2d", "verifier_lm_head.weight", "verifier_norm.weight"})

    def _head(self, hidden_RD: Tensor) -> Tensor:
        if self.spec.own_head:
            return self.ops.linear(hidden_RD, self.head_VD, None)
        target = self._target[0]
        # A target's own soft cap is not the drafter's, so its bare product is preferred.
        return getattr(target, "raw_logits", target.logits)(hidden_RD)

    def _context_parameters(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """(weight and bias of all layers' k, then all layers' v; k_norm_LH), stacked once and kept."""
        if self._context is not None:
            return self._context
        attentions = [layer.attention for layer in self.stack.in_order]
        q, kv = self.stack.shape.q_size, self.stack.shape.kv_size
        ranges = (slice(q, q + kv), slice(q + kv, q + 2 * kv))
        weight = torch.cat([a.qkv.weight[rows] for rows in ranges for a in attentions])
        biases = [a.qkv.bias[rows] for rows in ranges for a in attentions if a.qkv.bias is not None]
        bias = torch.cat(biases) if biases else None
        stacked = (weight, bias, torch.stack([a.k_norm for a in attentions]))
        if not self.training:
            self._context = stacked
        return stacked


def highest(logits_RV: Tensor) -> Tensor:
    """Column of the highest entry of every row; 0 where a row has none (it is a guess anyway)."""
    return greedy(logits_RV.float()).clamp_(min=0)


def _check_pair(spec: DrafterSpec, target: Target) -> None:
    """What would fail far from its cause. The full list of rules is in `diagnosis`."""
    if spec.target_hidden_size != target.spec.hidden_size:
        raise PairingError(
            "The drafter reads hidden states of another width than the target's",
            seen=spec.target_hidden_size,
            allowed=str(target.spec.hidden_size),
        )
    if not all(-1 <= layer < target.spec.num_layers for layer in spec.capture_layers):
        raise PairingError(
            "The drafter captures layers that the target does not have",
            seen=list(spec.capture_layers),
            allowed=f"-1 to {target.spec.num_layers - 1}",
        )
    borrows = not (spec.own_embedding and spec.own_head)
    if borrows and spec.hidden_size != target.spec.hidden_size:
        raise PairingError(
            "The drafter borrows the target's embedding or head but is of another width",
            seen=spec.hidden_size,
            allowed=str(target.spec.hidden_size),
        )


def _embedding_rows(spec: DrafterSpec, target: Target) -> int:
    """The input side always has the target's whole vocabulary, however short the head is."""
    return target.spec.vocab_size if spec.has_d2t else spec.vocab_size


def _stack_shape(spec: DrafterSpec, target: Target) -> StackShape:
    return StackShape(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        mlp_size=spec.mlp_size,
        attention=spec.attention,
        causal=spec.causal,
        rms_eps=spec.rms_eps,
        qk_norm=True,
        attention_bias=spec.attention_bias,
        mlp_bias=False,
        # Its own limit may be below the target's; rotation is defined past it all the same.
        max_position=max(spec.max_position, target.spec.max_position) + spec.block_len,
    )
