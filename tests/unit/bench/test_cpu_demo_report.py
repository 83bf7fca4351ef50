"""The CPU benchmark's table: its arithmetic, and that README shows what was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "cpu_demo_report", ROOT / "benchmarks" / "cpu_demo_report.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "num": 4}


def ours() -> dict[str, Any]:
    rates = {"plain_tok_per_s": figure(40.0), "dflash_tok_per_s": figure(80.0), "ratio": figure(2.0)}
    kinds = {"tau_by_kind": {"code": figure(3.0)}, "ratio_by_kind": {"code": figure(2.5)}, "tau": figure(2.9)}
    return {
        "greedy": {"by_concurrency": {"1": rates, "8": rates}, **kinds, **rates},
        "sampled": {**kinds, **rates},
        "by_prompt": {"a": {"plain": 40.0, "dflash": 80.0}, "b": {"plain": 42.0, "dflash": 90.0}},
    }


def raw() -> dict[str, Any]:
    answers = [
        {"id": "a", "kind": "code", "num_tokens": 40, "s": 2.0},
        {"id": "b", "kind": "code", "num_tokens": 42, "s": 2.0},
    ]
    return {
        "transformers": {"answers": answers},
        "reference": {"answers": answers},
        "ours": ours(),
        "vllm": {"tok_per_s_by_concurrency": {"1": 32.6, "8": 161.0}},
    }


def test_rates_are_medians_and_ratios_pair_by_prompt(report: ModuleType) -> None:
    result = report.summarise(raw())
    assert result["transformers"]["tok_per_s"]["value"] == 20.5
    assert result["ratios"]["our_plain_to_transformers"]["value"] == 2.0
    assert result["ratios"]["our_dflash_to_reference"]["value"] == pytest.approx((4 + 90 / 21) / 2, abs=1e-3)


def test_table_names_machine_date_versions_and_every_arm(report: ModuleType) -> None:
    result = {
        "date": "2026-01-02 03:04 UTC",
        "machine": {"cpu": "A CPU", "threads": 2},
        "versions": {"torch": "9.9"},
        "settings": {"dtype": "bfloat16", "num_prompts": 48, "max_tokens": 128},
        **report.summarise(raw()),
    }
    text = report.table(result)
    for said in ("A CPU", "2026-01-02", "torch 9.9", "transformers generate", "reference loop", "vLLM on CPU, plain, 8 streams",
                 "truedraft plain, 1 stream", "**truedraft DFlash**, 8 streams", "T 0.7", "| code |"):  # fmt: skip
        assert said in text, said
    assert (
        len({line.count("|") for line in text.splitlines() if line.startswith("| ") and "τ" not in line}) <= 2
    )


def test_partial_runs_have_partial_tables(report: ModuleType) -> None:
    for name in ("transformers", "reference", "ours"):
        part = {key: value for key, value in raw().items() if key != name}
        result = {
            "date": "", "machine": {"cpu": "", "threads": 1}, "versions": {},
            "settings": {"dtype": "", "num_prompts": 1, "max_tokens": 1}, **report.summarise(part),
        }  # fmt: skip
        assert report.table(result)


def test_readme_block_is_replaced_and_nothing_else(report: ModuleType, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.update_readme(readme, "new figures")
    assert report.readme_block(readme) == "new figures"
    assert readme.read_text("utf-8").startswith("before\n")
    assert readme.read_text("utf-8").endswith("\nafter\n")


def test_readme_shows_the_stored_result(report: ModuleType) -> None:
    stored = ROOT / "benchmarks" / "results" / "cpu_demo.json"
    block = report.readme_block(ROOT / "README.md")
    if stored.is_file():
        assert block == report.table(json.loads(stored.read_text("utf-8"))).strip()
    else:
        assert "Not measured yet" in block
