"""LocalBackends on one toy pair, saved and read once a process: a backend in some milliseconds.

    backend = local_backend()                      # with the drafter
    backend = local_backend(drafter=False)         # plain
    backend = local_backend(num_pages=40)          # any field of EngineConfig

The pair is chosen so that its text is lively and its greedy τ is near 2.8: about half of the drafts
are kept. Costs are not measured, so "auto" always verifies whole blocks: what a test sees does not
depend on the machine.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from toy import toy_pair
from toy_files import FILE_VOCAB, PairPaths, save_pair

from truedraft.backends.local import LocalBackend
from truedraft.checkpoint.drafter import read_drafter
from truedraft.checkpoint.target import read_target
from truedraft.config.schema import EngineConfig
from truedraft.contract.specs import DrafterSpec, TargetSpec

FAMILY, SEED = "qwen3", 2
BLOCK_LEN = 8
NAME = "toy"


@cache
def pair_paths() -> PairPaths:
    """The saved pair. Tests that change files work on `copy_pair`."""
    folder = Path(tempfile.mkdtemp(prefix="truedraft-toy-pair-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pair = toy_pair(FAMILY, seed=SEED, vocab_size=FILE_VOCAB, agreement="mixed", block_len=BLOCK_LEN)
    return save_pair(folder, *pair)


def copy_pair(folder: Path) -> PairPaths:
    """A copy of the pair under `folder`, to be damaged."""
    paths = pair_paths()
    made = PairPaths(folder / "target", folder / "drafter")
    shutil.copytree(paths.target, made.target)
    shutil.copytree(paths.drafter, made.drafter)
    return made


@cache
def pair_specs() -> tuple[TargetSpec, DrafterSpec]:
    paths = pair_paths()
    return read_target(paths.target), read_drafter(paths.drafter)


def engine_config(**fields: Any) -> EngineConfig:
    """fp32 on the CPU with torch's kernels, costs not measured; `fields` override."""
    said = {"device": "cpu", "dtype": "float32", "kernels": "torch", "measure_costs": False}
    return EngineConfig(**(said | fields))


def local_backend(*, drafter: bool = True, name: str = NAME, **fields: Any) -> LocalBackend:
    """A running backend; the caller closes it. `fields` are those of EngineConfig."""
    target_spec, drafter_spec = pair_specs()
    config = engine_config(**fields)
    return LocalBackend.load(target_spec, drafter_spec if drafter else None, config, name=name)
