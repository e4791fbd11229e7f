"""Host pages that a later store took before they were loaded back, and pages that are reused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_HEAD = HEAD | {"records": [*HEAD["records"], "prefix"]}
_OTHERS = {"X": 50, "Y": 70}


def _store(req: str, pages: list[int], keyed: bool, by: str | None, pool: str = "host") -> Event:
    event = {"kind": "copy", "src": [1, 2, 3], "dst": pages, "via": "d2h", "dst_pool": pool}
    return event | ({"key": f"key of {req}"} if keyed else {}) | ({"by": by} if by else {})


def _stay(req: str, first: int, step: int, pages: list[int], keyed: bool, by: str) -> list[Event]:
    """``req`` runs in slots 1 to 3, which the cache gets, stores and lets go."""
    ids = [first + k for k in range(3)]
    return [
        *life(req, ids, [1, 2, 3], row=1, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": [1, 2, 3], "entry": f"E{req}"},
        {"kind": "finish", "req": req},
        _store(req, pages, keyed, by),
        {"kind": "free", "owner": "tree", "slots": [1, 2, 3], "reason": "evict"},
        {"kind": "unpublish", "entry": f"E{req}"},
    ]


def _load(keyed: bool, pages: list[int], by: dict[str, str]) -> list[Event]:
    """B has A's prompt loaded."""
    copy = {"kind": "copy", "src": pages, "dst": [4, 5, 6], "via": "h2d", "src_pool": "host"}
    return [
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6]},
        {"kind": "map", "row": 3, "start": 0, "slots": [4, 5, 6]},
        copy | ({"key": "key of A"} if keyed else {}) | by,
        *decode("B", 14, 7, row=3, position=3, step=8),
    ]


_MATCH: list[Event] = [
    {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
    {"kind": "match", "req": "B", "entry": "EA", "slots": [], "tier": "host"},
]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("by", [{"by": "B"}, {}])
@pytest.mark.parametrize("pages", [[101, 102, 103], [102, 103, 104], [103, 101, 102], [103, 8, 9]])
@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_the_store_that_took_the_page_is_to_blame(
    keyed: bool, by: dict[str, str], pages: list[int], reserved: bool, again: bool
) -> None:
    """Whether B was served the entry before or behind it, and whatever was stored there since."""
    events = numbered(
        [
            *_stay("A", 11, 1, [101, 102, 103], keyed, "tree"),
            *(_MATCH if reserved else []),
            *_stay("X", 51, 2, pages, keyed, "X"),
            *(_stay("Y", 71, 3, pages, keyed, "tree") if again else []),
            *([] if reserved else _MATCH),
            *_load(keyed, [101, 102, 103], by),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "stored_page_overwritten")
    at = index_of(events, "copy", dst=pages, by="X")
    assert (finding.cause_event, finding.corrupting_event) == (at, at)
    assert (finding.victim, finding.culprit.req) == ("B", "X")
    assert finding.slots == {3 + page - 100 for page in pages if page > 100 and page < 104}
    assert finding.confidence == ("certain" if keyed else "probable")
    text = " ".join(finding.evidence)
    assert "wrote what X had written over it" in text
    assert f"{'before' if reserved else 'behind'} that store" in text
    assert [r.cls for r in finding.ruled_out] == ["transfer_mismatch"]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("by", [{"by": "C"}, {}])
@pytest.mark.parametrize("hops", [1, 2])
def test_a_copy_of_what_was_loaded_is_not_to_blame(
    keyed: bool, by: dict[str, str], hops: int
) -> None:
    """C gets copies of B's slots, none of which B read."""
    moves: list[Event] = []
    src = [4, 5, 6]
    for dst in ([31, 32, 33], [34, 35, 36])[:hops]:
        moves += [
            {"kind": "alloc", "owner": "C", "slots": dst},
            {"kind": "copy", "src": src, "dst": dst, "via": "d2d", **by},
        ]
        src = dst
    events = numbered(
        [
            *_stay("A", 11, 1, [101, 102, 103], keyed, "tree"),
            *_stay("X", 51, 2, [101, 102, 103], keyed, "X"),
            *_MATCH,
            *_load(keyed, [101, 102, 103], {"by": "B"})[:3],
            {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13]},
            *moves,
            {"kind": "map", "row": 4, "start": 0, "slots": src},
            *decode("C", 15, 37, row=4, position=3, step=8),
        ]
    )
    found = [f for f in diagnose(_HEAD, events).findings if f.victim == "C"]
    (finding,) = found
    assert (finding.cls, finding.subtype) == ("transfer_race", "stored_page_overwritten")
    assert finding.cause_event == index_of(events, "copy", by="X")
    assert finding.slots == set(src)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("pages", [[102, 101, 103], [102, 103, 101], [101, 103, 102]])
@pytest.mark.parametrize("used", [True, False])
def test_a_load_that_pairs_its_pages_wrongly_is_to_blame_itself(
    keyed: bool, pages: list[int], used: bool
) -> None:
    """Whatever its pages held before."""
    events = numbered(
        [
            *(_stay("X", 11, 1, pages, keyed, "tree") if used else []),
            *_stay("A", 11, 2, [101, 102, 103], keyed, "tree"),
            *_MATCH,
            *_load(keyed, pages, {"by": "B"}),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "misaligned_blocks")
    assert finding.cause_event == index_of(events, "copy", via="h2d")


def test_a_load_of_pages_that_were_stored_anew_elsewhere_is_to_blame_itself() -> None:
    events = numbered(
        [
            *_stay("A", 11, 1, [101, 102, 103], True, "tree"),
            *_stay("X", 51, 2, [101, 102, 103], True, "tree"),
            *life("A2", [11, 12, 13], [1, 2, 3], row=1, step=3),
            _store("A", [104, 105, 106], True, None),
            {"kind": "free", "owner": "A2", "slots": [1, 2, 3]},
            *_MATCH,
            *_load(True, [101, 102, 103], {"by": "B"}),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_content")
    assert finding.cause_event == index_of(events, "copy", via="h2d")


@pytest.mark.parametrize("lost_on", ["host", "disk"])
def test_a_page_that_came_through_two_tiers(lost_on: str) -> None:
    """The store that took it may have done so on either."""
    down = {"kind": "copy", "src": [101, 102, 103], "dst": [7, 8, 9], "src_pool": "host"}
    up = {"kind": "copy", "src": [7, 8, 9], "dst": [104, 105, 106], "dst_pool": "host"}
    other = _stay("X", 51, 2, [101, 102, 103] if lost_on == "disk" else [104, 105, 106], True, "X")
    moved = down | {"dst_pool": "disk", "key": "key of X"}
    events = numbered(
        [
            *_stay("A", 11, 1, [101, 102, 103], True, "tree"),
            down | {"dst_pool": "disk", "key": "key of A"},
            *([*other, moved] if lost_on == "disk" else []),
            up | {"src_pool": "disk", "key": "key of A"},
            *([] if lost_on == "disk" else other),
            *_MATCH,
            *_load(True, [104, 105, 106], {"by": "B"}),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "stored_page_overwritten")
    want = index_of(events, "copy", dst=[7, 8, 9], key="key of X") if lost_on == "disk" else None
    assert finding.cause_event == (want or index_of(events, "copy", dst=[104, 105, 106], by="X"))


class _Entry(NamedTuple):
    """A prefix on the host: its name, first token, and pages."""

    name: str
    first: int
    pages: list[int]


class _Host:
    """A cache that stores each prefix to pages that are free, and loads some back."""

    def __init__(self, draw: st.DrawFn, keyed: bool) -> None:
        self.draw, self.keyed = draw, keyed
        self.events: list[Event] = []
        self.live: list[_Entry] = []
        self.free = list(range(101, 109))
        self.count = 0

    def store(self, over: _Entry | None = None) -> None:
        """A request runs and is stored, ``over`` pages of an entry that is there still."""
        self.count += 1
        size = self.draw(st.integers(1, 3))
        pages = self.draw(st.permutations(self.free))[:size]
        if over is not None:
            pages[0] = over.pages[0]
        if len(pages) < size:
            return
        self.free = [page for page in self.free if page not in pages]
        entry = _Entry(f"r{self.count}", 100 * self.count, pages)
        tokens = [entry.first + k for k in range(size)]
        slots = list(range(1, size + 1))
        self.events += [
            *life(entry.name, tokens, slots, row=1, step=self.count),
            {"kind": "copy", "src": slots, "dst": pages, "via": "d2h", "dst_pool": "host"}
            | ({"key": entry.name} if self.keyed else {}),
            {"kind": "free", "owner": entry.name, "slots": slots},
            {"kind": "finish", "req": entry.name},
        ]
        self.live.append(entry)

    def evict(self) -> None:
        """Some entry's pages are free again; the trace does not tell."""
        if self.live:
            entry = self.live.pop(self.draw(st.integers(0, len(self.live) - 1)))
            self.free += entry.pages

    def load(self, entry: _Entry) -> None:
        """A request reads an entry and is gone."""
        self.count += 1
        req, size = f"r{self.count}", len(entry.pages)
        slots = list(range(20, 20 + size))
        copy = {"kind": "copy", "src": entry.pages, "dst": slots, "src_pool": "host", "by": req}
        self.events += [
            {"kind": "history", "req": req, "start": 0}
            | {"ids": [entry.first + k for k in range(size)]},
            {"kind": "match", "req": req, "entry": entry.name, "slots": [], "tier": "host"},
            {"kind": "alloc", "owner": req, "slots": slots},
            {"kind": "map", "row": 2, "start": 0, "slots": slots},
            copy | {"via": "h2d"} | ({"key": entry.name} if self.keyed else {}),
            *decode(req, 9, 30, row=2, position=size, step=self.count),
            {"kind": "free", "owner": req, "slots": [*slots, 30]},
            {"kind": "finish", "req": req},
        ]

    def go_on(self, times: int) -> None:
        for _ in range(times):
            act = self.draw(st.sampled_from(["store", "evict", "load"]))
            if act == "store" and self.free:
                self.store()
            elif act == "evict":
                self.evict()
            elif act == "load" and self.live:
                self.load(self.draw(st.sampled_from(self.live)))


@given(data=st.data(), keyed=st.booleans())
@settings(max_examples=40, deadline=None)
def test_pages_that_were_let_go_may_be_stored_into_again(data: st.DataObject, keyed: bool) -> None:
    host = _Host(data.draw, keyed)
    host.store()
    host.go_on(12)
    report = diagnose(_HEAD, numbered(host.events))
    assert not report.findings
    assert not report.ownership


@given(data=st.data(), keyed=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_page_that_was_not_let_go_is_the_stores_fault(data: st.DataObject, keyed: bool) -> None:
    host = _Host(data.draw, keyed)
    host.go_on(6)
    if len(host.free) < 6:
        host.live, host.free = [], list(range(101, 109))
    host.store()
    victim = host.live[-1]
    others = [entry for entry in host.live if entry is not victim]
    host.store(over=victim)
    at = max(k for k, e in enumerate(host.events) if e.get("via") == "d2h")
    host.live = others
    host.go_on(2)
    host.load(victim)
    found = diagnose(_HEAD, numbered(host.events)).findings
    (finding,) = found
    assert (finding.cls, finding.subtype) == ("transfer_race", "stored_page_overwritten")
    assert finding.cause_event == at
    assert finding.slots == {20}
