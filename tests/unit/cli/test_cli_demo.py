"""The commands on the demo pair itself."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.demo


def test_generate_drafts_and_says_how_much(truedraft: Any) -> None:
    ran = truedraft(
        "generate", "--demo", "--prompt", "Write a Python function that adds two numbers.",
        "--max-tokens", "48", "--speculation", "7", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    value = ran.json
    assert value["num_tokens"] <= 48
    assert value["tau"] > 1.5
    assert value["accepted_by_position"] == sorted(value["accepted_by_position"], reverse=True)
    assert "def " in value["text"] or "python" in value["text"].lower()
    for said in ("fits:", "device:", "dtype:", "kernels:", "loaded: SmolLM2"):
        assert said in ran.err, said


def test_paths_are_there(truedraft: Any) -> None:
    value = truedraft("demo-pair", "path", "--json").json
    assert set(value) == {"target", "drafter"}
    assert truedraft("inspect", value["drafter"], "--target", value["target"]).code == 0
