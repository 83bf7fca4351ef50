"""Inspection of a pair and of the run around it: plain JSON, no torch, no weights read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, TARGET, changed, drafter_shapes, target_shapes, write_checkpoint

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.cli import run_facts
from truedraft.cli.inspect_pair import inspect
from truedraft.cli.run_facts import make_run_facts, read_gpu, with_this_machine
from truedraft.contract.finding import Severity
from truedraft.diagnosis.facts import RunFacts
from truedraft.errors import CheckpointError, ConfigError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"


def test_a_fitting_pair(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "t", TARGET, target_shapes())
    found = inspect(write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes()), target)
    assert found.fits and found.findings == ()
    said = json.loads(json.dumps(found.to_json()))
    block = said["drafter"]["values"]["block_len"]
    assert block == {"value": 8, "from": {"kind": "key", "where": "config.json: block_size"}}
    assert said["drafter"]["tensors"]["num_tensors"] == 25 and said["engine"] == {
        "name": "local",
        "version": None,
    }


def test_a_drafter_alone() -> None:
    found = inspect(demo_drafter_path())
    assert found.target is None and found.fits
    assert found.to_json()["drafter"]["tensors"]["num_values"] == pytest.approx(12.3e6, rel=0.01)


def test_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    found = inspect(demo_drafter_path(), CONFIGS / "qwen3-8b")
    assert not found.fits and found.findings[0].rule == "pair.other_target"
    assert [one for one in found.findings if one.severity is Severity.FAIL] == [found.findings[0]]


def test_a_gap_is_a_finding_and_no_exception(tmp_path: Path) -> None:
    config = changed(DRAFTER, dflash_config__target_layer_ids=...)
    found = inspect(write_checkpoint(tmp_path / "d", config, drafter_shapes()))
    assert [one.rule for one in found.findings] == ["capture.missing"]
    assert found.to_json()["drafter"]["missing"] == ["capture_layers"]


def test_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no drafter at"):
        inspect(tmp_path / "nothing")


def test_inspecting_does_not_import_torch() -> None:
    code = (
        "import sys; from truedraft.cli.inspect_pair import inspect; inspect(sys.argv[1], sys.argv[2]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    pair = [str(CONFIGS / "qwen3.6-27b-dflash"), str(CONFIGS / "qwen3.6-27b")]
    assert subprocess.run([sys.executable, "-c", code, *pair], check=False).returncode == 0


def test_a_header_of_a_55_gb_target_is_read_without_its_weights(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"model.embed_tokens.weight": (152064, 8192), "lm_head.weight": (152064, 8192)}
    shapes |= {f"model.layers.{i}.mlp.up_proj.weight": (400_000, 1024) for i in range(64)}
    config = changed(
        TARGET, num_hidden_layers=64, hidden_size=8192, vocab_size=152064, tie_word_embeddings=False
    )
    target = write_checkpoint(tmp_path / "t", config, shapes)
    assert (target / "model.safetensors").stat().st_size > 55e9
    found = inspect(demo_drafter_path(), target)
    assert found.target is not None and found.target.get("num_layers") == 64 and not found.fits


def test_make_run_facts() -> None:
    run = make_run_facts(
        "vllm", "0.25.1", command="vllm serve m --max-num-seqs 8", flags={"max-num-seqs": 16}
    )
    assert (run.engine, run.version, run.flags["max-num-seqs"]) == ("vllm", (0, 25, 1), 16)
    assert make_run_facts() == RunFacts()


@pytest.mark.parametrize(("engine", "version"), [("vLLM2", None), ("vllm", "newest")])
def test_make_run_facts_refuses(engine: str, version: str | None) -> None:
    with pytest.raises(ConfigError):
        make_run_facts(engine, version)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    run = with_this_machine(RunFacts(engine="vllm", version=(0, 33)))
    assert run.packages["python"].startswith("3.") and "torch" in run.packages and run.version == (0, 33)
    assert run.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1" and run.modules["flash_attn"] in (True, False)


def test_another_interpreter(tmp_path: Path) -> None:
    run = with_this_machine(RunFacts(engine="vllm"), Path(sys.executable))
    assert run.packages["torch"] and set(run.modules) == set(run_facts.MODULES)
    with pytest.raises(ConfigError, match="cannot be asked"):
        with_this_machine(RunFacts(), tmp_path / "no-python")


def test_a_gpu_is_read_through_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda _: object())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: b"NVIDIA H200")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda _: (9, 0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: type("M", (), {"total": 150})())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.65.06")
    gpu = read_gpu()
    assert gpu is not None and gpu.driver == "580.65.06"
    assert (gpu.name, gpu.memory_bytes, gpu.compute_capability, gpu.count) == (
        "NVIDIA H200",
        150,
        (9, 0),
        2,
    )


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert read_gpu() is None
