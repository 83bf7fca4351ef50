"""The command table, its help, its start-up time, and usage errors."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from truedraft.cli import main
from truedraft.cli.exit_codes import MEANINGS

HEAVY = ("torch", "transformers", "fastapi", "numpy", "httpx")


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    "code",
    [
        "import truedraft",
        "import truedraft.cli.main",
        "from truedraft.cli.main import run; run(['--help'])",
        "from truedraft.cli.main import run; run(['serve', '--help'])",
        "from truedraft.cli.main import run; run(['generate', '--demo'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    ask = f"{code}\nimport sys, json\nsys.stderr.write('LOADED' + json.dumps([*sys.modules]))"
    modules = json.loads(child(ask).stderr.split("LOADED")[1])
    assert not {name for name in modules if name.split(".")[0] in HEAVY}


def cpu_s(code: str) -> float:
    """Least CPU time of five runs, in seconds: the least that others' work disturbs."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_takes_less_than_a_third_of_a_second() -> None:
    took_s = cpu_s("from truedraft.cli.main import run; run(['--help'])")
    if took_s > 0.3:  # a slow machine: then what we add to typer and rich must be little
        assert took_s < 1.35 * cpu_s(
            "import typer.rich_utils, rich.markdown; typer.rich_utils._get_rich_console()"
        )


def test_help_documents_every_exit_code_and_command(truedraft: Any) -> None:
    shown = truedraft("--help")
    assert shown.code == 0
    for code, meaning in MEANINGS.items():
        assert re.search(rf"\b{code}\s+{re.escape(meaning)}", shown.out), code
    for name in main.COMMANDS:
        assert name in shown.out


def commands() -> dict[str, Any]:
    """Every command, groups opened: "demo-pair fetch" → its click command."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(main.build_app()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found.update({f"{name} {sub}": one for sub, one in inner.items()} if inner else {name: command})
    return found


def test_every_command_has_examples_and_json() -> None:
    for name, command in commands().items():
        assert "Examples:" in command.help, name
        assert f"truedraft {name}" in command.help, name
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_table_says_the_same_as_the_commands() -> None:
    tree = typer.main.get_command(main.build_app()).commands  # type: ignore[attr-defined]
    for name, (_, first_line) in main.COMMANDS.items():
        assert tree[name].help.split("\n\n")[0] == first_line, name


def test_no_arguments_show_the_help(truedraft: Any) -> None:
    for args, path in (((), "truedraft"), (("demo-pair",), "truedraft demo-pair")):
        ran = truedraft(*args)
        assert ran.code == 2
        assert f"Usage: {path}" in ran.out
        assert ran.err == f"error: No command was named. See `{path} --help`.\n"


def test_version(truedraft: Any) -> None:
    from truedraft import __version__

    assert truedraft("--version").out == f"truedraft {__version__}\n"
    assert truedraft("version", "--json").json["truedraft"] == __version__
    assert "torch" in truedraft("version").out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'? See `truedraft --help`."),
        (["generate", "--promt", "x"], "No such option"),
        (["generate", "--max-tokens", "many"], "max-tokens"),
        (["generate", "--prompt"], "requires an argument"),
    ],
)
def test_wrong_use_is_code_2_and_one_line(truedraft: Any, args: list[str], said: str) -> None:
    ran = truedraft(*args)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert "--help" in ran.err


def test_wrong_use_with_json_is_an_object_too(truedraft: Any) -> None:
    ran = truedraft("generate", "--json", "--no-such-thing")
    assert ran.json["error"]["exit_code"] == 2
    assert ran.json["error"]["type"] == "UsageError"


def test_shell_completion_knows_commands_and_choices() -> None:
    for words, expected in (("truedraft ", "demo-pair"), ("truedraft serve --dtype ", "bfloat16")):
        environment = {
            "_TRUEDRAFT_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split())),
        }
        code = f"import os; os.environ.update({environment!r}); from truedraft.cli.main import run; run([])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert expected in done.stdout, done.stderr
