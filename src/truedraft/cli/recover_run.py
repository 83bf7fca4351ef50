"""Composes a recovery: files, models, calibration text, states, search."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from truedraft.backends.tokenizer import ModelTokenizer
from truedraft.bench.workload import load_builtin
from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target
from truedraft.checkpoint.tokenizer import read_tokenizer_facts
from truedraft.cli.compose import converted
from truedraft.cli.demo_files import demo_drafter, ensure_demo_target
from truedraft.cli.output import Say
from truedraft.cli.recover_options import RecoverOptions
from truedraft.config.paths import cache_dir
from truedraft.config.schema import EngineConfig
from truedraft.contract.reading import DrafterReading
from truedraft.contract.specs import TargetSpec
from truedraft.contract.units import format_bytes, format_s
from truedraft.errors import ConfigError
from truedraft.kernels.choose import choose_ops
from truedraft.kernels.ops import Ops
from truedraft.models.interface import Target
from truedraft.models.registry import load_target
from truedraft.recovery.answers import write_answers
from truedraft.recovery.calibration import Calibration, read_calibration
from truedraft.recovery.measure import PRODUCT_BYTES
from truedraft.recovery.recover import OnProgress, Recovery, load_measured_drafter, recover
from truedraft.recovery.start import Start, find_start
from truedraft.recovery.states import StateCache, cache_key, capture_states, state_bytes
from truedraft.recovery.texts import Text
from truedraft.recovery.write import config_diff, corrected_config, write_corrected


@dataclass(frozen=True, slots=True)
class Done:
    """A recovery and what to say about it. `seconds` by stage."""

    reading: DrafterReading
    start: Start
    found: Recovery
    config: dict[str, Any]
    seconds: dict[str, float]

    @property
    def diff(self) -> list[str]:
        return config_diff(dict(self.reading.config), self.config)

    def write(self, out: Path) -> Path:
        return write_corrected(self.reading, self.config, out)


def run_recovery(wanted: RecoverOptions, *, say: Say, bar: bool) -> Done:
    """Raises ConfigError where nothing can be measured, CheckpointError, CapacityError, BackendError."""
    device = _device(wanted)
    target_spec, reading = _read(wanted, say)
    special_ids = _special_ids(target_spec, reading)
    start = find_start(reading, target_spec, special_ids)
    calibration = _calibration(wanted, target_spec)
    _say_memory(target_spec, start, calibration, wanted, say)
    seconds: dict[str, float] = {}
    with _progress(shown=bar) as on_progress:
        with _timed(seconds, "load"):
            dtype = torch.bfloat16
            ops = choose_ops(device, dtype)[0]
            target = load_target(target_spec, ops, dtype, device)
            measured_in = torch.float32 if device.type == "cpu" else dtype
            drafter = load_measured_drafter(start.spec, target, measured_in, device)
        cache = _cache(wanted, target_spec, calibration, dtype, say)
        with _timed(seconds, "answers"):
            texts = _texts(target, calibration, wanted, ops, device, cache, on_progress)
        with _timed(seconds, "states"):
            states = capture_states(
                target,
                texts,
                ops=ops,
                device=device,
                cache=cache,
                on_step=lambda done, total: on_progress("reading states", done, total),
            )
        with _timed(seconds, "search"):
            found = recover(
                start, drafter, target, texts, states, special_ids=special_ids, on_progress=on_progress
            )
    say(", ".join(f"{stage} {format_s(taken)}" for stage, taken in seconds.items()))
    return Done(reading, start, found, corrected_config(reading, start, found), seconds)


def _device(wanted: RecoverOptions) -> torch.device:
    EngineConfig(device=wanted.device, threads=wanted.threads)  # checks both
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    name = wanted.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is usable", seen=f"--device {name}", allowed="auto or cpu here")
    return torch.device(name)


def _read(wanted: RecoverOptions, say: Say) -> tuple[TargetSpec, DrafterReading]:
    where = str(ensure_demo_target(say=say)) if wanted.target is None else wanted.target
    draft = wanted.drafter or str(demo_drafter())
    reading = read_drafter_files(draft, needs_weights=True)
    return converted(read_target(where), "auto", say=say), reading


def _special_ids(target: TargetSpec, reading: DrafterReading) -> list[int]:
    """Special tokens of both tokenizers, and the rows of the embedding that no token has."""
    found: set[int] = set()
    for facts in (read_tokenizer_facts(Path(target.path)), reading.tokenizer):
        if facts is None:
            continue
        found |= set(facts.special_ids.values())
        if facts.num_tokens is not None:
            found |= set(range(facts.num_tokens, min(target.vocab_size, facts.num_tokens + 8)))
    return sorted(one for one in found if 0 <= one < target.vocab_size)[:96]


def _calibration(wanted: RecoverOptions, target: TargetSpec) -> Calibration:
    tokenizer = ModelTokenizer.load(Path(target.path))

    def encode_prompt(text: str) -> tuple[int, ...]:
        if not tokenizer.has_chat_template:
            return tokenizer.encode(text)
        return tokenizer.encode_chat([{"role": "user", "content": text}])

    if wanted.calibration is not None:
        return read_calibration(
            wanted.calibration,
            vocab_size=target.vocab_size,
            encode=tokenizer.encode,
            encode_prompt=encode_prompt,
        )
    return Calibration(tuple(encode_prompt(one.text) for one in load_builtin()[: wanted.num_prompts]))


def _say_memory(
    target: TargetSpec, start: Start, calibration: Calibration, wanted: RecoverOptions, say: Say
) -> None:
    """Says what states and products will take beside the models, before anything heavy starts."""
    most = sum(len(prompt) + wanted.num_tokens for prompt in calibration.prompts)
    most += sum(len(text.token_ids) for text in calibration.texts)
    product_bytes = most * start.spec.hidden_size * 4
    num_slots = len(start.candidate.capture_layers)
    products = min(
        max(PRODUCT_BYTES, (num_slots + 1) * product_bytes),
        num_slots * (target.num_layers + 1) * product_bytes,
    )
    say(
        f"states of {target.num_layers} layers and the embedding at up to {most} tokens: "
        f"{format_bytes(state_bytes(target, most))} of memory; products of them: up to {format_bytes(products)}"
    )


def _cache(
    wanted: RecoverOptions, target: TargetSpec, calibration: Calibration, dtype: torch.dtype, say: Say
) -> StateCache:
    if not wanted.keep:
        return StateCache(None)
    key = cache_key(target, [calibration.key(), wanted.num_tokens], dtype)
    folder = cache_dir() / "recovery" / key
    say(f"states are kept in {folder}")
    return StateCache(folder)


def _texts(
    target: Target,
    calibration: Calibration,
    wanted: RecoverOptions,
    ops: Ops,
    device: torch.device,
    cache: StateCache,
    on_progress: OnProgress,
) -> list[Text]:
    if not calibration.prompts:
        return list(calibration.texts)
    answered = cache.load_texts()
    if answered is None:
        answered = write_answers(
            target,
            calibration.prompts,
            num_tokens=wanted.num_tokens,
            ops=ops,
            device=device,
            on_step=lambda done, total: on_progress("writing answers", done, total),
        )
        cache.save_texts(answered)
    return [*answered, *calibration.texts]


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began


@contextmanager
def _progress(*, shown: bool) -> Iterator[OnProgress]:
    """A bar on stderr, where that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=None)
        yield lambda stage, done, total: progress.update(task, description=stage, completed=done, total=total)
