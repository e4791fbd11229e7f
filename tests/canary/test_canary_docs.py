"""The example of docs/canary.md runs and logs what the page shows."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "canary.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_first_run(caplog: pytest.LogCaptureFixture) -> None:
    example, shown = _blocks("python")[0], _blocks("text")[0].strip()
    with caplog.at_level(logging.WARNING, "kvcanary.canary"):
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    lines = [message.split("\n")[0] for message in caplog.messages]
    assert lines[0] == shown
    # HEAD and TAIL each find slot 5 and its successor 6.
    found = [re.search(r"launch_tag=(\S+) .* slot_idx=(\d+)", line) for line in lines]
    assert [match.groups() for match in found if match] == [
        (tag, slot) for tag in ("HEAD_K_FULL", "TAIL_K_FULL") for slot in ("5", "6")
    ]


def test_every_named_piece_exists() -> None:
    import kvcanary_cli.canary as canary

    table = PAGE.read_text(encoding="utf-8").split("## The pieces")[1].split("## Life")[0]
    names = [
        name
        for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert len(names) > 10
    assert [name for name in names if not hasattr(canary, name)] == []
    assert [name for name in canary.__all__ if not hasattr(canary, name)] == []
    assert set(canary.__all__) <= set(dir(canary))


def test_unknown_name_is_an_attribute_error() -> None:
    import kvcanary_cli.canary as canary

    with pytest.raises(AttributeError, match="has no attribute 'Canary'"):
        _ = canary.Canary
