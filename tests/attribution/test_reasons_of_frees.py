"""Why slots were freed tells what went wrong: a request that gave up, or a window that moved on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}
IN_TREE = ("use_after_free", "freed_by_retract_while_in_tree")
SLOTS = [1, 2, 3]


def _free(reason: str | None, owner: str = "A") -> Event:
    told = {} if reason is None else {"reason": reason}
    return {"kind": "free", "owner": owner, "slots": SLOTS} | told


def _hit() -> list[Event]:
    return [
        {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "match", "req": "C", "entry": "P", "slots": SLOTS},
        {"kind": "alloc", "owner": "C", "slots": [9]},
        {"kind": "map", "row": 3, "start": 0, "slots": [*SLOTS, 9]},
        extend(9, "C", 3, 3, [14], [9]),
    ]


_A = life("A", [11, 12, 13], SLOTS, row=1, step=1)
_PUBLISH: Event = {"kind": "publish", "entry": "P", "req": "A", "slots": SLOTS}
_OTHER = life("B", [21, 22, 23], SLOTS, row=2, step=5)


@pytest.mark.parametrize(
    ("reason", "end", "said"),
    [
        ("retract", "retract", IN_TREE),
        ("retract_decode", "retract", IN_TREE),
        ("Abort", "abort", IN_TREE),
        ("finish", "finish", ("prefix_index", "phantom_hit")),
        (None, "retract", ("prefix_index", "phantom_hit")),
    ],
)
def test_a_hit_on_what_a_request_freed_that_gave_up(
    reason: str | None, end: str, said: tuple[str, str]
) -> None:
    events = numbered([*_A, _PUBLISH, {"kind": end, "req": "A"}, _free(reason), *_OTHER, *_hit()])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == said
    assert finding.cause_event == index_of(events, "free")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("C", "B", set(SLOTS))
    assert finding.confidence == "certain"
    assert all(ruled.cls != finding.cls for ruled in finding.ruled_out)


def test_what_the_cache_evicted_was_freed_by_no_request() -> None:
    own: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": SLOTS, "entry": "P"}
    events = numbered([*_A, own, _free("abort_backup", "tree"), *_OTHER, *_hit()])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")


def test_a_request_that_goes_on_without_a_cache_was_in_no_tree() -> None:
    events = [
        *_A,
        {"kind": "retract", "req": "A"},
        _free("retract"),
        *_OTHER,
        *decode("A", 14, 9, row=1, position=3, step=9),
    ]
    (finding,) = diagnose(HEAD_P, numbered(events)).findings
    assert (finding.cls, finding.subtype) == ("use_after_free", "freed_while_mapped")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("swa_evict", ("use_after_free", "window_evicted_slot_recached")),
        ("window", ("use_after_free", "window_evicted_slot_recached")),
        ("finish", ("prefix_index", "publish_of_free")),
        (None, ("prefix_index", "publish_of_free")),
    ],
)
def test_free_slots_that_go_to_the_cache(reason: str | None, said: tuple[str, str]) -> None:
    own: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": SLOTS, "entry": "P"}
    events = numbered([*_A, _free(reason), own, {"kind": "finish", "req": "A"}, *_OTHER, *_hit()])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == said
    assert finding.cause_event == index_of(events, "own")
    assert (finding.victim, finding.slots) == ("C", set(SLOTS))
    assert all(ruled.cls != finding.cls for ruled in finding.ruled_out)
