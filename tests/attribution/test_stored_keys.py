"""Keys that no store filled: loads of them are told, whether or not a canary row shows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}

_BEGIN: Event = {"kind": "transfer_begin", "id": "S", "req": "A", "slots": [1, 2, 3], "key": "K"}
_FAIL: Event = {"kind": "transfer_fail", "id": "S", "reason": "io"}
_END: Event = {"kind": "transfer_end", "id": "S"}
_STORED: Event = {
    "kind": "copy",
    "id": "S",
    "by": "A",
    "src": [1, 2, 3],
    "dst": [51, 52, 53],
    "dst_pool": "remote",
    "via": "store",
    "key": "K",
}
# Whose pages the load reads: nobody is known to have stored there, or another key was.
_BEFORE: dict[str, list[Event]] = {
    "unknown": [],
    "another key": [
        *life("Z", [41, 42, 43], [21, 22, 23], row=5, step=1),
        _STORED | {"id": "Z", "by": "Z", "src": [21, 22, 23], "key": "KZ"},
    ],
}


def _load(named: str) -> list[Event]:
    """C is served key K from afar, and reads what came; ``named`` = how the load tells its key."""
    copy: Event = {"kind": "copy", "src": [51, 52, 53], "src_pool": "remote", "dst": [4, 5, 6]}
    copy |= {"via": "load", "by": "C"}
    begin: list[Event] = []
    if named == "copy":
        copy["key"] = "K"
    elif named == "transfer":
        copy["id"] = "L"
        begin = [
            {"kind": "transfer_begin", "id": "L", "req": "C", "slots": [4, 5, 6], "key": "K"}
            | {"via": "load"}
        ]
    return [
        {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "match", "req": "C", "entry": "K", "slots": [], "tier": "remote"},
        {"kind": "alloc", "owner": "C", "slots": [4, 5, 6, 7]},
        {"kind": "map", "row": 2, "start": 0, "slots": [4, 5, 6, 7]},
        *begin,
        copy,
    ]


_READ = extend(9, "C", 2, 3, [14], [7])


def _stored(*how: Event, via: dict[str, str]) -> list[Event]:
    prompt = life("A", [11, 12, 13], [1, 2, 3], row=1, step=2)
    return [*prompt, _BEGIN | via, *how]


@pytest.mark.parametrize("before", _BEFORE)
@pytest.mark.parametrize("named", ["copy", "transfer", "match"])
@pytest.mark.parametrize("via", [{"via": "store"}, {"via": "d2h"}, {"direction": "out"}])
@pytest.mark.parametrize("read", [True, False])
def test_a_key_whose_store_failed_is_not_to_be_served(
    before: str, named: str, via: dict[str, str], read: bool
) -> None:
    events = numbered(
        [*_BEFORE[before], *_stored(_FAIL, via=via), *_load(named), *([_READ] if read else [])]
    )
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "failed_transfer_served")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("C", "A", {4, 5, 6})
    assert finding.cause_event == index_of(events, "transfer_fail")
    load = next(e["i"] for e in events if e.get("src_pool") == "remote")
    assert finding.corrupting_event == load
    # Only what a page is known to have held before proves that the load brought something else.
    shown = read and before == "another key"
    assert finding.confidence == ("probable" if shown else "possible")
    assert (finding.first_bad_step, list(finding.blast_radius)) == (
        (9, ["C"]) if read else (None, [])
    )
    assert finding.positions == ({0, 1, 2} if read else set())
    unread = any("no damaged content was read" in text for text in finding.evidence)
    assert unread is not read


def test_only_the_pages_that_the_failed_store_left_out_are_wrong() -> None:
    part = _STORED | {"src": [1], "dst": [51]}
    events = numbered([*_stored(part, _FAIL, via={"via": "store"}), *_load("copy"), _READ])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.subtype, finding.slots) == ("failed_transfer_served", {5, 6})


_SECOND: Event = _BEGIN | {"id": "S2", "via": "store"}


@pytest.mark.parametrize(
    "how",
    [
        (_END,),
        (_STORED, _END),
        (_STORED, _FAIL),
        (_FAIL, _SECOND, {"kind": "transfer_end", "id": "S2"}),
        (_END, _SECOND, {"kind": "transfer_fail", "id": "S2"}),
        (_FAIL, {k: v for k, v in _STORED.items() if k != "id"}),
    ],
    ids=["ended", "copied", "copied, then failed", "again", "well before", "without a window"],
)
@pytest.mark.parametrize("named", ["copy", "transfer", "match"])
def test_a_key_that_some_store_filled_may_be_served(how: tuple[Event, ...], named: str) -> None:
    events = numbered([*_stored(*how, via={"via": "store"}), *_load(named), _READ])
    assert not diagnose(HEAD_P, events).findings


@pytest.mark.parametrize("before", _BEFORE)
@pytest.mark.parametrize("named", ["copy", "transfer", "match"])
@pytest.mark.parametrize("late", [True, False])
def test_a_load_that_overtook_the_store_of_its_key(before: str, named: str, late: bool) -> None:
    """The read may come before the store fills the pages, or behind it."""
    fill = [_STORED, _END]
    tail = [_READ, *fill] if late else [*fill, _READ]
    events = numbered([*_BEFORE[before], *_stored(via={"via": "store"}), *_load(named), *tail])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "read_before_stored")
    assert (finding.victim, finding.first_bad_step) == ("C", 9)
    load = next(e["i"] for e in events if e.get("src_pool") == "remote")
    assert (finding.cause_event, finding.slots) == (load, {4, 5, 6})
    assert not any("no damaged content was read" in text for text in finding.evidence)


def test_a_store_that_never_filled_what_was_loaded_proves_nothing() -> None:
    elsewhere = _STORED | {"dst": [61, 62, 63]}
    events = numbered([*_stored(via={"via": "store"}), *_load("copy"), _READ, elsewhere, _END])
    assert not diagnose(HEAD_P, events).findings


@pytest.mark.parametrize("hands", ["own", "rewritten", "given out anew"])
def test_who_reads_it_later(hands: str) -> None:
    """The cache may take what was loaded; what was written anew since is sound."""
    tokens, slots = [11, 12, 13], [4, 5, 6]
    between: list[Event] = [{"kind": "own", "from": "C", "owner": "tree", "slots": slots}]
    if hands == "rewritten":
        between = [extend(10, "C", 2, 0, tokens, slots), *between]
    elif hands == "given out anew":
        between = [
            {"kind": "free", "owner": "C", "slots": [*slots, 7]},
            {"kind": "finish", "req": "C"},
            {"kind": "alloc", "owner": "X", "slots": slots},
            {"kind": "map", "row": 6, "start": 0, "slots": slots},
            extend(10, "X", 6, 0, tokens, slots),
            {"kind": "own", "from": "X", "owner": "tree", "slots": slots},
        ]
    events = numbered(
        [
            *_stored(_FAIL, via={"via": "store"}),
            *_load("copy"),
            _READ,
            *between,
            {"kind": "publish", "entry": "D", "slots": slots},
            {"kind": "history", "req": "D", "start": 0, "ids": tokens},
            {"kind": "match", "req": "D", "entry": "D", "slots": slots},
            {"kind": "map", "row": 3, "start": 0, "slots": slots},
            *decode("D", 19, 30, row=3, position=3, step=11),
        ]
    )
    (finding,) = diagnose(HEAD_P, events).findings
    assert list(finding.blast_radius) == (["C", "D"] if hands == "own" else ["C"])


def _arrival(named: str, brought: list[int], end: str) -> list[Event]:
    """C's load of key K is told by its window; copies are recorded of ``brought`` only."""
    match, *got, copy = _load("match")[1:] if named == "match" else _load("copy")[1:]
    begin: Event = {"kind": "transfer_begin", "id": "L", "req": "C", "slots": [4, 5, 6]}
    begin |= {"via": "load"} | ({} if named == "match" else {"key": "K"})
    bare = {k: v for k, v in copy.items() if k != "key"}
    copies = [bare | {"id": "L", "src": [s + 47 for s in brought], "dst": brought}]
    history = _load("copy")[0]
    return [history, match, *got, begin, *(copies if brought else []), {"kind": end, "id": "L"}]


@pytest.mark.parametrize("named", ["transfer", "match"])
@pytest.mark.parametrize("brought", [[], [4]], ids=["no copy", "a copy of some"])
@pytest.mark.parametrize("read", [True, False])
def test_a_load_without_copies_of_a_key_whose_store_failed(
    named: str, brought: list[int], read: bool
) -> None:
    stored = _stored(_FAIL, via={"via": "store"})
    loaded = _arrival(named, brought, "transfer_end")
    events = numbered([*stored, *loaded, *([_READ] if read else [])])
    found = diagnose(HEAD_P, events).findings
    assert {(f.cls, f.subtype) for f in found} == {("transfer_mismatch", "failed_transfer_served")}
    assert {f.cause_event for f in found} == {index_of(events, "transfer_fail")}
    assert {(f.victim, f.culprit.req, f.confidence) for f in found} == {("C", "A", "possible")}
    assert set().union(*(f.slots for f in found)) == {4, 5, 6}
    if not brought:
        (finding,) = found
        assert finding.corrupting_event == index_of(events, "transfer_end", id="L")
        assert any("no copy of transfer L is recorded" in text for text in finding.evidence)
    assert all(list(f.blast_radius) == (["C"] if read else []) for f in found)


@pytest.mark.parametrize("end", ["transfer_end", "transfer_fail"])
@pytest.mark.parametrize(
    "how",
    [(_END,), (_STORED, _FAIL), (_FAIL, _SECOND, {"kind": "transfer_end", "id": "S2"}), ()],
    ids=["ended", "copied, then failed", "again", "still runs"],
)
def test_a_load_without_copies_does_not_go_back_to_a_store_that_filled_its_key(
    how: tuple[Event, ...], end: str
) -> None:
    """Nor does one that failed, too: then that is why the slots are empty."""
    events = numbered([*_stored(*how, via={"via": "store"}), *_arrival("transfer", [], end), _READ])
    (finding,) = diagnose(HEAD_P, events).findings
    said = (finding.cls, finding.subtype)
    if end == "transfer_end":
        assert said == ("unwritten_read", "never_written_since_alloc")
        assert finding.confidence == "possible"
    else:
        assert said == ("transfer_mismatch", "failed_transfer_served")
        assert finding.cause_event == index_of(events, "transfer_fail", id="L")
