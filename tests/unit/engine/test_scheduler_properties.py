"""Random joins, aborts, acceptance and page shortage: every answer is still the plain one."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.contract.request import FinishReason, GenerateRequest, SamplingParams
from truedraft.contract.step import Outcome, StepPlan, StepResult
from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.policy import CostCurve, CostTable, VerifyPolicy
from truedraft.engine.scheduler import Scheduler, SchedulerLimits
from truedraft.engine.sequence import SeqEvent, Sequence
from truedraft.kvcache.pages import PageAllocator

EOS = 0
VOCAB = 23
BLOCK_LEN = 4
COSTS = CostTable(verify=CostCurve({1: 1.0, 8: 1.2, 64: 4.0}), draft=CostCurve({0: 0.0, 1: 0.2, 8: 0.4}))


def next_token(history: list[int]) -> int:
    """A made-up target: a function of the whole history, with an end now and then."""
    value = 7
    for token in history:
        value = (value * 31 + token + 1) % 1009
    return value % VOCAB


def plain_answer(prompt: list[int], max_tokens: int) -> list[int]:
    history = list(prompt)
    for _ in range(max_tokens):
        history.append(next_token(history))
        if history[-1] == EOS:
            break
    return history[len(prompt) :]


@dataclass
class MadeUpRunner:
    """Runs plans as a real step would: it sees only cached positions and this step's rows."""

    drafts_right: list[bool]
    cache: dict[int, dict[int, int]] = field(default_factory=dict)  # slot → token written there
    page_len: int = 2
    num_drawn: int = 0

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, tuple(self._extend(extend) for extend in plan.extends))

    def _extend(self, extend) -> Outcome:
        slots = self.cache.setdefault(0, {})
        drafts = self._drafts(extend)
        rows = [*extend.token_ids, *drafts]
        for offset, token in enumerate(rows):
            position = extend.start + offset
            slots[extend.pages[position // self.page_len] * self.page_len + position % self.page_len] = token
        if not extend.samples:
            return Outcome(extend.seq_id)
        targets = []
        for row in range(len(extend.token_ids) - 1, len(rows)):
            seen = [
                slots[extend.pages[position // self.page_len] * self.page_len + position % self.page_len]
                for position in range(extend.start + row + 1)
            ]
            targets.append(next_token(seen))
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == targets[accepted]:
            accepted += 1
        return Outcome(extend.seq_id, tuple(targets[: accepted + 1]), tuple(drafts), accepted)

    def _drafts(self, extend) -> list[int]:
        history = list(extend.history)
        drafts = []
        for _ in range(extend.num_drafted):
            self.num_drawn += 1
            right = self.drafts_right[self.num_drawn % len(self.drafts_right)]
            token = next_token(history)
            drafts.append(token if right else (token + 1) % VOCAB)
            history.append(drafts[-1])
        return drafts


def sequence(seq_id: int, prompt: list[int], max_tokens: int, speculation) -> Sequence:
    request = GenerateRequest(
        str(seq_id), tuple(prompt), SamplingParams(temperature=0.0, max_tokens=max_tokens), speculation
    )
    return Sequence(
        seq_id,
        request,
        seed=0,
        max_len=len(prompt) + max_tokens,
        eos_ids=frozenset({EOS}),
        constraint=None,
        acceptance=AcceptanceEstimate(BLOCK_LEN - 1),
    )


REQUEST = st.tuples(
    st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=11),
    st.integers(1, 9),
    st.sampled_from(["off", "auto", 1, 2, 3]),
    st.integers(0, 6),  # joins before this step
    st.one_of(st.none(), st.integers(0, 9)),  # is aborted before this step
)


@settings(max_examples=120, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=6),
    drafts_right=st.lists(st.booleans(), min_size=1, max_size=13),
    num_pages=st.integers(13, 40),
    max_num_seqs=st.integers(1, 4),
    chunk_len=st.integers(1, 7),
)
def test_every_answer_is_the_plain_one(requests, drafts_right, num_pages, max_num_seqs, chunk_len):
    allocator = PageAllocator(num_pages, page_len=2)
    limits = SchedulerLimits(max_num_seqs, chunk_len, BLOCK_LEN, BLOCK_LEN - 1)
    scheduler = Scheduler(limits, allocator, VerifyPolicy(BLOCK_LEN - 1, COSTS))
    runner = MadeUpRunner(drafts_right)
    events: list[SeqEvent] = []
    for step in range(600):
        for seq_id, (prompt, max_tokens, speculation, joins, aborts) in enumerate(requests):
            if joins == step:
                scheduler.add(sequence(seq_id, prompt, max_tokens, speculation))
            if aborts == step and (event := scheduler.abort(seq_id)) is not None:
                events.append(event)
        plan = scheduler.plan()
        allocator.check()
        assert scheduler.num_running <= max_num_seqs
        if plan is not None:
            assert sum(len(e.token_ids) for e in plan.extends if e.num_drafted == 0) <= chunk_len + len(
                plan.extends
            )
            events.extend(scheduler.commit(plan, runner.run(plan)))
            allocator.check()
        elif step > 9:
            break
    assert scheduler.is_idle
    assert allocator.num_free == num_pages
    check_answers(requests, events)


def check_answers(requests, events: list[SeqEvent]) -> None:
    for seq_id, (prompt, max_tokens, _, joins, aborts) in enumerate(requests):
        mine = [event for event in events if event.seq.seq_id == seq_id]
        answer = [token for event in mine for token in event.token_ids]
        expected = plain_answer(prompt, max_tokens)
        if aborts is not None and aborts < joins:
            aborts = None  # it was not there yet
        ends = [event for event in mine if event.finish_reason is not None]
        assert len(ends) == 1
        assert mine[-1] is ends[0]
        if ends[0].finish_reason == FinishReason.ABORT:
            assert aborts is not None
            assert answer == expected[: len(answer)]
            continue
        assert answer == expected
        stopped = expected[-1] == EOS
        assert ends[0].finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
        stats = ends[0].stats
        assert stats is not None
        assert stats.num_accepted <= stats.num_drafted
        assert stats.num_committed <= stats.num_accepted + stats.num_rounds
        by_position = list(stats.accepted_by_position)
        assert by_position == sorted(by_position, reverse=True)
        assert sum(by_position) == stats.num_accepted
        assert sum(stats.drafted_by_position) == stats.num_drafted
