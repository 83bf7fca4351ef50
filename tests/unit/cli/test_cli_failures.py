"""Errors: which exit code, what is printed, and what a bug leaves behind."""

from __future__ import annotations

import errno
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from truedraft import errors
from truedraft.cli.exit_codes import exit_code_of
from truedraft.cli.failures import report_failure
from truedraft.cli.main import _open_missing_streams


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.RequestError("x"), 2),
        (errors.PromptTooLongError("x"), 2),
        (errors.UnsupportedError("x"), 2),
        (errors.CheckpointError("x"), 5),
        (errors.PairingError("x"), 5),
        (errors.CapacityError("x"), 6),
        (errors.BackendError("x"), 6),
        (errors.BackendStartError("x"), 6),
        (errors.BackendTimeoutError("x"), 6),
        (ValueError("x"), 1),
    ],
)
def test_every_error_class_has_its_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_every_class_of_the_tree_is_mapped() -> None:
    classes = [
        one for one in vars(errors).values() if isinstance(one, type) and one is not errors.TruedraftError
    ]
    assert len(classes) > 8
    assert all(exit_code_of(one("x")) != 1 for one in classes)


def test_all_four_parts_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.ConfigError("No such dtype", seen="float12", allowed="float32", remedy="Say float32")
    assert report_failure(error, as_json=False) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error: No such dtype: got float12.\n  allowed: float32\n  what to do: Say float32\n"
    )


def test_json_error_goes_to_stdout_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    report_failure(errors.RequestError("Bad", param="top_p", seen=3.0), as_json=True)
    printed = capsys.readouterr()
    body = json.loads(printed.out)["error"]
    assert body["type"] == "RequestError"
    assert body["param"] == "top_p"
    assert body["seen"] == 3.0
    assert body["exit_code"] == 2
    assert printed.err.startswith("error: Bad")


def _bug() -> Exception:
    try:
        raise ValueError("something\nodd")
    except ValueError as error:
        return error


def test_a_bug_is_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path))
    monkeypatch.delenv("TRUEDRAFT_DEBUG", raising=False)
    assert report_failure(_bug(), as_json=False) == 1
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    [file] = (tmp_path / "crashes").iterdir()
    assert str(file) in printed.err
    assert "ValueError: something" in file.read_text(encoding="utf-8")


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("TRUEDRAFT_DEBUG", "1")
    report_failure(_bug(), as_json=False)
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_in_an_unwritable_place_still_ends_with_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(blocked))
    assert report_failure(_bug(), as_json=True) == 1
    printed = capsys.readouterr()
    assert "TRUEDRAFT_DEBUG=1" in printed.err
    assert json.loads(printed.out)["error"]["traceback_file"] is None


def test_out_of_memory_is_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(MemoryError(), as_json=False) == 6
    assert "memory" in capsys.readouterr().err


def test_a_full_disk_is_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(OSError(errno.ENOSPC, "No space left on device"), as_json=False) == 6
    assert "No room left on the disk" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_fault(closed: str) -> None:
    program = (
        "import sys; from truedraft.cli import main\n"
        "main.build_app = lambda loaded: lambda **said: sys.stdout.write('x') + sys.stderr.write('x')\n"
        "sys.argv = ['truedraft']; main.main()"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {closed}"
    written = subprocess.run(["/bin/sh", "-c", command], check=False).returncode
    assert written == 2  # characters, to streams that go nowhere


def test_missing_streams_take_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    _open_missing_streams()
    with sys.stdout as opened:
        assert opened.write("x") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_temporary_folder(tmp_path: Path, number: int, code: int) -> None:
    program = (
        "import sys, tempfile, time; from truedraft.cli import main\n"
        "def build(loaded):\n"
        "    with tempfile.TemporaryDirectory(dir=sys.argv[1]):\n"
        "        print('begun', flush=True); time.sleep(30)\n"
        "main.build_app = build; main.main()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(20) == code
    assert list(tmp_path.iterdir()) == []
