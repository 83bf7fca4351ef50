"""What the engine asks of a target and of a drafter; attention is injected, caches stay outside.

Axes as in kernels.ops; C captured layers, X = C · D their outputs side by side, L drafter layers,
V vocabulary, R the rows that need logits.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from truedraft.contract.specs import DrafterSpec, TargetSpec


class LayerAttend(Protocol):
    """Writes k and v of these rows into the cache, then attends: q_TNH → o_TNH.

    `layer` counts attention layers from 0. `window` and `softcap` None: none.
    """

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
    ) -> Tensor: ...


class Target(Protocol):
    """A target model, run on flattened rows of any sequences."""

    spec: TargetSpec

    @property
    def num_attention_layers(self) -> int: ...

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attend: LayerAttend, capture_layers: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """int64 ids and positions → (hidden_TD after the final norm, captured_TX or None).

        captured: residual stream after each capture layer (not normed; −1 is the embedding
        output), concatenated in the order given.
        """
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """→ logits_RV, float32."""
        ...

    def embed(self, ids_T: Tensor) -> Tensor:
        """→ rows of the embedding table_TD, without any family's scaling."""
        ...


class Drafter(Protocol):
    """A DFlash drafter. Borrows the target's embedding and head where its file has none."""

    spec: DrafterSpec

    def context_kv(self, captured_TX: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """fc → hidden_norm → every layer's k and v in one product → k_norm → rope: k_LTKH, v_LTKH."""
        ...

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: LayerAttend) -> Tensor:
        """Rows of blocks (anchor, mask, …), flattened → hidden_TD after the final norm."""
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """→ logits over the drafter's own vocabulary [R, spec.vocab_size], float32."""
        ...

    def draft_ids(self, hidden_RD: Tensor) -> Tensor:
        """→ int64 target token ids_R: argmax of the head, through d2t where there is one."""
        ...
