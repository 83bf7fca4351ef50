"""Picks the provider of Ops, and the dtype, by measuring small-row products on this machine."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from truedraft.contract.units import format_s
from truedraft.kernels.native import native_ops
from truedraft.kernels.ops import Ops
from truedraft.kernels.reference import torch_ops

_OUTS, _WIDTH = 3072, 576
_SET_BYTES = 48 * 2**20  # more than the last-level cache of most machines: decoding reads from memory
_BUDGET_S = 0.1  # a provider
_ROWS = (1, 4, 8)
_NATIVE_DTYPES = (torch.float32, torch.bfloat16)


def choose_ops(device: torch.device | str, dtype: torch.dtype) -> tuple[Ops, str]:
    """(the faster provider for decoding, a sentence that says what was measured)."""
    if torch.device(device).type != "cpu":
        return torch_ops(), f"torch kernels on {device}: not measured."
    name = str(dtype).removeprefix("torch.")
    build = native_ops() if dtype in _NATIVE_DTYPES else None
    if build is None:
        return torch_ops(), f"torch kernels: the native ones have no {name}."
    if build.ops is None:
        return torch_ops(), f"torch kernels: {build.reason}."
    weights = _weights(dtype)
    native_s, torch_s = measure_rows(build.ops, weights), measure_rows(torch_ops(), weights)
    native_wins = sum(native_s.values()) <= sum(torch_s.values())
    sentence = (
        f"{'native' if native_wins else 'torch'} kernels: a {name} product of {_OUTS} × {_WIDTH} with "
        f"{_join(_ROWS)} rows takes native {_times(native_s)}, torch {_times(torch_s)} "
        f"({torch.get_num_threads()} threads)."
    )
    return (build.ops if native_wins else torch_ops()), sentence


def measure_dtype(device: torch.device | str) -> tuple[torch.dtype, str]:
    """(bfloat16 or float32, by the speed of small-row products with the best provider; a sentence)."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16, f"bfloat16 on {device}: not measured."
    native = native_ops().ops
    best_s: dict[torch.dtype, float] = {}
    for dtype in (torch.bfloat16, torch.float32):
        weights = _weights(dtype)
        providers = [torch_ops()] if native is None else [torch_ops(), native]
        best_s[dtype] = min(sum(measure_rows(ops, weights).values()) for ops in providers)
    bf16_s, fp32_s = (best_s[dtype] / len(_ROWS) for dtype in (torch.bfloat16, torch.float32))
    dtype = torch.bfloat16 if bf16_s <= fp32_s else torch.float32
    return dtype, (
        f"{str(dtype).removeprefix('torch.')}: a product of {_OUTS} × {_WIDTH} with {_join(_ROWS)} rows takes "
        f"{format_s(bf16_s)} in bfloat16 and {format_s(fp32_s)} in float32 on average."
    )


def measure_rows(ops: Ops, weights: list[Tensor]) -> dict[int, float]:
    """Rows → seconds of one product, the best of a few sweeps over weights that no cache holds."""
    best_s = dict.fromkeys(_ROWS, float("inf"))
    inputs = {rows: torch.ones(rows, weights[0].shape[1], dtype=weights[0].dtype) for rows in _ROWS}
    began = time.perf_counter()
    while True:
        for rows, x_TD in inputs.items():
            start = time.perf_counter()
            for w_OD in weights:
                ops.linear(x_TD, w_OD, None)
            best_s[rows] = min(best_s[rows], (time.perf_counter() - start) / len(weights))
        if time.perf_counter() - began > _BUDGET_S:
            return best_s


def _weights(dtype: torch.dtype) -> list[Tensor]:
    count = _SET_BYTES // (_OUTS * _WIDTH * dtype.itemsize)
    return list(torch.full((count, _OUTS, _WIDTH), 0.01, dtype=dtype).unbind())


def _join(rows: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"


def _times(seconds: dict[int, float]) -> str:
    return " / ".join(format_s(value) for value in seconds.values())
