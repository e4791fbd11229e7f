"""Slots that are lost to the pool are reported, and not called corrupt content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from pathlib import Path


def _last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], last: dict[str, Any]) -> str:
    events = [*life("A", [1, 2, 3], [1, 2, 3], row=1, step=1), {"kind": "finish", "req": "A"}]
    events += [last, *life("B", [4], [4], row=2, step=2)]
    for k in range(3):
        events += decode("B", 5 + k, 5 + k, row=2, position=1 + k, step=3 + k)
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, [HEAD, *numbered(events)])))
    assert main(["replay", str(path)]) == 1
    return capsys.readouterr().out.splitlines()[-1]


def test_a_leak_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = _last_line(tmp_path, capsys, {"kind": "free", "owner": "A", "slots": [1, 2]})
    assert line.startswith("SUMMARY: kvcanary replay: LEAK: 0 findings")
    assert "1 broken ownership rule" in line


def test_a_leak_beside_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = _last_line(tmp_path, capsys, {"kind": "free", "owner": "Z", "slots": [1, 2]})
    assert line.startswith("SUMMARY: kvcanary replay: CORRUPT: 1 finding")


@pytest.mark.parametrize("via", ["store", "load"])
@pytest.mark.parametrize("end", [None, "transfer_end", "transfer_fail"])
def test_what_a_transfer_under_way_keeps_is_no_leak(via: str, end: str | None) -> None:
    """A server that is stopped while it sends leaks nothing; which slots that holds for is said."""
    begin = {"kind": "transfer_begin", "id": "T1", "req": "A", "slots": [1, 2, 3], "via": via}
    events = [*life("A", [1, 2, 3], [1, 2, 3], row=1, step=1), begin]
    events += [{"kind": "finish", "req": "A"}, *life("B", [4], [4], row=2, step=2)]
    for k in range(3):
        events += decode("B", 5 + k, 5 + k, row=2, position=1 + k, step=3 + k)
    events += [] if end is None else [{"kind": end, "id": "T1"}]
    diagnosis = diagnose(HEAD, numbered(events))
    assert [o.what for o in diagnosis.ownership] == ([] if end is None else ["leak"])
    said = [note for note in diagnosis.replay.coverage.notes if "3 slots of requests" in note]
    assert len(said) == (end is None)
