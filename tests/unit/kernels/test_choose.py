from __future__ import annotations

import pytest
import torch

from truedraft.kernels import choose
from truedraft.kernels.native import NativeBuild
from truedraft.kernels.reference import torch_ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measured_choice(dtype: torch.dtype) -> None:
    ops, sentence = choose.choose_ops("cpu", dtype)
    assert sentence.startswith(f"{ops.name} kernels: ")
    assert sentence.endswith(" threads)." if choose.native_ops().ops else ".")


def test_dtype_by_measure() -> None:
    dtype, sentence = choose.measure_dtype("cpu")
    assert dtype in (torch.float32, torch.bfloat16)
    assert sentence.startswith(f"{str(dtype)[6:]}: a product of 3072 × 576 with 1, 4 and 8 rows takes ")


def test_without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "native_ops", lambda: NativeBuild(None, "no native kernels: no C compiler"))
    ops, sentence = choose.choose_ops("cpu", torch.bfloat16)
    assert (ops.name, sentence) == ("torch", "torch kernels: no native kernels: no C compiler.")


def test_the_faster_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    fake = replace(torch_ops(), name="native")
    monkeypatch.setattr(choose, "native_ops", lambda: NativeBuild(fake, "built"))
    # Equal, or a little slower: native, for its independent rows.
    for native_s, winner in ((0.001, "native"), (0.0025, "native"), (0.003, "torch")):
        costs = {"native": native_s, "torch": 0.002}
        monkeypatch.setattr(
            choose,
            "measure_rows",
            lambda candidates, costs=costs: [
                dict.fromkeys((1, 4, 8), costs[name]) for name, _, _ in candidates
            ],
        )
        assert choose.choose_ops("cpu", torch.bfloat16)[0].name == winner


def test_nothing_is_measured_elsewhere() -> None:
    assert choose.choose_ops("cuda:0", torch.bfloat16)[0].name == "torch"
    assert choose.measure_dtype("cuda")[0] == torch.bfloat16
    assert choose.choose_ops("cpu", torch.float16)[0].name == "torch"
