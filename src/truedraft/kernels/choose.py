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
_ROWS = (1, 4, 8)
_NUM_SWEEPS = 5
_BUDGET_S = 0.25  # no new sweep after this
# The native kernels' rows do not depend on each other, so that speculation changes not one bit. That
# is worth more than a measured advantage of torch's smaller than this factor.
_NATIVE_MARGIN = 1.3

Candidate = tuple[str, torch.dtype, Ops]


def choose_ops(device: torch.device | str, dtype: torch.dtype) -> tuple[Ops, str]:
    """(the provider for decoding, a sentence that says what was measured)."""
    if torch.device(device).type != "cpu":
        return torch_ops(), f"torch kernels on {device}: not measured."
    if dtype not in (torch.float32, torch.bfloat16):
        return torch_ops(), f"torch kernels: the native ones have no {_name(dtype)}."
    build = native_ops()
    if build.ops is None:
        return torch_ops(), f"torch kernels: {build.reason}."
    candidates: list[Candidate] = [("native", dtype, build.ops), ("torch", dtype, torch_ops())]
    native_s, torch_s = measure_rows(candidates)
    native_wins = sum(native_s.values()) <= sum(torch_s.values()) * _NATIVE_MARGIN
    sentence = (
        f"{'native' if native_wins else 'torch'} kernels: a {_name(dtype)} product of {_OUTS} × {_WIDTH} with "
        f"{_join(_ROWS)} rows takes native {_times(native_s)}, torch {_times(torch_s)} "
        f"({torch.get_num_threads()} threads)."
    )
    return (build.ops if native_wins else torch_ops()), sentence


def measure_dtype(device: torch.device | str) -> tuple[torch.dtype, str]:
    """(bfloat16 or float32, by the speed of small-row products with the best provider; a sentence)."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16, f"bfloat16 on {device}: not measured."
    ops = native_ops().ops or torch_ops()
    candidates: list[Candidate] = [("", dtype, ops) for dtype in (torch.bfloat16, torch.float32)]
    bf16_s, fp32_s = (sum(seconds.values()) / len(_ROWS) for seconds in measure_rows(candidates))
    dtype = torch.bfloat16 if bf16_s <= fp32_s else torch.float32
    return dtype, (
        f"{_name(dtype)}: a product of {_OUTS} × {_WIDTH} with {_join(_ROWS)} rows takes "
        f"{format_s(bf16_s)} in bfloat16 and {format_s(fp32_s)} in float32 on average."
    )


def measure_rows(candidates: list[Candidate]) -> list[dict[int, float]]:
    """For each candidate, rows → least seconds of one product over weights that no cache holds.

    The candidates take turns, so that whatever else runs on the machine disturbs all alike.
    """
    sets = {dtype: _weights(dtype) for _, dtype, _ in candidates}
    least = [dict.fromkeys(_ROWS, float("inf")) for _ in candidates]
    began = time.perf_counter()
    for _ in range(_NUM_SWEEPS):
        for seconds, (_, dtype, ops) in zip(least, candidates, strict=True):
            for rows in _ROWS:
                seconds[rows] = min(seconds[rows], _sweep(ops, sets[dtype], rows))
        if time.perf_counter() - began > _BUDGET_S:
            break
    return least


def _sweep(ops: Ops, weights: list[Tensor], rows: int) -> float:
    x_TD = torch.ones(rows, weights[0].shape[1], dtype=weights[0].dtype)
    start = time.perf_counter()
    for w_OD in weights:
        ops.linear(x_TD, w_OD, None)
    return (time.perf_counter() - start) / len(weights)


def _weights(dtype: torch.dtype) -> list[Tensor]:
    count = _SET_BYTES // (_OUTS * _WIDTH * dtype.itemsize)
    return list(torch.full((count, _OUTS, _WIDTH), 0.01, dtype=dtype).unbind())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _join(rows: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"


def _times(seconds: dict[int, float]) -> str:
    return " / ".join(format_s(value) for value in seconds.values())
