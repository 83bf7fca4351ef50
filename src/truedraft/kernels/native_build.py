"""Compiles our C kernels for this machine on first use and keeps the shared object in the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from truedraft.config.paths import cache_dir
from truedraft.contract.units import format_bytes

_SOURCES = (
    "native.c",
    "native_vec.c",
    "native_pool.c",
    "native_tile.c",
    "native_linear.c",
    "native_rows.c",
    "native_attend.c",
    "native_layer.c",
)
# Contraction is off because fused multiply-adds are written out: see native_vec.c.
_FLAGS = ("-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
_TIMEOUT_S = 120
_NEEDED_BYTES = 4 << 20  # object and shared object, with room; a compiler would say so only when it is done


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to build: flags for this CPU, whether with OpenMP, and whether to link its runtime.

    torch brings a libgomp of its own and exports it to the process: not linking another one makes
    both use one thread pool. Two pools would spin against each other on the same cores.
    """

    cpu_flags: tuple[str, ...]
    openmp: bool
    link_openmp: bool

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return (*_FLAGS, *self.cpu_flags, *(("-fopenmp",) if self.openmp else ()))


_CPU_FLAGS: tuple[tuple[str, ...], ...] = (("-march=native",), ("-mcpu=native",), ())
RECIPES = tuple(
    Recipe(cpu_flags, openmp, link)
    for openmp, link in ((True, False), (True, True), (False, False))
    for cpu_flags in _CPU_FLAGS
)


class BuildError(Exception):
    """Why there is no shared object; never leaves this room."""


def load_library() -> tuple[ctypes.CDLL, ctypes.PyDLL, str]:
    """(library that frees the interpreter lock while it runs, the same that keeps it, what it is).

    Raises BuildError: no compiler, or no recipe gives something that loads.
    """
    compiler = find_compiler()
    version = _compiler_version(compiler)
    problems: list[str] = []
    for recipe in RECIPES:
        try:
            path = _build(compiler, version, recipe)
            library = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        except (BuildError, OSError) as error:
            problems.append(f"{' '.join(recipe.cpu_flags)} {error}".strip())
            continue
        threads = "torch's threads" if not recipe.link_openmp else "threads of its own"
        note = f"{' '.join([*recipe.cpu_flags, threads if recipe.openmp else 'one thread'])}, {version}"
        return *library, note
    raise BuildError(problems[0])


def find_compiler() -> tuple[str, ...]:
    """$CC with its arguments, else the first of gcc, cc and clang on the path."""
    named = os.environ.get("CC", "").strip()
    try:
        choices = (shlex.split(named),) if named else (["gcc"], ["cc"], ["clang"])
    except ValueError as error:
        raise BuildError(f"$CC cannot be read: {named} ({error})") from error
    for words in choices:
        if program := shutil.which(words[0]):
            return (program, *words[1:])
    raise BuildError(f"no C compiler: {named or 'gcc, cc, clang'} not found")


def _compiler_version(compiler: tuple[str, ...]) -> str:
    done = _run([*compiler, "--version"])
    return done.splitlines()[0] if done else compiler[0]


def _build(compiler: tuple[str, ...], version: str, recipe: Recipe) -> Path:
    """The shared object of a recipe, from the cache if it stands there."""
    name = f"kernels-{_key(version, recipe)}.so"
    folder = cache_dir() / "native"
    if (folder / name).is_file() and _loads(folder / name):
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < _NEEDED_BYTES:
            raise BuildError(f"no room in {folder}: {format_bytes(free)} free, 4 MiB needed")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            made = _compile(compiler, recipe, Path(work))
            made.replace(folder / name)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error.strerror or error}") from error
    return folder / name


def _compile(compiler: tuple[str, ...], recipe: Recipe, work: Path) -> Path:
    source = Path(__file__).with_name(_SOURCES[0])
    made_object, made = work / "kernels.o", work / "kernels.so"
    _run([*compiler, *recipe.compile_flags, "-c", str(source), "-o", str(made_object)])
    link = ["-fopenmp"] if recipe.link_openmp else []
    _run([*compiler, "-shared", *link, str(made_object), "-o", str(made), "-lm"])
    return made


def _loads(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{Path(command[0]).name}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0] if lines else done.returncode}")
    return done.stdout


def _key(version: str, recipe: Recipe) -> str:
    """Names everything the machine code depends on, this CPU included."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    digest.update(repr((recipe, version, _cpu())).encode())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """Model and instruction sets, as `-march=native` sees them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "features", "cpu part")
    named = {line for line in lines if line.lower().startswith(wanted)}
    return f"{platform.machine()} {sorted(named)}"
