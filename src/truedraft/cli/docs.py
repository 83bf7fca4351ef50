"""`python -m truedraft.cli.docs [FOLDER]`: a Markdown page a command, from its own help; rules and causes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from truedraft.cli.exit_codes import MEANINGS
from truedraft.cli.main import COMMANDS, build_app
from truedraft.diagnosis.render import rules_markdown
from truedraft.diagnosis.render_causes import diagnosis_markdown

DEFAULT_FOLDER = Path("docs/commands")
_NOTE = "<!-- generated: python -m truedraft.cli.docs -->"


def pages() -> dict[str, str]:
    """File name → text, one page a command and an index."""
    tree: Any = typer.main.get_command(build_app())
    made = {f"{name}.md": _command_page(name, tree.commands[name]) for name in COMMANDS}
    return {"README.md": _index(), **made}


def write_pages(folder: Path) -> list[Path]:
    """Write the pages; → those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed: list[Path] = []
    for name, text in pages().items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            changed.append(file)
    return changed


def _index() -> str:
    lines = [_NOTE, "", "# Commands", ""]
    lines += [f"- [`truedraft {name}`]({name}.md): {line}" for name, (_, line) in COMMANDS.items()]
    lines += ["", "## Exit codes", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += [
        "",
        "An error is one message on stderr: what is wrong, the value seen, what is allowed, what to do. "
        'With `--json` it is also `{"error": {…}}` on stdout. '
        "`truedraft --install-completion` sets up completion for the shell in use.",
    ]
    return "\n".join(lines) + "\n"


def _command_page(name: str, command: Any) -> str:
    lines = [_NOTE, "", f"# truedraft {name}", ""]
    inner = getattr(command, "commands", None)
    if inner:
        lines += [*_help_lines(command.help), ""]
        for sub, one in inner.items():
            lines += [f"## truedraft {name} {sub}", "", *_body(f"{name} {sub}", one)]
    else:
        lines += _body(name, command)
    return "\n".join(lines).rstrip() + "\n"


def _body(name: str, command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = " ".join(f"[{one.metavar or one.name.upper()}]" for one in arguments)
    usage = f"truedraft {name} {words} [OPTIONS]".replace("  ", " ")
    lines = ["```", usage, "```", "", *_help_lines(command.help), ""]
    rows = [row for one in command.params if (row := _row(one))]
    if rows:
        lines += ["| option | value | default | what it does |", "| --- | --- | --- | --- |", *rows, ""]
    return lines


def _help_lines(text: str) -> Iterator[str]:
    """The help's paragraphs; blocks that keep their lines become code."""
    for index, paragraph in enumerate(text.split("\n\n")):
        if index:
            yield ""
        if paragraph.startswith("\b"):
            title, *rest = paragraph.removeprefix("\b").strip("\n").split("\n")
            yield from (title, "", "```", *(line.removeprefix("  ") for line in rest), "```")
        else:
            yield paragraph


def _row(parameter: Any) -> str:
    if "--help" in parameter.opts:
        return ""
    is_flag = bool(getattr(parameter, "is_flag", False))
    names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len, reverse=True))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if is_flag else f"`{_value_name(parameter)}`"
    has_default = not is_flag and parameter.default not in (None, (), [], "")
    default = f"`{parameter.default}`" if has_default else ""
    about = parameter.help or ""
    if variable := getattr(parameter, "envvar", None):
        about += f" Also `{variable}`."
    return f"| {names} | {_cell(value)} | {_cell(default)} | {_cell(about)} |"


def _value_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.type.name.upper())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_knowledge(folder: Path) -> list[Path]:
    """Write the pages of rules and of causes; → those that changed."""
    made = {"rules.md": rules_markdown(), "diagnosis.md": diagnosis_markdown()}
    changed = []
    for name, text in made.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            changed.append(file)
    return changed


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    for changed_file in (*write_pages(target), *write_knowledge(target.parent)):
        print(f"wrote {changed_file}")
