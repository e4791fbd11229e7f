"""What an entry shows of its publisher that never became its text, or is not where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode_step, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix", "spec"]}


def _verify(step: int, tokens: list[int], slots: list[int], **more: object) -> Event:
    forward = extend(step, "A", 1, 2, tokens, slots)
    del forward["extend_prefix_lens"], forward["extend_seq_lens"]
    verify: Event = {"forward_mode": "TARGET_VERIFY", "seq_lens": [2]}
    return forward | verify | {"draft_token_num": len(tokens)} | more


def _accept(nodes: list[int], tokens: list[int]) -> Event:
    accept: Event = {"kind": "accept", "req": "A", "nodes": nodes, "tokens": tokens}
    return accept | {"committed_len": 2 + len(nodes)}


def _begins(slots: list[int]) -> list[Event]:
    return [
        *life("A", [11, 12], [1, 2], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": slots},
        {"kind": "map", "row": 1, "start": 2, "slots": slots},
    ]


def _shown(slots: list[int], by: str) -> list[Event]:
    own: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": slots, "entry": "P"}
    return [own if by == "own" else {"kind": "publish", "entry": "P", "req": "A", "slots": slots}]


def _hit(ids: list[int], slots: list[int]) -> list[Event]:
    n = len(slots)
    return [
        {"kind": "history", "req": "B", "start": 0, "ids": [*ids, 99]},
        {"kind": "match", "req": "B", "entry": "P", "slots": slots},
        {"kind": "alloc", "owner": "B", "slots": [20]},
        {"kind": "map", "row": 2, "start": 0, "slots": [*slots, 20]},
        extend(9, "B", 2, n, [99], [20]),
    ]


# What A wrote at position 3 without ever having a token there that is committed.
_WRITTEN: dict[str, list[Event]] = {
    "rejected": [
        *_begins([3, 4, 5]),
        _verify(2, [13, 90, 91], [3, 4, 5]),
        {"kind": "history", "req": "A", "start": 2, "ids": [13]},
        _accept([0], [13]),
    ],
    "rejected, with the next token known": [
        *_begins([3, 4, 5]),
        _verify(2, [13, 90, 91], [3, 4, 5]),
        {"kind": "history", "req": "A", "start": 2, "ids": [13, 14]},
        _accept([0], [13]),
    ],
    "overrun": [
        *_begins([3, 4]),
        {"kind": "history", "req": "A", "start": 2, "ids": [13]},
        decode_step(2, "A", 1, 13, 2, 3),
        decode_step(3, "A", 1, 90, 3, 4),
    ],
}


@pytest.mark.parametrize("written", _WRITTEN)
@pytest.mark.parametrize("by", ["own", "publish"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_entry_that_covers_more_than_was_committed(written: str, by: str, ends: bool) -> None:
    slots = [1, 2, 3, 4]
    events = numbered(
        [
            *_WRITTEN[written],
            *_shown(slots, by),
            *([{"kind": "finish", "req": "A"}] if ends else []),
            *_hit([11, 12, 13, 14], slots),
        ]
    )
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "over_cover")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("B", "A", {4})
    assert finding.cause_event == index_of(events, by)
    assert finding.first_bad_step == 9


@pytest.mark.parametrize("written", _WRITTEN)
@pytest.mark.parametrize("by", ["own", "publish"])
def test_an_entry_that_covers_what_was_committed(written: str, by: str) -> None:
    slots = [1, 2, 3]
    events = [*_WRITTEN[written], *_shown(slots, by), *_hit([11, 12, 13], slots)]
    assert not diagnose(HEAD_P, numbered(events)).findings


@pytest.mark.parametrize("by", ["own", "publish"])
@pytest.mark.parametrize("compacted", [True, False])
def test_an_accepted_path_that_was_published_where_it_lay(by: str, compacted: bool) -> None:
    slots = [1, 2, 3, 4]
    tree = {"tree": {"parent": [-1, -1, 0, 1]}, "positions": [2, 2, 3, 3]}
    copy: Event = {"kind": "copy", "src": [4, 6], "dst": [3, 4], "via": "d2d", "by": "A"}
    events = numbered(
        [
            *_begins([3, 4, 5, 6]),
            _verify(2, [91, 13, 92, 14], [3, 4, 5, 6], **tree),
            {"kind": "history", "req": "A", "start": 2, "ids": [13, 14]},
            _accept([1, 3], [13, 14]),
            *([copy] if compacted else []),
            *_shown(slots, by),
            *_hit([11, 12, 13, 14], slots),
        ]
    )
    findings = diagnose(HEAD_P, events).findings
    if compacted:
        assert not findings
        return
    (finding,) = findings
    assert (finding.cls, finding.subtype) == ("spec_commit", "accepted_path_not_compacted")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("B", "A", {3, 4})
    assert finding.cause_event == index_of(events, "accept")
