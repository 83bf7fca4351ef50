"""`truedraft inspect`, `rules` and `convert` at the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, TARGET, changed, drafter_shapes, target_shapes, write_checkpoint

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.cli.inspect_view import shown
from truedraft.diagnosis.table import RULES

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
DRAFT_27B, TARGET_27B = str(CONFIGS / "qwen3.6-27b-dflash"), str(CONFIGS / "qwen3.6-27b")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    drafter = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    return str(drafter), str(write_checkpoint(tmp_path / "t", TARGET, target_shapes()))


def test_values_origins_tensors_memory_and_the_verdict(pair: tuple[str, str], truedraft: Any) -> None:
    ran = truedraft("inspect", pair[0], "--target", pair[1])
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert any(line.split() == ["block_len", "8", "config.json:", "block_size"] for line in lines)
    assert any("25 of 0.1M values: BF16" in line for line in lines)
    assert "memory for 1 sequence of 2,048 tokens:" in lines and lines[-1] == "the pair fits: no findings"
    value = truedraft("inspect", pair[0], "--target", pair[1], "--json").json
    assert value["fits"] is True and value["fix"] is None
    assert value["drafter"]["values"]["block_len"]["value"] == 8
    assert value["memory"]["total_bytes"] > value["memory"]["target_weights_bytes"]


def test_a_misfit_is_code_5(pair: tuple[str, str], tmp_path: Path, truedraft: Any) -> None:
    other = str(write_checkpoint(tmp_path / "o", changed(DRAFTER, num_target_layers=99), drafter_shapes()))
    ran = truedraft("inspect", other, "--target", pair[1])
    assert ran.code == 5 and "FAIL  " in ran.out and "the pair does not fit" in ran.out
    assert truedraft("inspect", other, "--target", pair[1], "--json").json["fits"] is False


def test_one_alone(pair: tuple[str, str], truedraft: Any) -> None:
    assert truedraft("inspect", "--target", pair[1]).code == 0
    assert "the drafter by itself fits" in truedraft("inspect", pair[0]).out
    assert truedraft("inspect", "--target", pair[1], "--json").json["drafter"] is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "Nothing to inspect was named"),
        (("x", "--demo"), "--demo brings its own pair"),
        (("x", "--engine", "tgi"), "Unknown engine: got tgi"),
        (("x", "--engine", "vllm", "--engine-version", "newest"), "version has no number"),
        (("x", "--max-model-len", "0"), "--max-model-len is out of range"),
        (("x", "--gpu-memory", "nan"), "--gpu-memory is out of range"),
        (("x", "--engine", "sglang", "--command", "vllm serve m"), "different engines"),
        (("x", "--command", "make coffee"), "no launch command"),
        (("--target", "x", "--fix", "y"), "--fix corrects a drafter"),
    ],
)
def test_wrong_use(args: tuple[str, ...], said: str, truedraft: Any) -> None:
    ran = truedraft("inspect", *args)
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) <= 3


def test_the_27b_pair_on_vllm_0251(truedraft: Any) -> None:
    """Mixed sliding and full layers are refused under the V1 runner; and what to do."""
    ran = truedraft(
        "inspect", DRAFT_27B, "--target", TARGET_27B, "--engine", "vllm", "--engine-version", "0.25.1"
    )
    assert ran.code == 5
    block = ran.out.split("FAIL  ")[1]
    assert block.startswith("Mixed sliding and full layers are refused under the V1 runner  [vllm.mixed_v1]")
    assert "Upgrade to vLLM 0.26 or newer" in block and "vllm 0.25.1 uses the V1 model runner" in block


def test_guessed_capture_layers(tmp_path: Path, truedraft: Any) -> None:
    """[1, 17, 33, 49, 63]: no known drafter has them, 63 is the last layer, `recover` measures."""
    config = json.loads((CONFIGS / "qwen3.6-27b-dflash" / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [1, 17, 33, 49, 63]
    draft = write_checkpoint(tmp_path / "guessed", config)
    found = truedraft(
        *("inspect", str(draft), "--target", TARGET_27B, "--engine", "vllm", "--engine-version", "0.25.1"),
        "--json",
    ).json["findings"]
    by_rule = {one["rule"]: one for one in found}
    assert by_rule["capture.unknown_ids"]["severity"] == "warn"
    assert "Qwen3.6-27B-DFlash: [1, 16, 31, 46, 61]" in " ".join(by_rule["capture.unknown_ids"]["evidence"])
    assert "63 is the last layer" in " ".join(by_rule["capture.last_layer"]["evidence"])
    assert "`truedraft recover" in by_rule["capture.unknown_ids"]["remedy"]
    order = [one["severity"] for one in found]
    assert order == sorted(order, key=("fail", "warn", "info").index)


def test_a_command_names_engine_pair_and_flags(truedraft: Any) -> None:
    said = json.dumps({"method": "dflash", "model": DRAFT_27B, "num_speculative_tokens": 15})
    command = f"vllm serve {TARGET_27B} --max-num-seqs 256 --max-num-batched-tokens 2048 -sc '{said}'"
    value = truedraft("inspect", "--command", command, "--engine-version", "0.26.0", "--json").json
    assert value["engine"] == {"name": "vllm", "version": "0.26.0"} and value["fits"] is False
    assert value["memory"]["num_seqs"] == 256
    assert "budget.too_small" in [one["rule"] for one in value["findings"]]


def test_sizes_to_plan_for_are_no_command(truedraft: Any) -> None:
    value = truedraft(
        *("inspect", DRAFT_27B, "--engine", "vllm", "--max-model-len", "4096", "--max-num-seqs", "4"),
        "--json",
    ).json
    assert "command.no_speculation" not in [one["rule"] for one in value["findings"]]


def test_memory_against_one_gpu(truedraft: Any) -> None:
    pair = (DRAFT_27B, "--target", TARGET_27B)
    small = truedraft("inspect", *pair, "--gpu-memory", "40", "--max-model-len", "32768")
    assert small.code == 5 and "[memory.too_large]" in small.out and "40.00 GiB (as said)" in small.out
    large = truedraft("inspect", *pair, "--gpu-memory", "141", "--max-model-len", "32768")
    assert large.code == 0 and "[memory." not in large.out.replace("[memory.recurrent]", "")


def test_without_a_config_it_says_what_shapes_cannot_say(tmp_path: Path, truedraft: Any) -> None:
    draft = write_checkpoint(tmp_path / "d", None, drafter_shapes(layers=5, hidden=5120, captured=5))
    ran = truedraft("inspect", str(draft), "--target", TARGET_27B)
    assert ran.code == 5
    told = ran.out.split("shapes cannot say:")[1].split("findings below")[0]
    for name in ("capture_layers", "mask_token_id", "rope_theta", "layer_types", "sample_from_anchor"):
        assert name in told
    assert "[1, 16, 31, 46, 61]" in ran.out and "truedraft recover" in ran.out
    assert "fc.weight" in ran.out and "num_layers            5" in ran.out


def test_fix_writes_a_corrected_copy_and_shows_the_diff(tmp_path: Path, truedraft: Any) -> None:
    config = changed(DRAFTER, architectures=["Qwen3DFlashDraftModel"], dtype="float16")
    draft = write_checkpoint(tmp_path / "d", config, drafter_shapes())
    ran = truedraft("inspect", str(draft), "--fix", str(tmp_path / "fixed"))
    assert '-  "dtype": "float16"' in ran.out and '+  "dtype": "bfloat16"' in ran.out
    assert json.loads((tmp_path / "fixed" / "config.json").read_text())["architectures"] == [
        "DFlashDraftModel"
    ]
    assert (tmp_path / "fixed" / "model.safetensors").is_symlink()
    assert truedraft("inspect", str(tmp_path / "fixed"), "--json").json["findings"] == []
    again = truedraft("inspect", str(draft), "--fix", str(tmp_path / "fixed"))
    assert again.code == 2 and "exists already" in again.err


def test_fix_without_anything_certain(pair: tuple[str, str], tmp_path: Path, truedraft: Any) -> None:
    ran = truedraft("inspect", pair[0], "--fix", str(tmp_path / "fixed"))
    assert ran.code == 0 and "nothing to correct with certainty" in ran.out
    assert not (tmp_path / "fixed").exists()
    bare = write_checkpoint(tmp_path / "bare", None, drafter_shapes())
    ran = truedraft("inspect", str(bare), "--fix", str(tmp_path / "fixed"))
    assert ran.code == 5 and "truedraft recover DRAFT --target TARGET" in ran.err


def test_a_55_gb_target_in_two_seconds_and_300_mb(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"model.embed_tokens.weight": (152064, 8192), "lm_head.weight": (152064, 8192)}
    shapes |= {f"model.layers.{i}.mlp.up_proj.weight": (400_000, 1024) for i in range(64)}
    changes = {
        "num_hidden_layers": 64,
        "hidden_size": 8192,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    }
    target = write_checkpoint(tmp_path / "t", changed(TARGET, **changes), shapes)
    code = (
        "import sys; from truedraft.cli import main; main.run(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules); "
        # Not getrusage: its peak is inherited from the process that started this one.
        "status = open('/proc/self/status').read(); "
        "peak_kib = int(status.split('VmHWM:')[1].split()[0]); "
        "sys.exit(peak_kib > 300 * 1024)"
    )
    args = ["inspect", str(demo_drafter_path()), "--target", str(target), "--json"]
    best = 1e9
    for _ in range(2):  # the machine may be busy
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True)
        best = min(best, time.perf_counter() - started)
    assert best < 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 9, 17), "1, 9, 17"),
        ((None,) * 36, "None × 36"),
        (("a", "a", "a", "b") * 4, "(a × 3, b) × 4"),
        ((2048, 2048, 2048, 2048, None), "2048 × 4, None"),
        ((), ""),
        (True, "True"),
    ],
)
def test_lists_are_shown_short(value: Any, text: str) -> None:
    assert shown(value) == text


def test_rules(truedraft: Any) -> None:
    listed = truedraft("rules")
    assert listed.code == 0 and all(rule.id in listed.out for rule in RULES)
    assert len(truedraft("rules", "--json").json) == len(RULES) >= 70
    one = truedraft("rules", "capture.last_layer")
    assert one.out.startswith("capture.last_layer: ") and "  remedy:   " in one.out
    assert {rule["topic"] for rule in truedraft("rules", "capture layers", "--json").json} == {
        "Capture layers"
    }
    wrong = truedraft("rules", "capture.lastlayer")
    assert wrong.code == 2 and "capture.last_layer" in wrong.err


def test_convert_and_back(tmp_path: Path, truedraft: Any) -> None:
    draft = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    value = truedraft("convert", str(draft), str(tmp_path / "s"), "--to", "speculators", "--json").json
    assert (value["capture_layers"], value["boundary_ids"]) == ([1, 4, 6], [2, 5, 7])
    said = truedraft("convert", str(tmp_path / "s"), str(tmp_path / "z"), "--to", "zlab").out
    assert "speculators → zlab" in said and "2, 5, 7" in said
    before, after = (truedraft("inspect", str(where), "--json").json for where in (draft, tmp_path / "z"))
    assert {key: one["value"] for key, one in before["drafter"]["values"].items()} == {
        key: one["value"] for key, one in after["drafter"]["values"].items()
    }


def test_convert_refuses(tmp_path: Path, truedraft: Any) -> None:
    draft = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    assert truedraft("convert", str(draft), str(tmp_path / "x"), "--to", "gguf").code == 2
    assert truedraft("convert", str(draft), str(draft), "--to", "zlab").code == 2
    ran = truedraft("convert", str(tmp_path / "none"), str(tmp_path / "x"), "--to", "zlab")
    assert ran.code == 5 and not (tmp_path / "x").exists()
    shutil.rmtree(draft)
