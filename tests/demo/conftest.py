"""The demo pair, for tests that need a real one. `make test` fetches it first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.checkpoint.drafter import read_drafter
from truedraft.checkpoint.target import read_target
from truedraft.cli.demo_files import demo_target

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def demo_specs():
    """(target spec, drafter spec). Fails, not skips, where the target was not fetched."""
    return read_target(demo_target()), read_drafter(demo_drafter_path())


@pytest.fixture(scope="session")
def recorded() -> list[dict]:
    """120 prompts with the target's greedy answers and the drafter's rounds, recorded on a GPU."""
    lines = (FIXTURES / "smollm2_eval.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def fast_ops():
    """What the engine would use on this machine."""
    from truedraft.kernels.choose import choose_ops

    torch.set_num_threads(max(1, torch.get_num_threads()))
    return choose_ops("cpu", torch.bfloat16)[0]
