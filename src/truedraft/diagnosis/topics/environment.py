"""The environment around the engine: packages that clash or are missing."""

from __future__ import annotations

import re

from truedraft.diagnosis.facts import PairFacts, Version, parse_version, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule

ANY_VLLM = ("vllm", "vllm-ascend")
# vLLM release (first of its line) → torch it is built for, lowest transformers, lowest Python.
VLLM_PINS: tuple[tuple[Version, Version, Version, Version], ...] = (
    ((0, 33), (2, 14, 0), (5, 16, 1), (3, 11)),
    ((0, 32), (2, 13, 0), (5, 16, 1), (3, 11)),
    ((0, 29), (2, 13, 0), (5, 10, 4), (3, 10)),
    ((0, 27), (2, 13, 0), (5, 5, 3), (3, 10)),
    ((0, 24), (2, 11, 0), (5, 5, 3), (3, 10)),
    ((0, 20), (2, 11, 0), (4, 56), (3, 10)),
    ((0, 19), (2, 10, 0), (4, 56), (3, 10)),
)
TRANSFORMERS_BELOW: dict[Version, Version] = {(0, 31): (5, 18), (0, 32): (5, 20), (0, 33): (5, 21)}
# SGLang release (first of its line) → torch, and the exact transformers.
SGLANG_PINS: tuple[tuple[Version, Version, Version], ...] = (
    ((0, 5, 22), (2, 14, 1), (5, 19, 0)),
    ((0, 5, 18), (2, 13, 0), (5, 12, 1)),
    ((0, 5, 15), (2, 11, 0), (5, 12, 1)),
    ((0, 5, 11), (2, 11, 0), (5, 6, 0)),
)
# CUDA runtime (major) → the oldest driver that runs it (CUDA's table of minor version compatibility).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def _package(facts: PairFacts, name: str) -> Version | None:
    said = facts.run.packages.get(name)
    return None if said is None else parse_version(said)


def _vllm_pins(facts: PairFacts) -> tuple[Version, Version, Version, Version] | None:
    version = facts.run.version
    return None if version is None else next((pins for pins in VLLM_PINS if version >= pins[0]), None)


def _cuda_major(facts: PairFacts) -> tuple[int, str] | None:
    """→ CUDA's major version that torch brings, and where that is said."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        if (version := _package(facts, name)) is not None:
            return version[0], f"{name} {facts.run.packages[name]}"
    found = re.search(r"\+cu(\d\d)\d", facts.run.packages.get("torch", ""))
    return None if found is None else (int(found[1]), f"torch {facts.run.packages['torch']}")


def old_driver(facts: PairFacts) -> tuple[str, ...]:
    cuda, said = _cuda_major(facts), None if facts.run.gpu is None else facts.run.gpu.driver
    driver = None if said is None else parse_version(said)
    if cuda is None or driver is None or driver[0] >= OLDEST_DRIVER.get(cuda[0], 0):
        return ()
    return f"driver {said}", cuda[1], f"CUDA {cuda[0]} needs a driver of {OLDEST_DRIVER[cuda[0]]} or newer"


def flash_attn_namespace(facts: PairFacts) -> tuple[str, ...]:
    modules = facts.run.modules
    if not modules.get("flash_attn") or modules.get("flash_attn.ops", True) or not facts.older(0, 24):
        return ()
    return (
        "module flash_attn: present",
        "module flash_attn.ops: absent",
        f"vLLM {show_version(facts.run.version)}",
    )


def vllm_torch(facts: PairFacts) -> tuple[str, ...]:
    pins, torch = _vllm_pins(facts), _package(facts, "torch")
    if pins is None or torch is None or torch[:2] == pins[1][:2]:
        return ()
    return (
        f"torch {show_version(torch)}",
        f"vLLM {show_version(facts.run.version)} is built for {show_version(pins[1])}",
    )


def vllm_transformers(facts: PairFacts) -> tuple[str, ...]:
    pins, found = _vllm_pins(facts), _package(facts, "transformers")
    if pins is None or found is None or facts.run.version is None:
        return ()
    below = TRANSFORMERS_BELOW.get(facts.run.version[:2])
    if found >= pins[2] and (below is None or found < below):
        return ()
    wanted = f">= {show_version(pins[2])}" + (f", < {show_version(below)}" if below else "")
    return f"transformers {show_version(found)}", f"vLLM {show_version(facts.run.version)} wants {wanted}"


def vllm_python(facts: PairFacts) -> tuple[str, ...]:
    pins, python = _vllm_pins(facts), _package(facts, "python")
    if pins is None or python is None or python >= pins[3]:
        return ()
    return (
        f"Python {show_version(python)}",
        f"vLLM {show_version(facts.run.version)} wants {show_version(pins[3])}",
    )


def sglang_pins(facts: PairFacts) -> tuple[str, ...]:
    version = facts.run.version
    pins = None if version is None else next((pins for pins in SGLANG_PINS if version >= pins[0]), None)
    if pins is None:
        return ()
    found = []
    for name, wanted, parts in (("torch", pins[1], 2), ("transformers", pins[2], 3)):
        seen = _package(facts, name)
        if seen is not None and seen[:parts] != wanted[:parts]:
            found.append(
                f"{name} {show_version(seen)}; SGLang {show_version(version)} pins {show_version(wanted)}"
            )
    return tuple(found)


def both_engines(facts: PairFacts) -> tuple[str, ...]:
    found = [
        f"{name} {facts.run.packages[name]}" for name in ("vllm", "sglang") if name in facts.run.packages
    ]
    return tuple(found) if len(found) == 2 else ()


def engine_differs(facts: PairFacts) -> tuple[str, ...]:
    seen = _package(facts, "vllm" if facts.engine in ANY_VLLM else facts.engine)
    if seen is None or facts.run.version is None or seen[: len(facts.run.version)] == facts.run.version:
        return ()
    return f"installed: {show_version(seen)}", f"judged for: {show_version(facts.run.version)}"


def unknown_version(facts: PairFacts) -> tuple[str, ...]:
    return () if facts.run.version is not None else (f"{facts.engine}: no version given",)


def rebuilt(facts: PairFacts) -> tuple[str, ...]:
    said = facts.run.packages.get("vllm", "")
    marks = [mark for mark in ("rc", "dev", "+") if mark in said]
    return (f"vllm {said}",) if marks else ()


RULES = (
    Rule(
        "env.flash_attn_namespace",
        FAIL,
        "An incomplete flash_attn package will break this release",
        flash_attn_namespace,
        "An add-on package creates the namespace without `ops`, which vLLM before 0.24 imports unguarded",
        "Remove the package, or upgrade to 0.24",
        "https://github.com/vllm-project/vllm/pull/32974",
        ANY_VLLM,
    ),
    Rule(
        "env.vllm_torch",
        FAIL,
        "torch is not the one that vLLM was built for",
        vllm_torch,
        "Its compiled kernels do not load, or load and misbehave",
        "Install vLLM into an environment of its own",
        None,
        ANY_VLLM,
    ),
    Rule(
        "env.vllm_transformers",
        WARN,
        "transformers is outside the range of this release",
        vllm_transformers,
        "Configs of new models may not be read, or be read differently",
        "Install the version that vLLM asks for",
        None,
        ANY_VLLM,
    ),
    Rule(
        "env.vllm_python",
        FAIL,
        "This Python is too old for the release",
        vllm_python,
        "There is no wheel for it",
        "Use a newer Python",
        None,
        ANY_VLLM,
    ),
    Rule(
        "env.sglang_pins",
        FAIL,
        "Packages differ from what SGLang pins",
        sglang_pins,
        "It pins torch and an exact transformers",
        "Install SGLang into an environment of its own",
        None,
        ("sglang",),
    ),
    Rule(
        "env.old_driver",
        FAIL,
        "The GPU's driver is too old for this torch",
        old_driver,
        "torch brings a CUDA runtime that this driver cannot run: it fails, or finds no GPU",
        "Update the driver, or install a torch that is built for an older CUDA",
    ),
    Rule(
        "env.both_engines",
        WARN,
        "vLLM and SGLang share one environment",
        both_engines,
        "Their torch pins exclude each other, so one of them is broken",
        "Give each an environment of its own",
        None,
        (*ANY_VLLM, "sglang"),
    ),
    Rule(
        "env.engine_differs",
        WARN,
        "Another version is installed than the one judged here",
        engine_differs,
        "Rules depend on the release",
        "Run again with --engine-version of what is installed",
        None,
        (*ANY_VLLM, "sglang"),
    ),
    Rule(
        "env.unknown_version",
        INFO,
        "Rules that depend on the release were not checked",
        unknown_version,
        "The engine's version is not known",
        "Give --engine-version",
        "https://github.com/eugr/spark-vllm-docker/issues/364",
        (*ANY_VLLM, "sglang"),
    ),
    Rule(
        "env.rebuilt",
        INFO,
        "A build that is no plain release",
        rebuilt,
        "Release candidates and rebuilds may lack or have what the release of that number has",
        "Trust the log, not the number",
        "https://github.com/vllm-project/vllm-ascend/issues/9009",
        ANY_VLLM,
    ),
)
