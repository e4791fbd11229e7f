"""What a finding of a broken rule is not: another class, and the fact that excludes it."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary_cli.attribution.result import CLASSES
from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix", "graph"]}
Z = life("Z", [11, 12], [20, 21], row=3, step=1)
FREED: list[Event] = [*Z, {"kind": "free", "owner": "Z", "slots": [20, 21]}]
A = life("A", [11, 12], [5, 6], row=1, step=2)
READS: list[Event] = [
    {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
    {"kind": "alloc", "owner": "B", "slots": [7]},
    {"kind": "map", "row": 2, "start": 0, "slots": [20, 21, 7]},
    extend(4, "B", 2, 2, [13], [7]),
]
EVICTED: list[Event] = [
    *Z,
    {"kind": "own", "from": "Z", "owner": "tree", "slots": [20, 21], "entry": "E"},
    {"kind": "match", "req": "B", "entry": "E", "slots": [20, 21]},
    *READS[:-1],
    {"kind": "free", "owner": "tree", "slots": [20, 21], "reason": "evict"},
    READS[-1],
]
PAD = decode("A", 13, 7, row=1, position=2, step=3)
PAD[-1] |= {
    "reqs": ["A", None],
    "req_pool_indices": [1, 0],
    "seq_lens": [3, 1],
    "input_ids": [13, 0],
    "positions": [2, 0],
    "out_cache_loc": [7, 21],
    "raw_bs": 1,
}


@pytest.mark.parametrize(
    ("events", "rule", "excluded", "fact"),
    [
        (EVICTED, "read_of_free", "double_alloc", "tree gave the slots back at event 9"),
        (
            [*FREED, *READS],
            "read_of_free",
            "use_after_free",
            "slot 20 was free already when the cell was set",
        ),
        (
            [*FREED, {"kind": "free", "owner": "Z", "slots": [20, 21]}],
            "double_free",
            "use_after_free",
            "event 5 gave back slots that were free",
        ),
        (
            [*Z, *A, {"kind": "free", "owner": "A", "slots": [20]}],
            "free_by_non_owner",
            "use_after_free",
            "the slots were Z's when A gave them back, not given back before",
        ),
        (
            [*Z, {"kind": "alloc", "owner": "A", "slots": [20]}],
            "double_alloc",
            "use_after_free",
            "the slots were Z's when A was given them, not given back before",
        ),
        (
            [*Z, *A, *PAD],
            "write_by_non_owner",
            "late_write",
            "a padding row wrote the slots, no request did",
        ),
        (
            [*Z, *A, extend(3, "A", 1, 2, [13], [21])],
            "write_by_non_owner",
            "use_after_free",
            "A did not read the slots, it wrote them",
        ),
        (
            [*Z, {"kind": "match", "req": "B", "entry": "E", "slots": [20, 21]}],
            "match_of_foreign",
            "use_after_free",
            "the slots were Z's already when B matched them",
        ),
        (
            [*FREED, {"kind": "publish", "entry": "E", "req": "Z", "slots": [20, 21]}],
            "publish_of_free",
            "use_after_free",
            "the slots were free already when they were published",
        ),
    ],
)
def test_it_names_a_class_and_a_fact(
    events: list[Event], rule: str, excluded: str, fact: str
) -> None:
    diagnosis = diagnose(HEAD_P, numbered(events))
    finding = diagnosis.findings[0]
    assert diagnosis.ownership[0].what == rule
    (ruled_out,) = finding.ruled_out
    assert ruled_out.cls in CLASSES
    assert ruled_out.cls == excluded != finding.cls
    assert ruled_out.because.startswith(fact)


@pytest.mark.parametrize("events", [[*FREED, *READS], [*Z, *A, *PAD]])
def test_nothing_is_excluded_as_no_corruption(events: list[Event]) -> None:
    for finding in diagnose(HEAD_P, numbered(events)).findings:
        assert "not_corruption" not in {r.cls for r in finding.ruled_out}
