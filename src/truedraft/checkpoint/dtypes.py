"""Names of number formats: configs say `bfloat16`, headers say `BF16`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from truedraft.contract.specs import TensorHeader

CONFIG_DTYPES = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}
PLAIN_DTYPES = ("BF16", "F16", "F32", "F64")


def config_dtype(name: str) -> str:
    """`torch.bfloat16` or `bfloat16` → `BF16`; other names in capitals."""
    bare = name.removeprefix("torch.")
    return CONFIG_DTYPES.get(bare, bare.upper())


def main_dtype(tensors: Iterable[TensorHeader]) -> str | None:
    """→ the dtype with the most bytes, or None without tensors."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.end - tensor.start
    return sizes.most_common(1)[0][0] if sizes else None


def quantisation_of(config: Mapping[str, Any], tensors: Iterable[TensorHeader]) -> str | None:
    """→ the quantisation's name, from the config or from packed tensors; None for plain weights."""
    said = config.get("quantization_config") or config.get("compression_config")
    if isinstance(said, dict):
        for key in ("quant_algo", "quant_method", "format"):
            if isinstance(said.get(key), str):
                return str(said[key]).lower()
        return "unnamed"
    for tensor in tensors:
        is_weight = len(tensor.shape) >= 2 and not tensor.name.endswith(("t2d", "d2t"))
        if is_weight and tensor.dtype not in PLAIN_DTYPES:
            return f"packed {tensor.dtype}"
    return None
