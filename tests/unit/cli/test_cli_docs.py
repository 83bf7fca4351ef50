"""The pages under docs/commands say what the commands say."""

from pathlib import Path

from truedraft.cli.docs import pages, write_pages
from truedraft.cli.main import COMMANDS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "commands"


def test_pages_in_the_tree_are_current() -> None:
    made = pages()
    stale = [
        name
        for name, text in made.items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text("utf-8") != text
    ]
    assert not stale, "run `make docs`"
    assert {file.name for file in DOCS.iterdir()} == set(made)


def test_a_page_has_usage_options_and_examples() -> None:
    page = pages()["generate.md"]
    for said in (
        "truedraft generate [TARGET] [OPTIONS]",
        "`--max-tokens`",
        "| `T` | `0.0` |",
        "Examples:",
        "--raw --json",
    ):
        assert said in page, said
    assert "## truedraft demo-pair fetch" in pages()["demo-pair.md"]
    assert all(f"{name}.md" in pages()["README.md"] for name in COMMANDS)


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    assert len(write_pages(tmp_path)) == len(COMMANDS) + 1
    assert write_pages(tmp_path) == []
