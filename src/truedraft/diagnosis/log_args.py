"""Finds the launch arguments that engines print at start, and their drafter's own figures."""

from __future__ import annotations

import ast
import re
from typing import Any

VLLM_ARGS = re.compile(r"non-default args: (\{.*\})")
SGLANG_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)\s*$")
SGLANG_PAIR = re.compile(r"(\w{1,60})=('[^']{0,1000}'|-?\d{1,18}(?:\.\d{1,18})?|None|True|False)(?=, |$)")
LLAMA_BLOCK = re.compile(r"block_size=(\d{1,6}), mask_token_id=(\d{1,9}), n_extract=(\d{1,6})")
MAX_LEN = 20_000
NAMES = {"model-tag": "model", "model-path": "model"}


def args_in(text: str) -> dict[str, Any]:
    """→ flags by their long names, as `parse_command` has them; empty where this line prints none."""
    if (found := VLLM_ARGS.search(text[:MAX_LEN])) is not None:
        return _vllm(found[1])
    if (found := SGLANG_ARGS.search(text[:MAX_LEN])) is not None:
        return _sglang(found[1])
    return {}


def _vllm(text: str) -> dict[str, Any]:
    try:
        said = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    flags: dict[str, Any] = {}
    for key, value in said.items() if isinstance(said, dict) else ():
        name = str(key).replace("_", "-")
        if name == "speculative-config" and isinstance(value, dict):
            flags |= {f"speculative.{inner}": _plain(one) for inner, one in value.items()}
        else:
            flags[NAMES.get(name, name)] = _plain(value)
    return flags


def _sglang(text: str) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, value in SGLANG_PAIR.findall(text):
        said = ast.literal_eval(value)
        if said is not None and said is not False:
            long = name.replace("_", "-")
            flags[NAMES.get(long, long)] = said
    return flags


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
