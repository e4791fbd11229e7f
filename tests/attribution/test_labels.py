"""What a report says of how damage was met, and who suffers from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.report.finding_block import block_lines
from kvcanary_cli.report.finding_scene import scene_dict
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose
from tests.attribution.test_consequences import FAULTS, HEAD_P, _in_order
from tests.attribution.test_takeovers import TWO

Event = dict[str, Any]
LABELS = {"READ", "WRITE", "ALLOC", "FREE", "OWN", "PUBLISH", "MATCH", "CHECK"}
UNREAD: dict[str, tuple[list[Event], str]] = {
    "double_alloc": ([{"kind": "alloc", "owner": "C", "slots": [3]}], "ALLOC"),
    "double_free": ([{"kind": "free", "owner": "B", "slots": [3]}] * 2, "FREE"),
    "free_by_non_owner": ([{"kind": "free", "owner": "A", "slots": [3]}], "FREE"),
    "own_by_non_owner": ([{"kind": "own", "from": "A", "owner": "C", "slots": [3]}], "OWN"),
    "publish_of_free": (
        [
            {"kind": "free", "owner": "B", "slots": [3]},
            {"kind": "own", "from": "B", "owner": "tree", "slots": [3]},
        ],
        "PUBLISH",
    ),
    "phantom_hit": (
        [
            {"kind": "free", "owner": "B", "slots": [3]},
            {"kind": "match", "req": "C", "entry": "e", "slots": [3]},
        ],
        "MATCH",
    ),
    "wrong_pages": (
        [{"kind": "copy", "src": [1], "dst": [3], "via": "d2d", "by": "A"}],
        "WRITE",
    ),
}


def _labels(diagnosis: Any) -> list[tuple[str, str]]:
    (finding,) = diagnosis.findings
    return list(block_lines(finding, diagnosis, 1))


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_what_nobody_read_is_not_called_read(name: str) -> None:
    acts, label = UNREAD[name]
    diagnosis = diagnose(HEAD_P, numbered([*TWO, *acts]))
    (finding,) = diagnosis.findings
    assert finding.subtype == name
    lines = _labels(diagnosis)
    assert [text for text, _ in lines if text in LABELS] == [label]
    assert dict(lines)[label].startswith("of slot 3 by ")
    assert dict(lines)["BLAST RADIUS"] == "no request read the damage in this trace"
    assert finding.facts is not None
    assert scene_dict(finding.facts)["access"] == label.lower()


@pytest.mark.parametrize("name", ["double_alloc", "free_by_non_owner", "own_by_non_owner"])
def test_an_ended_owner_loses_nothing(name: str) -> None:
    acts, _ = UNREAD[name]
    diagnosis = diagnose(HEAD, numbered([*TWO, {"kind": "finish", "req": "B"}, *acts]))
    (finding,) = diagnosis.findings
    assert finding.victim is None
    # Whoever ends later was running when its slot was taken.
    diagnosis = diagnose(HEAD, numbered([*TWO, *acts, {"kind": "finish", "req": "B"}]))
    (finding,) = diagnosis.findings
    assert finding.victim == "B"


def test_an_ended_reader_is_not_affected() -> None:
    """The launched overrun of B reads what C has overwritten by then."""
    events = [
        {"kind": "alloc", "owner": "B", "slots": [9]},
        *TWO,
        {"kind": "free", "owner": "B", "slots": [3, 4]},
        {"kind": "finish", "req": "B"},
        *life("C", [7, 8], [3, 4], row=3, step=3),
        *[e for e in decode("B", 5, 9, row=2, position=2, step=4) if e["kind"] != "alloc"],
    ]
    diagnosis = diagnose(HEAD, numbered(events))
    (finding,) = diagnosis.findings
    assert (finding.victim, list(finding.blast_radius)) == ("B", [])
    assert any("B had ended" in text for text in finding.evidence)
    assert dict(_labels(diagnosis))["BLAST RADIUS"].startswith("no request that still ran")


@given(st.sampled_from(FAULTS), st.sampled_from(FAULTS))
def test_every_finding_has_one_truthful_label(first: Any, second: Any) -> None:
    events = _in_order([first(1, [10, 11, 12, 13], 1)[0], second(2, [30, 31, 32, 33], 1)[0]], [])
    reading = {e["i"] for e in events if e["kind"] == "forward"}
    diagnosis = diagnose(HEAD_P, events)
    for finding in diagnosis.findings:
        labels = [t for t, _ in block_lines(finding, diagnosis, 1) if t in LABELS]
        assert len(labels) == 1
        assert finding.facts is not None
        assert (labels[0] in ("READ", "WRITE")) == (finding.facts.event in reading)
        assert bool(finding.blast_radius) <= (finding.facts.event in reading)
