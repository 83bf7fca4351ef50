"""The table of rules: complete, unique, and each with a case that speaks and one that is silent."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from truedraft.diagnosis.facts import parse_version, show_version
from truedraft.diagnosis.known_drafters import KNOWN, family, reference_formula
from truedraft.diagnosis.render import rules_json, rules_markdown
from truedraft.diagnosis.table import RULES, TOPICS


def cases_in(name: str) -> set[str]:
    spec = importlib.util.spec_from_file_location(f"cases_of_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {case.rule for case in module.CASES}


def test_every_rule_has_cases() -> None:
    covered = cases_in("test_checkpoint_rules") | cases_in("test_engine_rules") | cases_in("test_vllm_rules")
    assert {rule.id for rule in RULES} == covered | {"command.main_is_drafter"}, (
        "that one has a test of its own"
    )


def test_ids_are_unique_and_well_formed() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids) >= 150
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", rule) for rule in ids)
    assert len({name for name, _ in TOPICS}) == len(TOPICS)


def test_covering_rules_exist() -> None:
    ids = {rule.id for rule in RULES}
    assert {name for rule in RULES for name in rule.covered_by} <= ids


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_texts(rule: Any) -> None:
    for text in (rule.title, rule.cause, rule.remedy):
        assert text and not text.endswith(".") and text[0] == text[0].strip()
    assert rule.report is None or re.fullmatch(
        r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", rule.report
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.25.1", (0, 25, 1)),
        ("v0.26.0rc1+cu130", (0, 26, 0)),
        (" 5.24", (5, 24)),
        ("nightly", None),
        ("", None),
    ],
)
def test_parse_version(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_show_version() -> None:
    assert show_version((0, 5, 23)) == "0.5.23" and show_version(None) == "of unknown version"


def test_known_drafters_are_plausible() -> None:
    for known in KNOWN:
        ids = known.capture_layers
        assert list(ids) == sorted(set(ids)) and ids[0] >= 0 and ids[-1] < known.num_target_layers
    assert {known.name for known in family(5120, 64)} >= {"Qwen3.6-27B-DFlash"}
    assert family(None, 64) == () and family(5120, 3) == ()


def test_reference_formula() -> None:
    assert reference_formula(36, 5) == (1, 9, 17, 25, 33)
    assert reference_formula(64, 5) == (1, 16, 31, 46, 61)
    assert reference_formula(30, 1) == (15,)


def test_the_page_of_rules_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "rules.md"
    assert page.read_text(encoding="utf-8") == rules_markdown(), "run `make docs`"
    assert [entry["id"] for entry in rules_json()] == [rule.id for rule in RULES]
