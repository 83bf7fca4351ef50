"""Turns a GGUF target into a safetensors folder, once, through transformers' dequantisation."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from truedraft.checkpoint.gguf_header import GgufHeader, read_gguf_header
from truedraft.contract.units import format_bytes
from truedraft.errors import CapacityError, CheckpointError
from truedraft.models.quiet import quiet_transformers
from truedraft.models.registry import is_fast

RECORD = "truedraft.json"  # in the folder: where it came from, and checksums
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def convert_gguf(gguf_path: str | Path, out_dir: str | Path, dtype: str = "bfloat16") -> Path:
    """Dequantise `gguf_path` to `dtype` (`float32` or `bfloat16`) → `out_dir`.

    Weights, config, tokenizer and chat template, written beside `out_dir` and renamed into place,
    so that no half-written folder is ever seen. `out_dir/truedraft.json` holds the source's and the
    weights' sha256. A folder that this source and dtype already gave is kept. Needs no network;
    memory for the weights once. Raises CheckpointError (missing, corrupt or unsupported file; a
    folder in the way) and CapacityError (full disk).
    """
    source, out = Path(gguf_path), Path(out_dir)
    if dtype not in _DTYPES:
        raise CheckpointError(
            "A GGUF is converted to one of two formats", seen=dtype, allowed=", ".join(_DTYPES)
        )
    header = read_gguf_header(source)
    _refuse_lost_values(source, header)
    digest = _sha256(source)
    if out.exists():
        return _kept(out, digest, dtype)
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        with quiet_transformers(), _swift_reader():
            _write(source, header, scratch, _DTYPES[dtype])
        _record(scratch, source, digest, dtype)
        return _publish(scratch, out, digest, dtype)
    except OSError as error:
        raise CapacityError(f"The converted target cannot be written to {out}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _swift_reader() -> Iterator[None]:
    """Makes transformers parse the file once, not three times, and look each name table up once.

    That is half of the conversion's time. Its progress bar, drawn past its own switch, goes too.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    changed = {
        (gguf, "GGUFReader"): lru_cache(maxsize=1)(gguf.GGUFReader),
        (gguf, "get_tensor_name_map"): lru_cache(gguf.get_tensor_name_map),
        (reader, "tqdm"): lambda items, **_: items,
    }
    before = {place: getattr(*place) for place in changed}
    try:
        for place, value in changed.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


def _refuse_lost_values(source: Path, header: GgufHeader) -> None:
    """transformers drops scaled rotary frequencies without a word; the model would be another one."""
    scaled = any(tensor.name == "rope_freqs.weight" for tensor in header.tensors)
    kinds = [value for key, value in header.metadata.items() if key.endswith(".rope.scaling.type")]
    if scaled or any(kind != "none" for kind in kinds):
        raise CheckpointError(
            f"{source.name} has scaled rotary frequencies, which its conversion would lose",
            seen="rope_freqs.weight" if scaled else f"rope.scaling.type {kinds}",
            remedy="Use the model's safetensors checkpoint",
        )


def _write(source: Path, header: GgufHeader, folder: Path, dtype: torch.dtype) -> None:
    from transformers import AutoTokenizer

    model = _loaded(source, header, dtype)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes * 1.05:
        raise CapacityError(
            f"Not enough room on the disk of {folder.parent}",
            seen=format_bytes(free_bytes),
            allowed=f"at least {format_bytes(num_bytes * 1.05)}",
        )
    fresh = _plain_copy(model)
    try:
        fresh.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # a full disk, as the Rust writer says it
        raise OSError(str(error)) from error
    except (ValueError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(f"The tokenizer in {source.name} cannot be converted: {error}") from error


def _loaded(source: Path, header: GgufHeader, dtype: torch.dtype) -> Any:
    """transformers' model of the file, every tensor dequantised and none left out or made up."""
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # its reader and numpy raise nearly anything on damaged files
        raise CheckpointError(f"{source} cannot be converted: {error}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise CheckpointError(f"{source} lacks {len(missing)} tensors of its model", seen=missing[:4])
    num_used = len(list(model.parameters()))  # a tied head counts once
    if is_fast(type(model).__name__) and num_used != len(header.tensors):
        raise CheckpointError(
            f"{source} has tensors that its family has no place for",
            seen=f"{len(header.tensors)} tensors",
            allowed=f"{num_used} for {type(model).__name__}",
        )
    return model


def _plain_copy(model: Any) -> Any:
    """The same model without the mark of its quantised source, which transformers refuses to save.

    Shares the weights: the copy's own are never given memory.
    """
    settings = model.config.to_dict()
    settings.pop("quantization_config", None)
    config = type(model.config)(**settings)
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.config.dtype = model.dtype
    return fresh


def _record(folder: Path, source: Path, digest: str, dtype: str) -> None:
    weights = {path.name: _sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    packages = ("truedraft", "torch", "transformers", "gguf")
    record = {
        "source": source.name,
        "source_sha256": digest,
        "dtype": dtype,
        "sha256": weights,
        "versions": {name: version(name) for name in packages},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _publish(scratch: Path, out: Path, digest: str, dtype: str) -> Path:
    # mkdtemp makes folders for the owner alone, and safetensors files likewise.
    scratch.chmod(0o755)
    for path in scratch.iterdir():
        path.chmod(0o644)
    try:
        os.replace(scratch, out)  # noqa: PTH105 (a folder, atomically)
    except OSError:
        if out.exists():  # another process was faster
            return _kept(out, digest, dtype)
        raise
    return out


def _kept(out: Path, digest: str, dtype: str) -> Path:
    """`out` where it came from this source in this dtype and is whole, else CheckpointError."""
    try:
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
        same = record["source_sha256"] == digest and record["dtype"] == dtype and record["sha256"]
        if same and all(_sha256(out / name) == seen for name, seen in record["sha256"].items()):
            return out
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CheckpointError(
        f"{out} is in the way: it is not this file's conversion, or it is damaged", remedy="Remove it"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
