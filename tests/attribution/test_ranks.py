"""What two ranks may not differ in, from whole traces."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.report import Report
from kvcanary_cli.report.finding_summary import summary_line
from tests.attribution.events import extend, rank_head
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.diagnose import Diagnosis

Event = dict[str, Any]


def _prefill(step: int, req: str, row: int, tokens: list[int], slots: list[int]) -> list[Event]:
    return [
        {"kind": "history", "req": req, "start": 0, "ids": tokens},
        {"kind": "alloc", "owner": req, "slots": slots},
        {"kind": "map", "row": row, "start": 0, "slots": slots},
        extend(step, req, row, 0, tokens, slots),
    ]


def _hit(step: int, entry: str, cached: list[int]) -> list[Event]:
    return [
        {"kind": "history", "req": "D", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "D", "entry": entry, "slots": cached},
        {"kind": "alloc", "owner": "D", "slots": [6]},
        {"kind": "map", "row": 3, "start": 0, "slots": [*cached, 6]},
        extend(step, "D", 3, 2, [13], [6]),
    ]


def _run(entry: str = "P1", cached: tuple[int, int] = (1, 2)) -> list[Event]:
    events = [
        *_prefill(1, "A", 1, [11, 12], [1, 2]),
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2], "entry": "P1"},
        {"kind": "finish", "req": "A"},
        *_prefill(2, "B", 2, [11, 12], [3, 4]),
        {"kind": "own", "from": "B", "owner": "tree", "slots": [3, 4], "entry": "P2"},
        {"kind": "finish", "req": "B"},
        *_hit(3, entry, list(cached)),
    ]
    return [{**copy.deepcopy(event), "i": i} for i, event in enumerate(events)]


def _report(others: list[Event], tokens: str = "raw") -> Report:
    traces: list[Diagnosis] = [
        diagnose(rank_head(0, tokens), _run()),
        diagnose(rank_head(1, tokens), others),
    ]
    assert not any(trace.findings for trace in traces)
    return Report.of(traces)


def _other_token(events: list[Event]) -> None:
    for event in events:
        for name in ("ids", "input_ids"):
            if name in event:
                event[name] = [99 if token == 13 else token for token in event[name]]


def _other_request(events: list[Event]) -> None:
    for event in events:
        for name in ("req", "owner", "from"):
            if event.get(name) == "B":
                event[name] = "C"
        if event.get("reqs") == ["B"]:
            event["reqs"] = ["C"]


@pytest.mark.parametrize(
    ("change", "subtype", "step", "victim"),
    [
        (_other_token, "fed_tokens", 3, "D"),
        (_other_request, "request_set", 2, "B"),
    ],
)
def test_ranks_that_did_otherwise_are_told(
    change: Callable[[list[Event]], None], subtype: str, step: int, victim: str
) -> None:
    events = _run()
    change(events)
    (finding,) = _report(events).divergences
    assert (finding.cls, finding.subtype) == ("rank_divergence", subtype)
    assert (finding.first_bad_step, finding.victim) == (step, victim)


def test_a_match_of_another_entry_is_told_with_both_events() -> None:
    (finding,) = _report(_run("P2", (3, 4))).divergences
    assert (finding.subtype, finding.first_bad_step, finding.victim) == ("matched_entry", 3, "D")
    assert finding.cause_event == 13
    told = " ".join(finding.evidence)
    assert "only rank" not in told
    assert "named other slots on rank 1 (event 13) than on rank 0 (event 13)" in told
    assert summary_line(finding).endswith(" rank=1")


def test_slots_alone_may_differ() -> None:
    """Two allocators that do not go in step are no fault of their own."""
    events = _run()
    for event in events:
        for name in ("slots", "out_cache_loc"):
            if name in event:
                event[name] = [slot + 7 for slot in event[name]]
    assert _report(events).divergences == ()


def test_ranks_that_were_compared_are_not_blind_to_differences() -> None:
    alone = Report.of([diagnose(rank_head(0), _run())])
    assert "rank_divergence" in alone.traces[0].replay.coverage.blind_to
    for trace in _report(_run()).traces:
        assert "rank_divergence" not in trace.replay.coverage.blind_to


def test_tokens_of_two_keys_say_nothing() -> None:
    events = _run()
    for event in events:
        for name in ("ids", "input_ids"):
            if name in event:
                event[name] = [token + 1000 for token in event[name]]
    assert _report(events, "salted").divergences == ()
    assert _report(events, "raw").divergences
