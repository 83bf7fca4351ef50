"""What the self-check says of healthy, broken and useless pairs, and what /ready tells of it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import torch
from http_server import http_server
from local_pair import local_backend
from toy_files import FILE_VOCAB

from truedraft.contract.backend import ReadyReport
from truedraft.engine import sampler


def checked(**fields: Any) -> ReadyReport:
    backend = local_backend(**fields)

    async def check() -> ReadyReport:
        try:
            return await backend.self_check()
        finally:
            await backend.close()

    return asyncio.run(check())


def accept_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit every draft as it is, whatever the target says."""

    def accepts(rows_R: torch.Tensor, rows: Any) -> torch.Tensor:
        at = 0
        for draft in rows.drafts:
            rows_R[at : at + len(draft)] = torch.tensor(list(draft), dtype=rows_R.dtype)
            at += len(draft) + 1
        return torch.tensor([len(draft) for draft in rows.drafts])

    monkeypatch.setattr(sampler, "_accept", accepts)


def accept_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by one: the first draft that the target rejects is committed in the place of its own token."""
    honest = sampler._accept

    def accepts(rows_R: torch.Tensor, rows: Any) -> torch.Tensor:
        num_accepted = honest(rows_R, rows).tolist()
        for owner, draft in enumerate(rows.drafts):
            if num_accepted[owner] < len(draft):
                rows_R[rows.starts[owner] + num_accepted[owner]] = draft[num_accepted[owner]]
        return torch.tensor(num_accepted)

    monkeypatch.setattr(sampler, "_accept", accepts)


def test_a_healthy_pair_passes() -> None:
    report = checked()
    assert report.ready
    assert report.verdict in ("proven", "unprofitable")  # which, the machine's load decides
    assert report.checks["lossless"]["num_equal"] == report.checks["lossless"]["num_prompts"] == 3
    assert report.checks["lossless"]["faults"] == []
    assert report.checks["effective"]["tau"] > 1.5
    assert report.checks["faster"]["ratio"] > 0


def test_a_target_alone_passes_as_plain() -> None:
    report = checked(drafter=False)
    assert report.ready
    assert report.verdict == "plain"
    assert "lossless" not in report.checks


@pytest.mark.parametrize("break_it", [accept_everything, accept_one_too_many])
def test_drafts_that_are_committed_without_verification_are_found(
    break_it: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    report = checked()
    assert not report.ready
    assert report.verdict == "broken"
    faults = report.checks["lossless"]["faults"]
    assert faults
    assert all(fault["margin"] is None or fault["margin"] > 1e-3 for fault in faults)


def test_speculation_that_never_hits_is_unprofitable_and_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = local_backend()
    draft = backend._pair.runner._draft
    monkeypatch.setattr(
        backend._pair.runner, "_draft", lambda extends: torch.full_like(draft(extends), FILE_VOCAB - 1)
    )

    async def check() -> ReadyReport:
        report = await backend.self_check()
        await backend.close()
        return report

    report = asyncio.run(check())
    assert report.ready
    assert report.verdict == "unprofitable"
    assert report.checks["lossless"]["ok"]
    assert report.checks["effective"] == {
        "ok": False, "tau": 1.0, "num_rounds": report.checks["effective"]["num_rounds"], "num_accepted": 0,
    }  # fmt: skip


def test_a_short_context_is_checked_as_well() -> None:
    report = checked(max_model_len=24)
    assert report.ready, report


def test_ready_tells_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server(local_backend) as server:
        before = httpx.get(f"{server.url}/ready")
        assert before.status_code == 503
        assert before.json()["verdict"] == "not checked"
        check = server.backend.self_check  # type: ignore[attr-defined]
        asyncio.run_coroutine_threadsafe(check(), server.loop).result(60)
        after = httpx.get(f"{server.url}/ready")
        assert after.status_code == 200
        assert after.json()["checks"]["lossless"]["num_equal"] == 3
        assert after.json()["speculation"]["rounds"] > 0
        accept_everything(monkeypatch)
        asyncio.run_coroutine_threadsafe(check(), server.loop).result(60)
        broken = httpx.get(f"{server.url}/ready")
        assert broken.status_code == 503
        assert broken.json()["verdict"] == "broken"
        assert httpx.get(f"{server.url}/health").status_code == 200
