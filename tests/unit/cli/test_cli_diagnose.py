"""`truedraft diagnose` at the command line: files, folders, stdin, JSON, bad input."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from diagnosis_cases import SERVING, vllm_line, vllm_metrics

from truedraft.cli import diagnose_sources

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
DRAFT, TARGET = str(CONFIGS / "qwen3.6-27b-dflash"), str(CONFIGS / "qwen3.6-27b")
HEALTHY = (0.929, 0.816, 0.684, 0.571, 0.490, 0.429, 0.357)
FAILED = """INFO 12-01 vLLM API server version 0.24.0
INFO 12-01 Resolved architecture: Qwen3_5ForConditionalGeneration
ERROR 12-01 [core.py] EngineCore failed to start.
ERROR 12-01 [core.py] Traceback (most recent call last):
ERROR 12-01 [core.py] NotImplementedError: DFlash drafters with mixed sliding/full attention require the V2 model runner
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def paste(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_a_failed_start_with_its_configs(tmp_path: Path, truedraft: Any) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED)
    ran = truedraft("diagnose", str(log), DRAFT, TARGET)
    assert ran.code == 0, ran.err
    for said in (
        "engine: vllm 0.24.0",
        "phase reached: config resolved",
        "first error: line 5: ERROR 12-01 [core.py] NotImplementedError: DFlash drafters with mixed",
        "1. Mixed windows need the V2 runner",
        "inspect foresees it (vllm.mixed_v1)",
    ):
        assert said in ran.out
    value = truedraft("diagnose", str(log), DRAFT, TARGET, "--json").json
    assert value["state"] == "failed" and value["first_error"]["line"] == 5
    assert value["causes"][0]["id"] == "printed.windows.runner" and value["causes"][0]["how_sure"] == "likely"
    assert value["version"] == "0.24.0" and value["phase"] == "config resolved"


def test_everything_pasted_together(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    config = (CONFIGS / "qwen3.6-27b-dflash" / "config.json").read_text()
    target = (CONFIGS / "qwen3.6-27b" / "config.json").read_text()
    command = '$ vllm serve m -sc \'{"method": "dflash", "model": "d", "num_speculative_tokens": 15}\'\n'
    captured = "INFO Using Eagle3 auxiliary layers from config: (2, 18, 34, 50, 64)\n"
    line = vllm_line(500, (0.41, 0.25, 0.13))
    paste(monkeypatch, command + config + "\n" + target + "\n" + SERVING + captured + line)
    value = truedraft("diagnose", "--json").json
    assert value["sources"] == [{"name": "stdin", "kinds": ["command", "config", "log"]}]
    assert value["state"] == "misaligned" and value["causes"][0]["id"] == "capture"
    assert "[2, 17, 32, 47, 62]" in value["causes"][0]["for"][0]
    assert value["acceptance"]["by_position"] == [0.41, 0.25, 0.13]
    assert value["flags"]["speculative.num_speculative_tokens"] == 15


def test_two_readings_of_metrics(tmp_path: Path, truedraft: Any) -> None:
    names = []
    for name, rounds, generated in (("a", 100, 500), ("b", 1100, 5800)):
        kept = [int(rate * rounds) for rate in HEALTHY]
        (tmp_path / name).write_text(vllm_metrics(rounds, kept, generated=generated, width=7))
        names.append(str(tmp_path / name))
    ran = truedraft("diagnose", *names)
    assert "acceptance: τ = 5.28" in ran.out and "from two readings of /metrics" in ran.out
    assert "\nAcceptance is healthy\n" in ran.out and "for scale:" in ran.out


def test_the_folders_that_a_command_names_are_read(tmp_path: Path, truedraft: Any) -> None:
    said = json.dumps({"method": "dflash", "model": DRAFT, "num_speculative_tokens": 15})
    (tmp_path / "start.sh").write_text(f"#!/bin/sh\nvllm serve {TARGET} \\\n  -sc '{said}'\n")
    value = truedraft("diagnose", str(tmp_path / "start.sh"), "--engine-version", "0.25.1", "--json").json
    assert value["state"] == "foreseen"
    assert "rule.vllm.mixed_v1" in [cause["id"] for cause in value["causes"]]


def test_it_says_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    paste(monkeypatch, "hello\n")
    ran = truedraft("diagnose", "-")
    assert ran.code == 0 and "do not say what is wrong" in ran.out and "not known:" in ran.out
    paste(monkeypatch, "")
    assert "read: stdin (nothing of use)" in truedraft("diagnose").out


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 1000,
        bytes(range(256)) * 50,
        b"{" * 5000,
        b"\xff\xfe\n{\n}\n",
        b"A" * 300_000,
        b"\x1b[31m\n",
    ],
    ids=["empty", "zeros", "binary", "braces", "not utf-8", "one line", "colour"],
)
def test_any_bytes(data: bytes, monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    paste(monkeypatch, data)
    ran = truedraft("diagnose", "--json")
    assert ran.code == 0 and ran.json["state"] == "unknown" and "\x1b" not in ran.out


def test_a_line_beyond_the_limit_is_cut(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    monkeypatch.setattr(diagnose_sources, "MAX_LINE", 1000)
    paste(monkeypatch, "x" * 5000 + "\nValueError: DFLASH fc.weight shape mismatch\n")
    assert truedraft("diagnose", "--json").json["first_error"]["line"] == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("/none/server.log",), "Cannot read /none/server.log"),
        (("x", "--plain", "odd"), "--plain is out of range"),
        (("x", "--engine-version", "new"), "version has no number"),
    ],
)
def test_wrong_use(args: tuple[str, ...], said: str, truedraft: Any) -> None:
    ran = truedraft("diagnose", *args)
    assert ran.code == 2 and said in ran.err


def test_nothing_named_at_a_terminal(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    ran = truedraft("diagnose")
    assert ran.code == 2 and "Nothing to diagnose was named" in ran.err and "Ctrl-D" in ran.err


def test_bad_files_and_folders(tmp_path: Path, truedraft: Any) -> None:
    loop = tmp_path / "loop.log"
    loop.symlink_to(loop)
    assert truedraft("diagnose", str(loop)).code == 2
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{ not json")
    ran = truedraft("diagnose", str(tmp_path / "broken"))
    assert (
        ran.code == 0 and "broken" in ran.out.split("not known:")[1] and "Traceback" not in ran.out + ran.err
    )
    if os.geteuid() != 0:
        (tmp_path / "secret.log").touch(mode=0)
        assert "Permission denied" in truedraft("diagnose", str(tmp_path / "secret.log")).err


def test_nan_in_a_source_is_valid_json_out(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    paste(
        monkeypatch,
        'vllm:generation_tokens_total NaN\nvllm:num_requests_running +Inf\n{"output_throughput": NaN}\n',
    )
    assert truedraft("diagnose", "--json").json["state"] == "unknown"


def test_a_source_without_an_end(monkeypatch: pytest.MonkeyPatch, truedraft: Any) -> None:
    monkeypatch.setattr(diagnose_sources, "MAX_BYTES", 100_000)
    monkeypatch.setattr(diagnose_sources, "MAX_LINE", 10_000)
    ran = truedraft("diagnose", "/dev/zero", "--json")
    assert ran.code == 0 and ran.json["state"] == "unknown"
