"""Collects what rules may know of a run: engine, release, command, packages, GPU. Never imports torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from truedraft.diagnosis.command import parse_command
from truedraft.diagnosis.facts import Engine, GpuFacts, RunFacts, parse_version
from truedraft.errors import ConfigError

ENGINES: tuple[str, ...] = get_args(Engine)
PACKAGES = (
    *("vllm", "vllm-ascend", "sglang", "torch", "transformers", "flashinfer-python", "flash-attn"),
    *("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
)
MODULES = ("flash_attn", "flash_attn.ops")
VARIABLES = ("VLLM_", "SGLANG_", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
PROBE_S = 60.0
# Run by another interpreter: prints what this module would find in it.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, platform
def version(name):
    try: return m.version(name)
    except Exception: return None
def there(name):
    try: return u.find_spec(name) is not None
    except Exception: return False
print(json.dumps({"packages": {n: version(n) for n in %r}, "modules": {n: there(n) for n in %r},
                  "python": platform.python_version()}))
"""


def make_run_facts(
    engine: str = "local",
    version: str | None = None,
    *,
    command: str | None = None,
    flags: Mapping[str, Any] | None = None,
    gpu: GpuFacts | None = None,
) -> RunFacts:
    """→ facts of what the user says; `flags` win over those of the command.

    Raises ConfigError for an unknown engine, a version without a number, or a command that cannot be read.
    """
    if engine not in ENGINES:
        raise ConfigError("Unknown engine", seen=engine, allowed=", ".join(ENGINES))
    parsed = None if version is None else parse_version(version)
    if version is not None and parsed is None:
        raise ConfigError("The engine's version has no number", seen=version, allowed="for example 0.33.0")
    run = RunFacts(engine=engine, version=parsed, gpu=gpu)  # type: ignore[arg-type]
    if command is not None:
        run = parse_command(command, run)
    return dataclasses.replace(run, flags={**run.flags, **(flags or {})})


def with_this_machine(run: RunFacts, python: Path | None = None) -> RunFacts:
    """→ `run` with packages, modules, variables and the first GPU of this machine.

    `python` is the engine's own interpreter; without it, this one. An unknown version is taken from
    the engine's package. Raises ConfigError where `python` cannot be asked.
    """
    packages, modules = _of_this_interpreter() if python is None else _of_interpreter(python)
    said = packages.get("vllm" if run.engine.startswith("vllm") else run.engine)
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    return dataclasses.replace(
        run,
        version=run.version or (parse_version(said) if said else None),
        packages={**packages, **run.packages},
        modules={**modules, **run.modules},
        environment={**variables, **run.environment},
        gpu=run.gpu or read_gpu(),
    )


def _of_this_interpreter() -> tuple[dict[str, str], dict[str, bool]]:
    packages = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return packages, {name: _exists(name) for name in MODULES}


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _of_interpreter(python: Path) -> tuple[dict[str, str], dict[str, bool]]:
    try:
        done = subprocess.run(
            [str(python), "-c", PROBE % (PACKAGES, MODULES)], capture_output=True, timeout=PROBE_S, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ConfigError(
            f"{python} cannot be asked what is installed",
            seen=type(exc).__name__,
            remedy="Name the engine's python",
        ) from exc
    packages = {name: version for name, version in found["packages"].items() if version}
    return packages | {"python": found["python"]}, found["modules"]


def read_gpu() -> GpuFacts | None:
    """→ the first NVIDIA GPU and how many there are; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library, no permission: no GPU for us
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        driver = pynvml.nvmlSystemGetDriverVersion()
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return GpuFacts(
            name=name.decode() if isinstance(name, bytes) else str(name),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            compute_capability=(int(major), int(minor)),
            count=int(pynvml.nvmlDeviceGetCount()),
            driver=driver.decode() if isinstance(driver, bytes) else str(driver),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
