"""Times the products of the demo target on this CPU: torch and native kernels, bf16 and fp32.

    python benchmarks/kernels_cpu.py [--threads 2] [--rows 1,2,4,8,16,64,256] [--seconds 0.5]

Weights of each shape are repeated until no cache holds them, as in decoding. Minima over sweeps:
other work on the machine only adds. `× 1 row` is the cost of so many rows over the cost of one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from truedraft.kernels.native import native_ops
from truedraft.kernels.ops import InputWeights, Ops, OutputWeights
from truedraft.kernels.reference import torch_ops
from truedraft.kernels.reference_layer import composed

SHAPES = {
    "qkv": (960, 576),
    "o": (576, 576),
    "gate_up": (3072, 576),
    "down": (576, 1536),
    "fc": (576, 2880),
    "head": (49152, 576),
}
TARGET_LAYERS = 30
TARGET_SHAPES = ("qkv", "o", "gate_up", "down")
SET_BYTES = 64 * 2**20


def time_product(linear: Callable[..., Tensor], weights: list[Tensor], rows: int, seconds: float) -> float:
    """Seconds of one product, best of the sweeps that fit in `seconds` (two at least)."""
    x_TD = torch.randn(rows, weights[0].shape[1]).to(weights[0].dtype)
    best_s, began, sweeps = float("inf"), time.perf_counter(), 0
    # A product of many rows reads little and computes much: a few weights stand for all.
    weights = weights if rows <= 16 else weights[: max(1, len(weights) // 8)]
    while sweeps < 2 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        for w_OD in weights:
            linear(x_TD, w_OD, None)
        best_s = min(best_s, (time.perf_counter() - start) / len(weights))
        sweeps += 1
    return best_s


def measure(
    ops: Ops, dtype: torch.dtype, rows_list: list[int], seconds: float
) -> dict[str, dict[int, float]]:
    """Shape → rows → seconds; prints a line a shape and row count."""
    times: dict[str, dict[int, float]] = {}
    for name, (outs, width) in SHAPES.items():
        size = outs * width * dtype.itemsize
        weights = list(
            torch.randn(max(1, SET_BYTES // size), outs, width).mul_(width**-0.5).to(dtype).unbind()
        )
        times[name] = {rows: time_product(ops.linear, weights, rows, seconds) for rows in rows_list}
        for rows, cost_s in times[name].items():
            print(
                f"{ops.name:7}{str(dtype)[6:]:9} {name:8}{outs:6} × {width:<5}{rows:5}{cost_s * 1e3:10.3f} ms"
                f"{size / cost_s / 1e9:8.1f} GB/s{2e-9 * rows * outs * width / cost_s:8.1f} GFLOP/s"
                f"{cost_s / times[name][rows_list[0]]:7.2f} × {rows_list[0]} row",
                flush=True,
            )
    return times


def time_layers(ops: Ops, dtype: torch.dtype, rows: int, seconds: float) -> float:
    """Seconds of a layer without its attention: both halves, 30 layers' weights in turn, best of sweeps."""
    shapes = [SHAPES[name] for name in TARGET_SHAPES]
    layers = [[torch.full(shape, 0.01, dtype=dtype) for shape in shapes] for _ in range(TARGET_LAYERS)]
    norm_D, x_TD = torch.ones(576, dtype=dtype), torch.randn(rows, 576).to(dtype)
    cos_TH = torch.ones(rows, 64, dtype=dtype)
    best_s, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        for qkv, out, gate_up, down in layers:
            inputs = InputWeights(norm_D, qkv, None, None, None, 1e-5, 9, 3, 64)
            q_TNH, _, _, residual_TD = ops.attention_inputs(x_TD, x_TD, inputs, cos_TH, cos_TH)
            outputs = OutputWeights(out, None, norm_D, gate_up, None, down, None, 1e-5)
            ops.attention_outputs(q_TNH.contiguous(), residual_TD, outputs)
        best_s = min(best_s, (time.perf_counter() - start) / len(layers))
    return best_s


def compare_layers(native: Ops, rows_list: list[int], seconds: float) -> None:
    """Prints a layer as two fused calls beside the same as single operations."""
    print("\nA layer of the demo target without attention, bfloat16, ms by rows:")
    for label, ops in (("native, fused", native), ("native, single", composed(native))):
        times = [time_layers(ops, torch.bfloat16, rows, seconds) for rows in rows_list]
        print(f"{label:18}" + "".join(f"{cost_s * 1e3:9.3f}" for cost_s in times))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,2,3,4,5,8,16,64,256")
    parser.add_argument("--seconds", type=float, default=0.3, help="per shape and row count")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows_list = [int(word) for word in options.rows.split(",")]
    build = native_ops()
    print(f"torch {torch.__version__}; {build.reason}; {options.threads} threads")
    totals = []
    for dtype in (torch.bfloat16, torch.float32):
        for ops in (torch_ops(), build.ops):
            if ops is not None:
                times = measure(ops, dtype, rows_list, options.seconds)
                totals.append((f"{ops.name} {str(dtype)[6:]}", times))
    print("\nAll products of the demo target (30 layers and head), ms by rows:")
    print(f"{'':18}" + "".join(f"{rows:9}" for rows in rows_list))
    for label, times in totals:
        sums = {
            r: sum(times[s][r] for s in TARGET_SHAPES) * TARGET_LAYERS + times["head"][r] for r in rows_list
        }
        print(f"{label:18}" + "".join(f"{cost_s * 1e3:9.1f}" for cost_s in sums.values()))
    if build.ops is not None:
        compare_layers(build.ops, rows_list, options.seconds)


if __name__ == "__main__":
    main()
