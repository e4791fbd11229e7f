"""The table of a large package's files names what is there, each once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_files_of_attribution_that_have_a_place_are_there() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    section = text.split("## Inside `attribution/`\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    named = Counter(name for row in rows for name in re.findall(r"`(\w+\.py)`", row))
    there = {path.name for path in (ROOT / "kvcanary_cli" / "attribution").glob("*.py")}
    assert len(named) > len(there) // 2
    assert set(named) <= there
    assert set(named.values()) == {1}
