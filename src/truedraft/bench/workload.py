"""The prompts that a benchmark runs: the built-in ones, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from truedraft.errors import ConfigError

KINDS = ("code", "maths", "chat", "prose")
WARM_UP_TEXTS = (
    "Name three things that float on water.",
    "Write one sentence about a railway station.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message. `kind` groups the figures."""

    prompt_id: str
    kind: str
    text: str


def load_builtin() -> tuple[Prompt, ...]:
    """The built-in prompts, kinds taking turns."""
    folder = files("truedraft.bench") / "prompts"
    by_kind = [
        parse_lines((folder / f"{kind}.jsonl").read_text(encoding="utf-8"), source=f"{kind}.jsonl")
        for kind in KINDS
    ]
    return take_turns(by_kind)


def load_file(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a JSONL file: `{"prompt": …}` a line, `kind` and `id` optional.

    Raises ConfigError where the file cannot be read or a line is not such an object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("The prompts file cannot be read", seen=f"{path} ({error})") from error
    prompts = parse_lines(text, source=str(path))
    if not prompts:
        raise ConfigError("The prompts file is empty", seen=str(path), remedy='Give {"prompt": …} lines')
    return prompts


def parse_lines(text: str, *, source: str) -> tuple[Prompt, ...]:
    """JSONL text → prompts; blank lines are skipped. Raises ConfigError naming the line at fault."""
    prompts: list[Prompt] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        prompts.append(_parse_line(line, where=f"{source}, line {number}", fallback_id=f"line-{number}"))
    ids = [prompt.prompt_id for prompt in prompts]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise ConfigError(f"Two prompts of {source} have the same id", seen=twice)
    return tuple(prompts)


def take_turns(groups: Iterable[Sequence[Prompt]]) -> tuple[Prompt, ...]:
    """First of every group, then second of every group, and so on."""
    return tuple(prompt for row in zip_longest(*groups) for prompt in row if prompt is not None)


def first_of_each_kind(prompts: Sequence[Prompt], num_per_kind: int) -> tuple[Prompt, ...]:
    """The first `num_per_kind` prompts of every kind, order kept."""
    taken: dict[str, int] = {}
    kept: list[Prompt] = []
    for prompt in prompts:
        taken[prompt.kind] = taken.get(prompt.kind, 0) + 1
        if taken[prompt.kind] <= num_per_kind:
            kept.append(prompt)
    return tuple(kept)


def _parse_line(line: str, *, where: str, fallback_id: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON", seen=line, allowed='{"prompt": "…", "kind": "…"}') from error
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"].strip():
        raise ConfigError(f"{where}: no prompt", seen=line, allowed='{"prompt": "…", "kind": "…"}')
    kind, prompt_id = value.get("kind", "own"), value.get("id", fallback_id)
    if not isinstance(kind, str) or not isinstance(prompt_id, str):
        raise ConfigError(f"{where}: `kind` and `id` must be text", seen=line)
    return Prompt(prompt_id=prompt_id, kind=kind, text=value["prompt"])
