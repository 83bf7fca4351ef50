"""From the target's rows of one step to tokens: each row's choice, and how much of the draft it keeps.

Row i of a sequence follows its history and its first i drafted tokens, and is shaped as plain
decoding would shape it there: penalties and `min_tokens` count those drafts, the grammar has read
them, and the uniform is that of the token's own position. A row therefore gives the token that
plain decoding would give after the same text.

Axes: R rows of all sampling sequences, flattened; V vocabulary; B sampling sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truedraft.contract.request import PositionLogprobs, SamplingParams, TokenLogprob
from truedraft.contract.step import Extend
from truedraft.engine import seeds
from truedraft.engine.row_edits import RowEdits
from truedraft.errors import BackendError
from truedraft.kernels import sampling
from truedraft.kernels.accept import NO_DRAFT, count_accepted
from truedraft.kernels.sampling_draw import DrawParams, draw


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Results in the order of the extends given; an extend that does not sample has empty ones.

    `target_ids[b][i]` is the target's token after the first i drafts (−1 in a row past the
    committed ones that had none to choose); the first `num_accepted[b] + 1` are committed.
    """

    target_ids: tuple[tuple[int, ...], ...]
    num_accepted: tuple[int, ...]
    logprobs: tuple[tuple[PositionLogprobs, ...] | None, ...]

    def committed(self, index: int) -> tuple[int, ...]:
        """The tokens that extend `index` commits; where it has none to choose, those before."""
        ids = self.target_ids[index][: self.num_accepted[index] + 1]
        return ids[: ids.index(sampling.NO_TOKEN)] if sampling.NO_TOKEN in ids else ids


class NoTokenError(BackendError):
    """Some sequences have no token to choose: their logits are not numbers, or all are ruled out.

    `reasons` maps the seq_id of each to the message; `sampled` holds the step's results, sound for
    all other sequences.
    """

    def __init__(self, reasons: dict[int, str], sampled: SampledRows) -> None:
        self.reasons = reasons
        self.sampled = sampled
        super().__init__("; ".join(f"sequence {seq_id}: {text}" for seq_id, text in reasons.items()))


def sample_rows(
    logits_RV: Tensor,
    extends: Sequence[Extend],
    draft_ids: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
) -> SampledRows:
    """Chooses the target's token in every row, and accepts the drafts that agree.

    `logits_RV`: raw float32 logits, not changed; the extends that sample own 1 + len(draft_ids[b])
    consecutive rows each, in order. `draft_ids` is parallel to `extends`, empty where nothing was
    drafted. `eos_ids` are what `min_tokens` bans beside the request's own stop tokens.

    Raises NoTokenError, with the results of the other sequences, where a committed row has no
    token to choose.
    """
    rows = _Rows.of(extends, draft_ids)
    if rows.num_rows != logits_RV.shape[0]:
        raise ValueError(f"{logits_RV.shape[0]} rows of logits for {rows.num_rows} rows of extends")
    if rows.num_rows == 0:
        return SampledRows(((),) * len(extends), (0,) * len(extends), (None,) * len(extends))
    target_ids_R, failures = _choose(logits_RV, rows, eos_ids)
    accepted_B = _accept(target_ids_R, rows)
    host = torch.cat((target_ids_R, accepted_B)).tolist()  # the step's one device-to-host copy
    sampled = _collect(logits_RV, rows, host[: rows.num_rows], host[rows.num_rows :])
    _raise_where_no_token(logits_RV, rows, sampled, failures)
    return sampled


@dataclass(frozen=True, slots=True)
class _Rows:
    """Who owns which rows. `owners` are the sampling extends with their place in the plan."""

    num_extends: int
    owners: tuple[tuple[int, Extend], ...]
    drafts: tuple[Sequence[int], ...]  # parallel to owners
    starts: tuple[int, ...]  # parallel to owners, and the end

    @staticmethod
    def of(extends: Sequence[Extend], draft_ids: Sequence[Sequence[int]]) -> _Rows:
        if len(extends) != len(draft_ids):
            raise ValueError(f"{len(draft_ids)} drafts for {len(extends)} extends")
        owners = tuple((place, extend) for place, extend in enumerate(extends) if extend.samples)
        drafts = tuple(draft_ids[place] for place, _ in owners)
        starts = [0]
        for draft in drafts:
            starts.append(starts[-1] + 1 + len(draft))
        return _Rows(len(extends), owners, drafts, tuple(starts))

    @property
    def num_rows(self) -> int:
        return self.starts[-1]


def _choose(logits_RV: Tensor, rows: _Rows, eos_ids: Sequence[int]) -> tuple[Tensor, dict[int, str]]:
    """→ (target_ids_R, why some seq_ids have no token)."""
    edits = RowEdits(vocab_size=logits_RV.shape[1])
    drawn: list[int] = []
    params: list[DrawParams] = []
    for (_, extend), draft, start in zip(rows.owners, rows.drafts, rows.starts, strict=False):
        edits.add(extend, draft, start, eos_ids)
        if extend.sampling.temperature > 0:
            position = len(extend.history) - extend.num_prompt_tokens
            for row in range(1 + len(draft)):
                drawn.append(start + row)
                params.append(_draw_params(extend.sampling, extend.seed, position + row))
    shaped_RV = edits.apply(logits_RV)
    if not drawn:
        return sampling.greedy(shaped_RV), edits.failures
    if len(drawn) == rows.num_rows:
        return draw(shaped_RV, params), edits.failures
    ids_R = sampling.greedy(shaped_RV)
    drawn_R = torch.tensor(drawn, device=logits_RV.device)
    ids_R[drawn_R] = draw(shaped_RV[drawn_R], params)
    return ids_R, edits.failures


def _draw_params(asked: SamplingParams, seed: int, position: int) -> DrawParams:
    return DrawParams(
        uniform=seeds.uniform(seed, position),
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
    )


def _accept(target_ids_R: Tensor, rows: _Rows) -> Tensor:
    """→ num_accepted_B."""
    if rows.num_rows == len(rows.owners):  # nothing was drafted
        return torch.zeros_like(target_ids_R)
    flat = [token_id for draft in rows.drafts for token_id in (*draft, NO_DRAFT)]
    device = target_ids_R.device
    return count_accepted(
        torch.tensor(flat, device=device), target_ids_R, torch.tensor(rows.starts, device=device)
    )


def _collect(logits_RV: Tensor, rows: _Rows, ids: list[int], accepted: list[int]) -> SampledRows:
    target_ids: list[tuple[int, ...]] = [()] * rows.num_extends
    num_accepted = [0] * rows.num_extends
    logprobs: list[tuple[PositionLogprobs, ...] | None] = [None] * rows.num_extends
    for owner, (place, extend) in enumerate(rows.owners):
        start = rows.starts[owner]
        target_ids[place] = tuple(ids[start : rows.starts[owner + 1]])
        num_accepted[place] = accepted[owner]
        num_top = extend.sampling.logprobs
        committed = tuple(ids[start : start + accepted[owner] + 1])
        if num_top is not None and sampling.NO_TOKEN not in committed:
            logprobs[place] = score_rows(logits_RV[start : start + len(committed)], committed, num_top)
    return SampledRows(tuple(target_ids), tuple(num_accepted), tuple(logprobs))


def score_rows(logits_RV: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[PositionLogprobs, ...]:
    """Log-probabilities of `token_ids` (one a row) and of the `num_top` likeliest, from raw logits.

    Equal ones rank alike; the top ones are listed by falling probability, then rising id. Serves
    answers and prompts (`prompt_logprobs`).
    """
    if not token_ids:
        return ()
    ids_R = torch.tensor(token_ids, device=logits_RV.device)
    chosen, ranks, top_logprobs, top_ids = (
        tensor.tolist() for tensor in sampling.logprobs(logits_RV, ids_R, num_top)
    )
    scored = []
    for row, token_id in enumerate(token_ids):
        likeliest = sorted(
            zip(top_logprobs[row], top_ids[row], strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        top = tuple(TokenLogprob(top_id, value, place) for place, (value, top_id) in enumerate(likeliest, 1))
        scored.append(PositionLogprobs(TokenLogprob(token_id, chosen[row], ranks[row]), top))
    return tuple(scored)


def _raise_where_no_token(
    logits_RV: Tensor, rows: _Rows, sampled: SampledRows, failures: dict[int, str]
) -> None:
    reasons: dict[int, str] = {}
    for owner, (place, extend) in enumerate(rows.owners):
        num_committed = len(sampled.committed(place))
        if num_committed == sampled.num_accepted[place] + 1:
            continue
        raw_V = logits_RV[rows.starts[owner] + num_committed]
        if not raw_V.amax().isfinite():
            reasons[extend.seq_id] = "the target's logits are not finite numbers"
        else:
            reasons[extend.seq_id] = failures.get(
                extend.seq_id, "every token is ruled out by the request's logit_bias, min_tokens and grammar"
            )
    if reasons:
        raise NoTokenError(reasons, sampled)
