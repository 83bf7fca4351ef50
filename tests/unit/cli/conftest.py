"""Commands run in this process, on a scripted backend in the place of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from truedraft.backends.scripted import Script, ScriptedBackend
from truedraft.cli import compose, main
from truedraft.contract.backend import ReadyReport

CHECKS = {
    "alive": {"ok": True, "num_tokens": 240, "errors": []},
    "lossless": {"ok": True, "num_prompts": 3, "num_equal": 2, "num_near_ties": 1, "tolerance": 0.25},
    "effective": {"ok": True, "tau": 3.0, "num_rounds": 40, "num_accepted": 80},
    "faster": {"ok": True, "plain_tok_per_s": 30.0, "dflash_tok_per_s": 66.0, "ratio": 2.2},
}


class ScriptedEngine(ScriptedBackend):
    """A scripted backend with the two methods that the local engine has besides the protocol's."""

    report = ReadyReport(ready=True, verdict="proven", checks=CHECKS)
    closed = False

    async def self_check(self) -> ReadyReport:
        return self.report

    def cost_curve(self) -> dict[int, float]:
        return {1: 20.0, 8: 24.0}

    async def close(self, *, drain_s: float = 0.0) -> None:
        await super().close(drain_s=drain_s)
        self.closed = True


@dataclass
class Composition:
    """Stands in for `compose.load_backend`; keeps what commands asked of it."""

    script: Script | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of ScriptedEngine
    report: ReadyReport | None = None
    loads: list[dict[str, Any]] = field(default_factory=list)
    engines: list[ScriptedEngine] = field(default_factory=list)

    def load_backend(self, options: Any, *, say: Any, needs_drafter: bool = False, **changes: Any) -> Any:
        options.check_pair(needs_drafter=needs_drafter)
        name = changes.pop("name", None) or "scripted"
        config = options.engine_config(**changes)
        self.loads.append({"pair": options, "engine": config, "name": name})
        say("loaded: nothing, it is scripted")
        engine = ScriptedEngine(self.script, name=name, **self.options)
        if self.report is not None:
            engine.report = self.report
        self.engines.append(engine)
        return engine


@pytest.fixture
def composition(monkeypatch: pytest.MonkeyPatch) -> Composition:
    made = Composition()
    monkeypatch.setattr(compose, "load_backend", made.load_backend)
    return made


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


@pytest.fixture
def truedraft(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `truedraft ARGS` in this process."""

    def call(*args: str) -> Ran:
        code = main.run(args)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
