"""One step on the device: draft, verify, accept. StepPlan in, StepResult out; no state but caches.

The drafter proposes a block from context strictly before the anchor; the target runs anchor and
drafts in one causal pass; drafts are kept as long as they equal the target's own choice. Rejected
rows leave stale cache entries past the committed length, which the next round overwrites.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from truedraft.contract.step import Extend, Outcome, StepPlan, StepResult
from truedraft.engine.batch import Batcher, BlockLayout, TargetBatch
from truedraft.engine.sampler import NoTokenError, sample_rows
from truedraft.engine.scoring import score_prompts
from truedraft.kernels.ops import Ops, Spans
from truedraft.kvcache.pool import KVPool
from truedraft.models.interface import Drafter, Target


class CachedAttend:
    """models.interface.LayerAttend over one pool and one batch of spans."""

    __slots__ = ("_ops", "_pool", "_slots_T", "_spans")

    def __init__(self, ops: Ops, pool: KVPool, slots_T: Tensor, spans: Spans) -> None:
        self._ops = ops
        self._pool = pool
        self._slots_T = slots_T
        self._spans = spans

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
        k_PWKH, v_PWKH = self._pool.layer(layer)
        return self._ops.write_attend(
            q_TNH,
            k_TKH,
            v_TKH,
            k_PWKH,
            v_PWKH,
            self._slots_T,
            self._spans,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
        )


class StepRunner:
    """The two models, their pools, and the order in which a step uses them."""

    def __init__(
        self,
        target: Target,
        target_pool: KVPool,
        ops: Ops,
        device: torch.device,
        drafter: Drafter | None = None,
        drafter_pool: KVPool | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.device = device
        self._ops = ops
        self._target_pool = target_pool
        self._drafter_pool = drafter_pool
        layout = None
        self._capture_layers: tuple[int, ...] = ()
        if drafter is not None:
            spec = drafter.spec
            layout = BlockLayout(spec.block_len, spec.mask_token_id, spec.sample_from_anchor)
            self._capture_layers = spec.capture_layers
        self._batcher = Batcher(target_pool.page_len, device, layout)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Run one step. Caches change only at and past each sequence's committed length."""
        began = time.perf_counter()
        drafting = [extend for extend in plan.extends if extend.num_drafted > 0]
        draft_ids_R = self._draft(drafting) if drafting else None
        drafted = time.perf_counter()
        outcomes = self._verify(plan, draft_ids_R)
        return StepResult(plan.step_id, outcomes, drafted - began, time.perf_counter() - drafted)

    @torch.inference_mode()
    def verify(self, plan: StepPlan) -> None:
        """The verify pass alone, to be timed: drafts are whatever token 0 is."""
        self._verify(plan, None)

    @torch.inference_mode()
    def draft(self, extends: Sequence[Extend]) -> tuple[int, ...]:
        """The draft pass alone (to be timed). → drafted target token ids, extend by extend."""
        return tuple(self._draft(extends).tolist())

    def _draft(self, extends: Sequence[Extend]) -> Tensor:
        """→ drafted target token ids_R, extend by extend."""
        drafter, pool = self.drafter, self._drafter_pool
        assert drafter is not None and pool is not None
        batch = self._batcher.draft(extends)
        attend = CachedAttend(self._ops, pool, batch.slots_T, batch.spans)
        hidden_TD = drafter.forward(batch.ids_T, batch.positions_T, attend)
        return drafter.draft_ids(hidden_TD.index_select(0, batch.output_at_R))

    def _verify(self, plan: StepPlan, draft_ids_R: Tensor | None) -> tuple[Outcome, ...]:
        batch = self._batcher.target(plan)
        if draft_ids_R is not None:
            batch.ids_T.index_copy_(0, batch.draft_at_R, draft_ids_R)
        return self._choose(plan, self._run_target(batch), _split(draft_ids_R, plan.extends))

    def _run_target(self, batch: TargetBatch) -> Tensor:
        """Run the target over all rows and keep up the drafter's context. → logits_RV."""
        attend = CachedAttend(self._ops, self._target_pool, batch.slots_T, batch.spans)
        capture = self._capture_layers if batch.num_captured else ()
        hidden_TD, captured_TX = self.target.forward(batch.ids_T, batch.positions_T, attend, capture)
        if captured_TX is not None:
            self._write_context(batch, captured_TX)
        if batch.logit_at_R.shape[0] < hidden_TD.shape[0]:
            hidden_TD = hidden_TD.index_select(0, batch.logit_at_R)
        return self.target.logits(hidden_TD)

    def _write_context(self, batch: TargetBatch, captured_TX: Tensor) -> None:
        drafter, pool = self.drafter, self._drafter_pool
        assert drafter is not None and pool is not None
        positions_T, slots_T = batch.positions_T, batch.slots_T
        if batch.capture_at_T is not None:
            captured_TX = captured_TX.index_select(0, batch.capture_at_T)
            positions_T = positions_T.index_select(0, batch.capture_at_T)
            slots_T = slots_T.index_select(0, batch.capture_at_T)
        k_LTKH, v_LTKH = drafter.context_kv(captured_TX, positions_T)
        for layer in range(k_LTKH.shape[0]):
            k_PWKH, v_PWKH = pool.layer(layer)
            self._ops.write_kv(k_PWKH, slots_T, k_LTKH[layer])
            self._ops.write_kv(v_PWKH, slots_T, v_LTKH[layer])

    def _choose(
        self, plan: StepPlan, logits_RV: Tensor, drafts: list[tuple[int, ...]]
    ) -> tuple[Outcome, ...]:
        """Rows of logits → what each extend commits."""
        prompt_logprobs, logits_RV = score_prompts(logits_RV, plan.extends)
        reasons: dict[int, str] = {}
        try:
            sampled = sample_rows(logits_RV, plan.extends, drafts, self.target.spec.eos_ids)
        except NoTokenError as error:
            reasons, sampled = error.reasons, error.sampled
        return tuple(
            Outcome(
                seq_id=extend.seq_id,
                token_ids=sampled.committed(index),
                draft_ids=drafts[index],
                num_accepted=sampled.num_accepted[index],
                logprobs=sampled.logprobs[index],
                prompt_logprobs=prompt_logprobs[index],
                error=reasons.get(extend.seq_id),
            )
            for index, extend in enumerate(plan.extends)
        )


def _split(draft_ids_R: Tensor | None, extends: Sequence[Extend]) -> list[tuple[int, ...]]:
    """Drafted ids on the host, one tuple an extend (empty where it did not draft)."""
    num_drafted = sum(extend.num_drafted for extend in extends)
    flat = draft_ids_R.tolist() if draft_ids_R is not None else [0] * num_drafted
    drafts, at = [], 0
    for extend in extends:
        drafts.append(tuple(flat[at : at + extend.num_drafted]))
        at += extend.num_drafted
    return drafts
