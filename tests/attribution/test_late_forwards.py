"""A forward that was on its way when its request gave its slots back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_L = HEAD | {"records": [*HEAD["records"], "launch"]}


def _overrun(taken: list[int], *, before: bool, launched: bool) -> list[Event]:
    """A's last decode lands behind its free, before or after C's first write of what it got."""
    grown = decode("A", 14, 5, row=1, position=4, step=9)
    last, first = grown[-1], [1, 2, 3, 4, 5]
    start = life("A", [11, 12, 13, 15], first[:4], row=1, step=1)
    tenant = life("C", [31, 32, 33][: len(taken)], taken, row=3, step=9)
    events = [*start, *grown[:-1]]
    if launched:
        events.append({"kind": "launch", "req": "A", "step": 2 if before else 3, "slots": [5]})
    events += [{"kind": "finish", "req": "A"}, {"kind": "free", "owner": "A", "slots": first}]
    events += tenant[:-1]
    events += [last, tenant[-1]] if before else [tenant[-1], last]
    events += decode("C", 34, 9, row=3, position=len(taken), step=9)
    step = 0
    for k, event in enumerate(events):
        if event["kind"] == "forward":
            step += 1
            events[k] = event | {"step": step}
    return numbered(events)


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("taken", [[5], [3, 4, 5]])
def test_it_is_the_late_write_wherever_it_lands(
    taken: list[int], before: bool, launched: bool
) -> None:
    events = _overrun(taken, before=before, launched=launched)
    (finding,) = diagnose(HEAD_L, events).findings
    where = {e["kind"]: e["i"] for e in events if e["kind"] in ("launch", "free")}
    wrote = [e["i"] for e in events if e["kind"] == "forward" and e["reqs"] == ["A"]][-1]
    assert (finding.cls, finding.subtype) == ("late_write", "overlap_forward_after_free")
    assert (finding.cause_event, finding.corrupting_event) == (where["free"], wrote)
    assert (finding.victim, finding.culprit.req, finding.slots) == ("C", "A", {5})
    said = any(f"launched at event {where.get('launch')}" in text for text in finding.evidence)
    assert said == launched
    assert finding.confidence == ("certain" if launched else "probable")
    assert any("2 slots" in text for text in finding.evidence) == (len(taken) == 3)


@pytest.mark.parametrize("freed_by", [None, "A", "C", "X"])
@pytest.mark.parametrize("queued", ["before", "behind", None])
def test_the_evidence_of_a_late_write_says_what_the_trace_does(
    freed_by: str | None, queued: str | None
) -> None:
    """Whoever gave the slot back is named, and a launch that was recorded is told."""
    launch = {"kind": "launch", "req": "A", "step": 3, "slots": [5]}
    events = life("A", [11, 12, 13, 14], [1, 2, 3, 4], row=1, step=1)
    if freed_by is not None:
        events.append({"kind": "alloc", "owner": freed_by, "slots": [5]})
        events += [launch] * (queued == "before")
        events.append({"kind": "free", "owner": freed_by, "slots": [5]})
    events += life("C", [31, 32], [5, 6], row=3, step=2)
    events += [launch] * (queued == "behind" or (queued == "before" and freed_by is None))
    events.append(decode("A", 15, 5, row=1, position=4, step=3)[-1])
    events = numbered([*events, *decode("C", 33, 7, row=3, position=2, step=4)])
    finding = diagnose(HEAD_L, events).findings[0]
    assert finding.cls == "late_write"
    told = " ".join(finding.evidence)
    assert ("not freed before" in told) == (freed_by is None)
    if freed_by is not None:
        freed = index_of(events, "free", slots=[5])
        assert f"slot 5 freed by {freed_by} at event {freed}" in told
    assert ("the launch was not recorded" in told) == (queued is None)
    if queued is not None:
        assert f"launched at event {index_of(events, 'launch')}" in told


@pytest.mark.parametrize("served", [False, True], ids=["own slots", "from the cache"])
@pytest.mark.parametrize("told", [True, False], ids=["released", "not told"])
def test_a_row_that_another_got_says_nothing_of_a_late_write(served: bool, told: bool) -> None:
    """A, retracted, writes position 0 to a slot that C has by then; A's row is set for B."""
    cached = [
        *life("P", [21, 22], [40, 41], row=8, step=1),
        {"kind": "own", "from": "P", "owner": "tree", "slots": [40, 41], "entry": "E"},
        {"kind": "finish", "req": "P"},
    ]
    taken = life("B", [21, 22, 23], [50, 51, 52], row=1, step=9)[:-1]
    if served:
        taken[1:] = [
            {"kind": "match", "req": "B", "entry": "E", "slots": [40, 41]},
            {"kind": "map", "row": 1, "start": 0, "slots": [40, 41]},
        ]
    late = decode("A", 11, 5, row=1, position=0, step=5)[-1] | {"row_as_read": {"1": []}}
    release = [{"kind": "row_release", "row": 1, "req": "A"}] if told else []
    events = numbered(
        [
            *cached,
            *life("A", [11, 12], [5, 6], row=1, step=2),
            {"kind": "own", "from": "A", "owner": "tree", "slots": [5, 6], "entry": "F"},
            {"kind": "retract", "req": "A"},
            *release,
            *taken,
            {"kind": "unpublish", "entry": "F"},
            {"kind": "free", "owner": "tree", "slots": [5, 6]},
            *life("C", [31, 32], [5, 6], row=3, step=4),
            late,
            *decode("C", 33, 9, row=3, position=2, step=6),
        ]
    )
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    finding = diagnose(head, events).findings[0]
    assert (finding.cls, finding.confidence) == ("late_write", "probable")
    assert (finding.victim, finding.culprit.req) == ("C", "A")
    assert finding.corrupting_event == index_of(events, "forward", step=5)
