"""Lost events, names that come back, other memory tiers, steps that were not asked for."""

from __future__ import annotations

import io
import itertools
import random
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvcanary_cli.attribution import diagnose as diagnose_module
from kvcanary_cli.attribution.diagnose import Diagnosis, diagnose_trace
from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.attribution.report import Report
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.report import replay_json, replay_text
from kvcanary_cli.report.finding_coverage import confidence_line
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import SCENARIOS, diagnose, events_of
from tests.replay.helpers import UNCHECKED, MemoryReader
from tests.trace.strategies import traces

CASES = sorted(p.name for p in SCENARIOS.glob("S*.jsonl"))
NO_NUMBER = "-92233720368"


def _said(diagnosis: Diagnosis) -> str:
    """Everything that a person or a program is told."""
    report = Report.of([diagnosis])
    console = Console(file=io.StringIO(), width=120, markup=False)
    for part in replay_text.render(report, width=120, max_rows=None, verbose=True):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return text + "".join(replay_json.json_parts(report))


def _named(events: list[dict[str, Any]], req: str | None) -> int | None:
    """First event that names a request."""
    if req in (None, "tree"):
        return None
    keys = ("req", "owner", "from", "by", "parent", "child")
    for e in events:
        if req in [e.get(key) for key in keys] or req in (e.get("reqs") or ()):
            return int(e["i"])
    return None


@pytest.mark.parametrize(
    ("lost", "within"),
    [
        ("before both", 0),
        ("the victim's beginning", 3),
        ("the victim's life", 3),
        ("before the cause", 3),
        ("behind the damage", 0),
    ],
)
def test_a_gap_counts_where_a_finding_rests_on_what_was_lost(lost: str, within: int) -> None:
    """From the beginning of victim and culprit to the damage, and nowhere else."""
    events = life("Q", [91, 92], [40, 41], row=5, step=1)
    marks = {"before both": len(events)}
    victim = life("B", [11, 12, 13], [1, 2, 3], row=1, step=2)
    if lost == "the victim's beginning":
        marks[lost] = len(events)
        victim = victim[1:]
    events += victim
    marks["the victim's life"] = len(events)
    if lost in marks and "life" in lost:
        # The row and its slots are told again.
        events += [{"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]}, *victim[1:]]
        events[-1] = events[-1] | {"step": 3}
    events += decode("B", 14, 4, row=1, position=3, step=4)
    marks["before the cause"] = len(events)
    if lost == "before the cause":
        events += [*victim[:3], victim[3] | {"step": 5}]
    events += [{"kind": "free", "owner": "B", "slots": [1, 2, 3], "reason": "dedup"}]
    events += life("C", [31, 32, 33], [1, 2, 3], row=2, step=6)
    events += decode("B", 15, 6, row=1, position=4, step=7)
    marks["behind the damage"] = len(events)
    events += decode("B", 16, 7, row=1, position=5, step=8)
    events = numbered(events)
    for e in events[marks[lost] :]:
        e["i"] += 3
    (finding,) = diagnose(HEAD, events).findings
    assert finding.cls == "use_after_free"
    assert finding.lost_within == within
    assert (finding.confidence == "certain") == (within == 0)
    assert any("were lost" in text for text in finding.evidence) == (within > 0)
    line = confidence_line(finding)
    assert line.startswith(finding.confidence)
    assert ("3 lost events" in line) == (within > 0)


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=8, deadline=None)
def test_lost_events_weaken_a_finding(name: str, seed: int) -> None:
    head, events = events_of(SCENARIOS / name)
    rng = random.Random(seed)
    kept = [e for e in events if rng.random() > 0.15 or e is events[0]]
    diagnosis = diagnose(head, kept)
    gaps = [b["i"] for a, b in itertools.pairwise(kept) if b["i"] != a["i"] + 1]
    for finding in diagnosis.findings:
        steps = {e["step"]: e["i"] for e in kept if e["kind"] == "forward"}
        met = steps.get(finding.first_bad_step)
        named = [_named(kept, req) for req in (finding.victim, finding.culprit.req)]
        first = min((i for i in named if i is not None), default=None)
        if met is not None and any(first is None or first < gap <= met for gap in gaps):
            assert finding.confidence != "certain"
            assert finding.lost_within
            assert any("were lost" in text for text in finding.evidence)
        if met is not None and not any(gap <= met for gap in gaps):
            assert not finding.lost_within
    assert NO_NUMBER not in _said(diagnosis)


@given(trace=traces())
@settings(max_examples=150, deadline=None)
def test_any_valid_trace_is_diagnosed(trace: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    head, events = trace
    if head["pool"]["slots"] > 1 << 16:
        return
    diagnosis = diagnose(head, events)
    assert NO_NUMBER + "54775808" not in " ".join(
        text for finding in diagnosis.findings for text in finding.evidence
    )
    _said(diagnosis)


@pytest.mark.parametrize("end", ["finish", "abort"])
@pytest.mark.parametrize("freed", [True, False])
def test_a_name_that_comes_back_is_another_request(end: str, freed: bool) -> None:
    """A longer first life must leave no tokens behind; slots that it kept are told as its own."""
    events = life("A", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], row=1, step=1)
    if freed:
        events.append({"kind": "free", "owner": "A", "slots": [1, 2, 3, 4, 5, 6]})
    events += [{"kind": end, "req": "A"}, {"kind": "row_release", "row": 1, "req": "A"}]
    events += life("A", [1, 2, 9], [7, 8, 9], row=2, step=2)
    for k in range(4):
        events += decode("A", 77 + k, 10 + k, row=2, position=3 + k, step=3 + k)
    leak = [] if freed else [{1, 2, 3, 4, 5, 6}]
    diagnosis = diagnose(HEAD, numbered(events))
    assert not diagnosis.findings
    assert [set(o.slots) for o in diagnosis.ownership] == leak
    events += [{"kind": "free", "owner": "A", "slots": list(range(7, 14))}]
    events += [{"kind": "finish", "req": "A"}]
    for step in (8, 9, 10):
        slots = [20 + 3 * (step - 8) + k for k in range(3)]
        events += life(f"B{step}", [5, 6, 7], slots, row=step - 5, step=step)
    diagnosis = diagnose(HEAD, numbered(events))
    leaked = [set(o.slots) for o in diagnosis.ownership if o.what == "leak"]
    assert leaked == leak


@pytest.mark.parametrize("end", ["finish", "abort"])
@pytest.mark.parametrize("more", [1, 3])
def test_a_request_that_keeps_its_slots_and_its_row_goes_on(end: str, more: int) -> None:
    """Its end was told before its last steps were done: it reads and frees what is its own."""
    events = life("A", [1, 2, 3], [1, 2, 3], row=1, step=1)
    events.append({"kind": end, "req": "A"})
    for k in range(more):
        events += decode("A", 77 + k, 10 + k, row=1, position=3 + k, step=2 + k)
    events.append({"kind": "free", "owner": "A", "slots": [1, 2, 3, *range(10, 10 + more)]})
    events += [{"kind": "finish", "req": "A"}, {"kind": "row_release", "row": 1, "req": "A"}]
    for step in (8, 9, 10):
        slots = [20 + 3 * (step - 8) + k for k in range(3)]
        events += life(f"B{step}", [5, 6, 7], slots, row=step - 5, step=step)
    diagnosis = diagnose(HEAD, numbered(events))
    assert not diagnosis.findings
    assert not diagnosis.ownership


@pytest.mark.parametrize("tier", ["host", "remote", "disk"])
@pytest.mark.parametrize("extra", [{}, {"dst_pool": "full"}, {"via": "h2d"}, {"by": "A"}])
def test_what_comes_back_from_another_tier_was_written(tier: str, extra: dict[str, str]) -> None:
    events = life("A", [1, 2, 3, 4], [1, 2, 3, 4], row=1, step=1)
    there = [100, 101, 102, 103]
    events += [
        {"kind": "copy", "src": [1, 2, 3, 4], "dst": there, "dst_pool": tier, "via": "d2h"},
        {"kind": "free", "owner": "A", "slots": [1, 2, 3, 4]},
        {"kind": "retract", "req": "A"},
        {"kind": "alloc", "owner": "A", "slots": [11, 12, 13, 14]},
        {"kind": "copy", "src": there, "dst": [11, 12, 13, 14], "src_pool": tier} | extra,
        {"kind": "map", "row": 2, "start": 0, "slots": [11, 12, 13, 14]},
    ]
    events += decode("A", 9, 15, row=2, position=4, step=2)
    diagnosis = diagnose(HEAD, numbered(events))
    assert not diagnosis.findings
    assert not diagnosis.ownership


@pytest.mark.parametrize(("steps", "found"), [((1, 1), False), ((2, 2), True), ((3, None), False)])
def test_steps_filter_what_needs_no_forward(steps: tuple[int, int | None], found: bool) -> None:
    events = life("A", [1, 2, 3, 4], [1, 2, 3, 4], row=1, step=1)
    events += [{"kind": "free", "owner": "A", "slots": [9]}] * 2
    events += decode("A", 9, 5, row=1, position=4, step=2)
    events += decode("A", 9, 6, row=1, position=5, step=3)
    reader = MemoryReader(HEAD, numbered(events))
    options = ReplayOptions(backend="cpu", steps=steps)
    diagnosis = diagnose_trace(reader, options, UNCHECKED)
    assert bool(diagnosis.findings) is found
    assert bool(diagnosis.ownership) is found


def _many_gaps(gaps: int) -> list[dict[str, Any]]:
    """B begins before the last of so many gaps, and loses its slots to C behind it."""
    lost = [{"kind": "finish", "req": f"Q{k}", "i": 3 * k} for k in range(gaps - 1)]
    victim = life("B", [11, 12, 13], [1, 2, 3], row=1, step=1)
    behind = [
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        *victim[1:3],
        victim[3] | {"step": 2},
        *decode("B", 14, 4, row=1, position=3, step=3),
        {"kind": "free", "owner": "B", "slots": [1, 2, 3], "reason": "dedup"},
        *life("C", [31, 32, 33], [1, 2, 3], row=2, step=4),
        *decode("B", 15, 6, row=1, position=4, step=5),
    ]
    at = 3 * (gaps - 1)
    lost += [event | {"i": at + k} for k, event in enumerate(victim)]
    return lost + [event | {"i": at + 9 + k} for k, event in enumerate(behind)]


@pytest.mark.parametrize("gaps", [1, 2, 150])
def test_the_last_of_many_gaps_counts_as_the_first_does(gaps: int) -> None:
    (finding,) = diagnose(HEAD, _many_gaps(gaps)).findings
    assert (finding.cls, finding.confidence) == ("use_after_free", "probable")
    assert finding.lost_within == 5


def test_ledgers_from_before_a_gap_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is as large as the pool, however many gaps a trace has."""
    alive: weakref.WeakSet[Diagnoser] = weakref.WeakSet()
    most = [0]

    class Counted(Diagnoser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr(diagnose_module, "Diagnoser", Counted)
    head = HEAD | {"pool": HEAD["pool"] | {"slots": 1 << 17}}
    (finding,) = diagnose(head, _many_gaps(12)).findings
    assert finding.lost_within == 5
    assert len(most) == 14
    assert max(most) <= 3
