"""All rules, in the order in which they are listed and documented."""

from __future__ import annotations

from truedraft.diagnosis.rule import Rule
from truedraft.diagnosis.topics import (
    capture,
    files,
    head_vocab,
    layout,
    local_engine,
    pairing,
    quantisation,
    rope,
    window,
)

TOPICS: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("Files", files.RULES),
    ("Pair", pairing.RULES),
    ("Capture layers", capture.RULES),
    ("Block layout", layout.RULES),
    ("Positions", rope.RULES),
    ("Windows", window.RULES),
    ("Head, vocabulary, mask", head_vocab.RULES),
    ("Number formats", quantisation.RULES),
    ("Local engine", local_engine.RULES),
)
RULES: tuple[Rule, ...] = tuple(rule for _, rules in TOPICS for rule in rules)
