from __future__ import annotations

from pathlib import Path

import pytest

from truedraft.config.paths import cache_dir


def test_order_of_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRUEDRAFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == tmp_path / ".cache" / "truedraft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "truedraft"
    monkeypatch.setenv("TRUEDRAFT_CACHE", "~/own")
    assert cache_dir() == tmp_path / "own"
