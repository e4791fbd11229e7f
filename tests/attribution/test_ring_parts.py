"""Several parts of one recording in a call: the report says what it does with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.writer import open_writer
from tests.attribution.events import life, numbered, rank_head

if TYPE_CHECKING:
    from pathlib import Path


def _write(
    folder: Path, name: str, rank: int, *, mid_run: bool, runs: bool = True, ended: bool = False
) -> None:
    head: dict[str, Any] = rank_head(rank) | ({"starts_mid_run": True} if mid_run else {})
    path = folder / f"{name}.kvtrace"
    with open_writer(path, parse_header(head, str(path))) as writer:
        events = life("A", [11, 12], [1, 2], row=1, step=1) if runs else []
        if ended:
            events.append({"kind": "recording_ended", "reason": "the disk is full"})
        for event in numbered(events):
            writer.write_event(event)


@pytest.mark.parametrize(
    ("names", "mid_run", "told"),
    [
        (["tp0", "tp0.2"], [False, True], 1),
        (["tp0.5", "tp0.6"], [True, True], 1),
        (["tp0", "tp0.kept1.2", "tp0.3"], [False, True, True], 1),
        # A second server under the same name of recording is another recording.
        (["tp0", "tp0.2"], [False, False], 0),
        (["tp0", "other.2"], [False, True], 0),
        (["tp0"], [True], 0),
    ],
)
def test_parts_are_told(
    names: list[str], mid_run: list[bool], told: int, tmp_path: Path, capsys: Any
) -> None:
    for name, later in zip(names, mid_run, strict=True):
        _write(tmp_path, name, 0, mid_run=later)
    assert main(["replay", str(tmp_path), "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["coverage"]["notes"]
    assert len([note for note in notes if "parts of one recording" in note]) == told
    main(["replay", str(tmp_path)])
    assert ("parts of one recording" in " ".join(capsys.readouterr().out.split())) is bool(told)


def test_parts_of_two_ranks_are_two_recordings(tmp_path: Path, capsys: Any) -> None:
    for rank in (0, 1):
        _write(tmp_path, f"tp{rank}", rank, mid_run=False)
        _write(tmp_path, f"tp{rank}.2", rank, mid_run=True)
    main(["replay", str(tmp_path), "--format", "json"])
    notes = json.loads(capsys.readouterr().out)["coverage"]["notes"]
    assert len([note for note in notes if "2 parts of one recording" in note]) == 2


@pytest.mark.parametrize(
    ("names", "mid_run", "runs", "code"),
    [
        # What is left behind a ring that was kept as the server stopped.
        (["tp0.kept1", "tp0.2"], [False, True], [True, False], 0),
        (["tp0.kept1.3", "tp0.4"], [True, True], [True, False], 0),
        (["tp0", "tp0.2", "tp0.3"], [False, True, True], [True, False, False], 0),
        # Nothing ran in any of them; or it is another recording, of another name or begun anew.
        (["tp0", "tp0.2"], [False, True], [False, False], 5),
        (["tp0", "other.2"], [False, True], [True, False], 5),
        (["tp0", "tp0.2"], [False, False], [True, False], 5),
        (["tp0", "tp0.2"], [False, True], [False, True], 5),
    ],
)
def test_a_later_part_in_which_nothing_ran_counts_as_nothing(
    names: list[str], mid_run: list[bool], runs: list[bool], code: int, tmp_path: Path
) -> None:
    for name, later, ran in zip(names, mid_run, runs, strict=True):
        _write(tmp_path, name, 0, mid_run=later, runs=ran)
    assert main(["replay", str(tmp_path), "-q"]) == code


def test_a_part_that_ended_early_is_not_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "tp0", 0, mid_run=False)
    _write(tmp_path, "tp0.2", 0, mid_run=True, runs=False, ended=True)
    assert main(["replay", str(tmp_path), "-q"]) == 5
