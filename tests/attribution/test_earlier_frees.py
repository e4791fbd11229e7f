"""A slot that was freed while a row named it, and went through other hands before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution import past_frees
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.past_frees import PastFrees
from kvcanary_cli.replay.options import ReplayOptions
from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose
from tests.replay.helpers import UNCHECKED, MemoryReader

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]


def _tenant(name: str, step: int, end: str | None) -> list[Event]:
    """Somebody gets slot 3, writes it, and perhaps gives it back."""
    events = life(name, [31, 32], [3, 20], row=3, step=step)
    if end is None:
        return events
    return [
        *events,
        {"kind": "free", "owner": name, "slots": [3, 20], "reason": end},
        {"kind": end, "req": name},
        {"kind": "row_release", "row": 3, "req": name},
    ]


def _case(freed: list[Event], ends: list[str | None], reason: str = "") -> list[Event]:
    """A loses slot 3, some others have it, and A reads it at its next step."""
    events = [*life("A", [101, 102, 103, 104], [1, 2, 3, 4], row=1, step=1), *freed]
    for k, end in enumerate(ends):
        events += _tenant(f"T{k}", 2 + k, end)
    return numbered([*events, *decode("A", 201, 40, row=1, position=4, step=2 + len(ends))])


FREED: dict[str, list[Event]] = {
    "itself": [{"kind": "free", "owner": "A", "slots": [3], "reason": "finish"}],
    "window": [{"kind": "free", "owner": "A", "slots": [3], "reason": "window"}],
    "dedup": [{"kind": "free", "owner": "A", "slots": [3], "reason": "dedup"}],
    "evicted": [
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3, 4], "entry": "e"},
        {"kind": "free", "owner": "tree", "slots": [3], "reason": "evict"},
    ],
}
SUBTYPES = {
    "itself": "freed_while_mapped",
    "window": "freed_while_mapped",
    "dedup": "freed_by_dedup",
    "evicted": "shared_slot_refcount",
}
ENDS: list[list[str | None]] = [
    [None],
    ["finish"],
    ["abort", None],
    ["finish", "abort", "finish"],
    ["finish"] * 4 + [None],
]


@pytest.mark.parametrize("segment_events", [None, 7])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("how", FREED)
def test_the_first_free_is_to_blame(
    how: str, ends: list[str | None], segment_events: int | None
) -> None:
    events = _case(FREED[how], ends)
    reader = MemoryReader(HEAD, events, segment_events)
    for ranks in (False, True):
        diagnosis = diagnose_trace(reader, ReplayOptions(backend="cpu"), UNCHECKED, ranks=ranks)
        (finding,) = diagnosis.findings
        assert (finding.cls, finding.subtype) == ("use_after_free", SUBTYPES[how])
        assert finding.cause_event == index_of(events, "free")
        assert (finding.victim, finding.culprit.req) == ("A", f"T{len(ends) - 1}")
        assert (finding.slots, finding.confidence) == ({3}, "certain")
        assert _told_frees(finding) >= {finding.cause_event}


def _told_frees(finding: Finding) -> set[int]:
    assert finding.facts is not None
    return {e.event for e in finding.facts.life if e.what == "free"}


def test_slots_of_one_free_that_later_went_apart_are_one_finding() -> None:
    freed: list[Event] = [{"kind": "free", "owner": "A", "slots": [2, 3]}]
    events = [*life("A", [101, 102, 103, 104], [1, 2, 3, 4], row=1, step=1), *freed]
    events += _tenant("C", 2, "finish")
    events += life("D", [41], [2], row=4, step=3)
    events = numbered([*events, *decode("A", 201, 40, row=1, position=4, step=4)])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cause_event, finding.slots) == (index_of(events, "free"), {2, 3})


def test_what_is_not_kept_any_more_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_frees, "_LEAST_KEPT", 1)
    head = HEAD | {"pool": {"slots": 41, "rows": 9, "row_len": 64}}
    events = _case(FREED["itself"], ["finish"] * 24)
    reader = MemoryReader(head, events, 9)
    (finding,) = diagnose_trace(reader, ReplayOptions(backend="cpu"), UNCHECKED).findings
    assert (finding.cls, finding.confidence) == ("use_after_free", "probable")


@settings(max_examples=60, deadline=None)
@given(
    frees=st.lists(
        st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from("AB")),
        max_size=12,
    ),
    segment_events=st.integers(1, 5),
    slot=st.integers(1, 9),
    span=st.tuples(st.integers(-1, 13), st.integers(0, 14)),
)
def test_the_first_free_is_found(
    frees: list[tuple[list[int], str]], segment_events: int, slot: int, span: tuple[int, int]
) -> None:
    events: list[Event] = [
        {"kind": "free", "i": i, "owner": owner, "slots": slots}
        | ({"reason": f"r{i}"} if i % 2 else {})
        for i, (slots, owner) in enumerate(frees)
    ]
    past = PastFrees(10)
    for segment in MemoryReader(HEAD, events, segment_events).segments():
        past.note(segment)
        past.note(segment)
    since, before = span
    wanted = next((e for e in events if since < e["i"] < before and slot in e["slots"]), None)
    got = past.first(slot, since, before)
    assert got == (None if wanted is None else (wanted["i"], wanted["owner"], _reason(wanted)))


def _reason(event: Event) -> str:
    return str(event.get("reason", ""))
