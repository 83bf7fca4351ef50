"""Reads a launch command of vLLM or SGLang, as pasted, into RunFacts."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from truedraft.diagnosis.facts import Engine, RunFacts, Version, parse_version
from truedraft.errors import ConfigError

MAX_LEN = 64 * 1024
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
IMAGE = re.compile(r"((?:[\w.-]+/)*(?:vllm-openai|vllm|sglang)[\w-]*)(?::(\S{1,100}))?")
SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "sc": "speculative-config",
}
SHORT |= {"q": "quantization", "tp-size": "tensor-parallel-size"}


def parse_command(text: str, run: RunFacts | None = None) -> RunFacts:
    """→ `run` (or a new one) with engine, flags and environment of this command added.

    Understands line continuations, `NAME=value` before the program, `--flag value`, `--flag=value`,
    vLLM's JSON and dotted speculative config, and numbers. Raises ConfigError where the command is
    of neither engine, or its quotes or JSON are broken.
    """
    base = run or RunFacts()
    if len(text) > MAX_LEN:
        raise ConfigError("The command is too long", seen=f"{len(text)} characters", allowed=f"{MAX_LEN}")
    try:
        words = shlex.split(text.replace("\\\n", " ").strip().removeprefix("$ "), comments=True)
    except ValueError as exc:
        raise ConfigError("The command has unbalanced quotes", seen=str(exc)) from exc
    environment, rest = _leading(words)
    image = _image(rest)
    if image is not None:
        environment |= _container_variables(rest[: image.index])
        rest = rest[image.index :]
    engine = image.engine if image is not None else _engine(rest)
    if engine is None:
        raise ConfigError(
            "This is no launch command of a known engine",
            seen=text.strip()[:120],
            allowed="vllm serve …, python -m vllm.entrypoints…, python -m sglang.launch_server …, sglang serve …",
        )
    flags = _flags(rest)
    if engine == "vllm" and "model" not in flags and (model := _positional_model(rest)) is not None:
        flags["model"] = model
    if engine == "sglang" and "model-path" in flags:
        flags.setdefault("model", flags["model-path"])
    if image is not None and base.version is None:
        base = dataclasses.replace(base, version=image.version)
    kept: Engine = "vllm-ascend" if base.engine == "vllm-ascend" and engine == "vllm" else engine
    return dataclasses.replace(
        base, engine=kept, flags={**base.flags, **flags}, environment={**base.environment, **environment}
    )


@dataclass(frozen=True, slots=True)
class _Image:
    """A container image of an engine, and where in the command it stands."""

    index: int
    engine: Engine
    version: Version | None


def _image(words: list[str]) -> _Image | None:
    if not words or words[0].rsplit("/", 1)[-1] not in ("docker", "podman", "nerdctl"):
        return None
    for index, word in enumerate(words):
        if (found := IMAGE.fullmatch(word)) is not None:
            return _Image(index, "vllm" if "vllm" in found[1] else "sglang", parse_version(found[2] or ""))
    return None


def _container_variables(words: list[str]) -> dict[str, str]:
    pairs = itertools.pairwise(words)
    said = [after for flag, after in pairs if flag in ("-e", "--env") and ASSIGNMENT.fullmatch(after)]
    return dict(entry.split("=", 1) for entry in said)


def _leading(words: list[str]) -> tuple[dict[str, str], list[str]]:
    environment: dict[str, str] = {}
    for index, word in enumerate(words):
        if ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            environment[name] = value
        elif word not in ("export", "env", "sudo"):
            return environment, words[index:]
    return environment, []


def _engine(words: list[str]) -> Engine | None:
    for word in words[:40]:
        name = word.rsplit("/", 1)[-1]
        if name == "vllm" or word.startswith("vllm.entrypoints"):
            return "vllm"
        if name == "sglang" or word.startswith("sglang."):
            return "sglang"
    return None


def _positional_model(words: list[str]) -> str | None:
    if "serve" not in words:
        return None
    after = words[words.index("serve") + 1 :]
    return after[0] if after and not after[0].startswith("-") else None


def _flags(words: list[str]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or len(word.lstrip("-")) == 0 or word.lstrip("-")[0].isdecimal():
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        if not has_value and index < len(words) and not _is_flag(words[index]):
            value, has_value = words[index], "="
            index += 1
        _store(flags, name, value if has_value else True)
    return flags


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word.lstrip("-")[:1].isdecimal()


def _store(flags: dict[str, Any], name: str, value: str | bool) -> None:
    head, _, key = name.partition(".")
    head = SHORT.get(head, head).replace("_", "-")
    if head == "speculative-config" and key:
        flags[f"speculative.{key.replace('-', '_')}"] = _scalar(value)
    elif head == "speculative-config" and isinstance(value, str):
        for entry, said in _speculative(value).items():
            flags[f"speculative.{entry.replace('-', '_')}"] = said
    else:
        flags[head if not key else f"{head}.{key}"] = _scalar(value)


def _speculative(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(
            "--speculative-config is not valid JSON", seen=text, remedy="Put it into single quotes"
        ) from exc
    if not isinstance(said, dict):
        raise ConfigError("--speculative-config must be a JSON object", seen=text)
    return said


def _scalar(value: str | bool) -> Any:
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[+-]?\d{1,18}", value):
        return int(value)
    if re.fullmatch(r"[+-]?\d{0,18}\.\d{1,18}", value):
        return float(value)
    return {"true": True, "false": False}.get(value.lower(), value)
