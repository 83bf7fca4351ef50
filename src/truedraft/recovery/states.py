"""The target's hidden states after every layer, for all calibration texts; kept on disk as they come.

Axes: T tokens, L target layers, D width, X = (L + 1) · D.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from truedraft.contract.specs import TargetSpec
from truedraft.engine.step import CachedAttend
from truedraft.kernels.ops import Ops, Spans
from truedraft.models.interface import Target
from truedraft.recovery.answers import OnStep, pool_for
from truedraft.recovery.texts import Text

FORMAT = 1  # of the cached files


def state_bytes(spec: TargetSpec, num_tokens: int) -> int:
    """What the states of that many tokens take, in memory and on disk (2 bytes a value)."""
    return num_tokens * (spec.num_layers + 1) * spec.hidden_size * 2


class StateCache:
    """One folder for one target and one calibration: answers, and states a text. None: keeps nothing.

    Files appear whole or not at all, so that a run that was stopped goes on where it was.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load_texts(self) -> list[Text] | None:
        if self.folder is None:
            return None
        try:
            kept = json.loads((self.folder / "texts.json").read_text(encoding="utf-8"))
            return [Text(tuple(one["token_ids"]), one["num_prompt_tokens"]) for one in kept]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save_texts(self, texts: Sequence[Text]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = [
            {"token_ids": list(text.token_ids), "num_prompt_tokens": text.num_prompt_tokens} for text in texts
        ]
        made = self.folder / f"texts.json.{os.getpid()}"
        made.write_text(json.dumps(kept), encoding="utf-8")
        made.replace(self.folder / "texts.json")

    def load(self, index: int, shape: tuple[int, int]) -> Tensor | None:
        file = self._file(index)
        if file is None or not file.is_file():
            return None
        try:
            states_TX = load_file(file)["states"]
        except (OSError, SafetensorError, KeyError):
            return None
        return states_TX if tuple(states_TX.shape) == shape else None

    def save(self, index: int, states_TX: Tensor) -> None:
        file = self._file(index)
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        save_file({"states": states_TX}, made)
        made.replace(file)

    def _file(self, index: int) -> Path | None:
        return None if self.folder is None else self.folder / f"states-{index:03}.safetensors"


def cache_key(spec: TargetSpec, calibration: object, dtype: torch.dtype) -> str:
    """→ a name that changes with the target's files, the calibration and the number format."""
    folder = Path(spec.path)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    marks = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
    said = json.dumps([FORMAT, str(folder.resolve()), marks, calibration, str(dtype)])
    return hashlib.sha256(said.encode()).hexdigest()[:20]


@torch.inference_mode()
def capture_states(
    target: Target,
    texts: Sequence[Text],
    *,
    ops: Ops,
    device: torch.device,
    cache: StateCache,
    on_step: OnStep,
) -> Tensor:
    """One pass over every text: → states_TX, bfloat16 in main memory, all texts end to end."""
    width = (target.spec.num_layers + 1) * target.spec.hidden_size
    all_TX = torch.empty(sum(len(text.token_ids) for text in texts), width, dtype=torch.bfloat16)
    row = 0
    for index, text in enumerate(texts):
        states_TX = cache.load(index, (len(text.token_ids), width))
        if states_TX is None:
            states_TX = _states_of(target, text, ops, device)
            cache.save(index, states_TX)
        all_TX[row : row + len(states_TX)] = states_TX
        row += len(states_TX)
        on_step(index + 1, len(texts))
    return all_TX


def _states_of(target: Target, text: Text, ops: Ops, device: torch.device) -> Tensor:
    num_rows = len(text.token_ids)
    rows_T = torch.arange(num_rows, device=device)

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    spans = Spans(
        row_start_B=ints(0, num_rows),
        position_start_B=ints(0),
        kv_len_B=ints(num_rows),
        page_table_BM=ints(0)[None],
        page_len=num_rows,
        max_rows=num_rows,
        max_kv_len=num_rows,
    )
    attend = CachedAttend(ops, pool_for(target, 1, num_rows, device), rows_T, spans)
    ids_T = torch.tensor(text.token_ids, dtype=torch.int64, device=device)
    layers = tuple(range(-1, target.spec.num_layers))
    _, states_TX = target.forward(ids_T, rows_T, attend, layers)
    assert states_TX is not None, "layers were asked for"
    return states_TX.to(device="cpu", dtype=torch.bfloat16)
