"""What the documents show is what the tool prints today."""

from __future__ import annotations

import re

import pytest

from tests.tools.refresh_docs import BLOCK, ROOT, commands, run

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    ROOT / "configs" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SHOWN = [
    pytest.param(command, shown, id=f"{path.name}:{command[:60]}")
    for path in DOCUMENTS
    for block in BLOCK.findall(path.read_text())
    for command, shown in commands(block)
]


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_command_prints_what_is_shown(command: str, shown: str) -> None:
    printed = run(command, shown)
    if printed is None:
        assert not shown.strip(), "output is shown for a command that is not run here"
        return
    assert printed == shown.rstrip(), "refresh with: python tests/tools/refresh_docs.py FILE"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path) -> None:  # type: ignore[no-untyped-def]
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (path.parent / target).exists(), target


def test_readme_shows_the_everyday_commands() -> None:
    text = (ROOT / "README.md").read_text()
    for words in (
        "make demo",
        "make test",
        "kvcanary replay",
        "kvcanary trace info",
        "kvcanary trace cut",
    ):
        assert words in text
