"""What every call into the native kernels shares: signatures, type codes, layouts, the error."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from truedraft.errors import CapacityError

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_TYPES = {"p": _POINTER, "l": _LONG, "i": _INT, "f": _FLOAT, "b": ctypes.c_char_p}
_SIGNATURES = {
    "td_linear": "pli pli pi p lll i",
    "td_rms_norm": "plll i pi p ll f i",
    "td_add_rms_norm": "pl pl i pi pp ll f i",
    "td_rope": "plli pl pl i p llll i",
    "td_silu_mul": "pli p ll i",
    "td_write_kv": "pp plli lll i",
    # Many arguments cost microseconds one by one: these take a structure, packed as bytes.
    "td_attend": "b",
    "td_attention_inputs": "b",
    "td_attention_outputs": "b",
}
CODES = {torch.float32: 0, torch.bfloat16: 1}
# A call that may take longer than about a millisecond lets other Python threads run; shorter ones
# keep the interpreter lock, which could take 5 ms to come back.
LONG_CALL = 50_000_000  # multiply-adds


def declare(library: ctypes.CDLL) -> None:
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [_TYPES[letter] for letter in signature.replace(" ", "")]
        function.restype = _INT


def done(code: int) -> None:
    if code:
        raise CapacityError(
            "No memory for a kernel's buffers", remedy="Use a shorter context or fewer threads"
        )


def rows_of(x_TD: Tensor) -> Tensor:
    """x as rows whose elements are contiguous; a view wherever torch can give one."""
    rows_TD = x_TD if x_TD.dim() == 2 else x_TD.reshape(-1, x_TD.shape[-1])
    return rows_TD if rows_TD.stride(1) == 1 else rows_TD.contiguous()


def heads_of(x_TXH: Tensor) -> Tensor:
    return x_TXH if x_TXH.stride(2) == 1 else x_TXH.contiguous()


def pointer(x: Tensor | None) -> int:
    """An address for a packed structure; 0: none."""
    return 0 if x is None else x.data_ptr()
