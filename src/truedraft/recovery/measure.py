"""Runs a drafter as a candidate says, over cached states of the target, many anchors at once.

`fc` is linear, so its output is a sum of one product a slot: products of (slot, layer) are kept, and
trying another layer in one slot costs a sum. Axes as in kernels.ops; A anchors, G block positions,
J drafted tokens, X all layers' states of one token side by side.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from truedraft.contract.specs import RopeSpec
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.interface import Target
from truedraft.models.rope import RopeTable
from truedraft.recovery.attend import BlockAttend
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.head import Head
from truedraft.recovery.measured import Measured
from truedraft.recovery.texts import Sample, Text

PRODUCT_BYTES = 2**28  # of kept (slot, layer) products: more than a sweep over one slot of a small pair takes


class Measurer:
    """One drafter, one target, states of all texts. Owns the drafter from here on: it is rewired.

    `states_TX` holds the outputs of layers −1 … L−1 (width D each) of all texts' tokens, end to end.
    """

    def __init__(
        self, drafter: DFlashDrafter, target: Target, texts: Sequence[Text], states_TX: Tensor
    ) -> None:
        self.texts = tuple(texts)
        self._drafter = drafter
        self._states_TX = states_TX
        self._width = drafter.spec.target_hidden_size
        self._slots_ODC = drafter.fc.weight.detach().split(self._width, dim=1)
        drafter.fc = nn.Identity()  # type: ignore[assignment] # what it gives is summed here
        self._head = Head(drafter, target, texts)
        self._products: OrderedDict[tuple[int, int], Tensor] = OrderedDict()
        self._product_bytes = 0
        self._ropes: dict[float, RopeTable] = {}
        self._interleaved = False
        ids = [token for text in texts for token in text.token_ids]
        self._ids_T = torch.tensor(ids, dtype=torch.int64, device=drafter.device)
        self._starts = torch.tensor(
            np.cumsum([0, *(len(text.token_ids) for text in texts)])[:-1], device=drafter.device
        )
        self._lens = torch.tensor([len(text.token_ids) for text in texts], device=drafter.device)

    @property
    def num_slots(self) -> int:
        return len(self._slots_ODC)

    @torch.inference_mode()
    def losses(self, candidate: Candidate, sample: Sample) -> dict[bool, Measured]:
        """Layout (whether the anchor's slot predicts) → losses; both come from one pass."""
        hidden_AGD = self._hidden(candidate, sample)
        labels_AJ = self._labels(sample, candidate.block_len - 1)
        num_anchors, block_len, width = hidden_AGD.shape
        pairs = torch.full((num_anchors, block_len, 2), -1, dtype=torch.int64, device=labels_AJ.device)
        pairs[:, 1:, 0] = labels_AJ  # from masks: row j predicts token j
        pairs[:, :-1, 1] = labels_AJ  # from the anchor: row j predicts token j + 1
        loss = self._head.losses(hidden_AGD.reshape(-1, width), pairs.view(-1, 2))
        loss_AG2 = loss.view(num_anchors, block_len, 2)
        parts = {False: loss_AG2[:, 1:, 0], True: loss_AG2[:, :-1, 1]}
        return {layout: _measured(sample, part, None) for layout, part in parts.items()}

    @torch.inference_mode()
    def drafts(self, candidate: Candidate, sample: Sample) -> Measured:
        """→ losses over the whole vocabulary and hits, in the candidate's own layout."""
        hidden_AGD = self._hidden(candidate, sample)
        first = 0 if candidate.sample_from_anchor else 1
        hidden_AJD = hidden_AGD[:, first:]
        num_anchors, num_drafted, width = hidden_AJD.shape
        labels = self._labels(sample, num_drafted).reshape(-1, 1)
        loss, hits = self._head.whole(hidden_AJD.reshape(-1, width), labels)
        shape = (num_anchors, num_drafted)
        return _measured(sample, loss.view(shape), hits.view(shape))

    def _hidden(self, candidate: Candidate, sample: Sample) -> Tensor:
        """→ hidden_AGD of every anchor's block after the final norm."""
        drafter, block_len = self._drafter, candidate.block_len
        self._set_rotation(candidate)
        fused_TD = self._fused(candidate.capture_layers).index_select(0, sample.rows_T)
        kv = drafter.context_kv(fused_TD, sample.positions_T)
        attend = BlockAttend(kv, list(sample.groups), block_len, candidate.windows, candidate.causal)
        offsets_G = torch.arange(block_len, device=drafter.device)
        positions_AG = sample.anchors_A[:, None] + offsets_G
        ids_AG = torch.full_like(positions_AG, candidate.mask_token_id)
        ids_AG[:, 0] = self._ids_T[self._starts[sample.text_of_A] + sample.anchors_A]
        x_TD = drafter.embed(ids_AG.flatten()).to(drafter.dtype) * candidate.embedding_scale
        hidden_TD, _ = drafter.stack(x_TD, positions_AG.flatten(), attend)
        return hidden_TD.view(*ids_AG.shape, -1)

    def _labels(self, sample: Sample, num_labels: int) -> Tensor:
        """int64 [A, J]: the text's tokens behind each anchor, −1 past its end."""
        ahead_AJ = sample.anchors_A[:, None] + torch.arange(1, num_labels + 1, device=self._drafter.device)
        lens_A1 = self._lens[sample.text_of_A][:, None]
        inside_AJ = torch.minimum(ahead_AJ, lens_A1 - 1)
        labels_AJ = self._ids_T[self._starts[sample.text_of_A][:, None] + inside_AJ]
        return labels_AJ.masked_fill(ahead_AJ >= lens_A1, -1)

    def _fused(self, capture_layers: tuple[int, ...]) -> Tensor:
        products = [self._product(slot, layer) for slot, layer in enumerate(capture_layers)]
        total = products[0].clone()
        for product in products[1:]:
            total += product
        return total

    def _product(self, slot: int, layer: int) -> Tensor:
        """fc's slot applied to one layer's outputs, of all texts; the least recently used go first."""
        key = (slot, layer)
        if key in self._products:
            self._products.move_to_end(key)
            return self._products[key]
        columns = slice((layer + 1) * self._width, (layer + 2) * self._width)
        drafter = self._drafter
        states_TD = self._states_TX[:, columns].to(device=drafter.device, dtype=drafter.dtype)
        product = states_TD @ self._slots_ODC[slot].T
        self._products[key] = product
        self._product_bytes += product.nbytes
        while self._product_bytes > PRODUCT_BYTES and len(self._products) > self.num_slots + 1:
            self._product_bytes -= self._products.popitem(last=False)[1].nbytes
        return product

    def _set_rotation(self, candidate: Candidate) -> None:
        drafter = self._drafter
        if candidate.theta not in self._ropes:
            rope, shape = drafter.spec.attention.rope, drafter.stack.shape
            longest = int(self._lens.max()) + candidate.block_len
            self._ropes[candidate.theta] = RopeTable(
                RopeSpec(candidate.theta, rope.scaling, rope.partial_frac),
                drafter.spec.attention.head_dim,
                longest if rope.scaling is None else shape.max_position,
                drafter.dtype,
                drafter.device,
            )
        drafter.stack.rope = self._ropes[candidate.theta]
        if candidate.interleaved != self._interleaved:
            swap_rotary_order(drafter, to_interleaved=candidate.interleaved)
            self._interleaved = candidate.interleaved


def swap_rotary_order(drafter: DFlashDrafter, *, to_interleaved: bool) -> None:
    """Reorder q's and k's channels in place, so that rotating halves equals rotating neighbours.

    A score is a sum over channels: any order of them gives the same, if q and k share it.
    """
    spec = drafter.spec
    attention = spec.attention
    rotary = int(attention.head_dim * attention.rope.partial_frac)
    order = torch.cat((torch.arange(0, rotary, 2), torch.arange(1, rotary, 2)))
    if not to_interleaved:
        order = torch.argsort(order)
    order = torch.cat((order, torch.arange(rotary, attention.head_dim))).to(drafter.device)
    num_heads = attention.num_heads + attention.num_kv_heads
    rows = (torch.arange(num_heads, device=drafter.device)[:, None] * attention.head_dim + order).flatten()
    for layer in drafter.stack.in_order:
        block = layer.attention
        block.qkv.weight[: len(rows)] = block.qkv.weight[rows]
        if block.qkv.bias is not None:
            block.qkv.bias[: len(rows)] = block.qkv.bias[rows]
        block.q_norm.copy_(block.q_norm[order])
        block.k_norm.copy_(block.k_norm[order])
    drafter.eval()  # forgets the stacked copies of k and v


def _measured(sample: Sample, loss_AJ: Tensor, hits_AJ: Tensor | None) -> Measured:
    return Measured(
        sample.anchors_A.cpu().numpy(),
        sample.text_of_A.cpu().numpy(),
        loss_AJ.float().cpu().numpy(),
        None if hits_AJ is None else hits_AJ.cpu().numpy(),
    )
