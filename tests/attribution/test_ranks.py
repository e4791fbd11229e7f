"""What two ranks may not differ in, from whole traces."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.rank_compare import diverging_pairs
from kvcanary_cli.attribution.report import Report
from kvcanary_cli.report.finding_summary import summary_line
from tests.attribution.events import extend, rank_head
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding

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
    assert "named slots that stand for other content on rank 1 (event 13)" in told
    assert summary_line(finding).endswith(" rank=1")


def _other_prefix(events: list[Event]) -> None:
    """D's hit is a position shorter: rank 1 computes it again, in a slot of its own."""
    match = next(e for e in events if e["kind"] == "match")
    match["slots"] = match["slots"][:1]
    alloc, cells, forward = events[-3:]
    alloc["slots"] = [6, 7]
    cells["slots"] = [1, 6, 7]
    forward |= extend(3, "D", 3, 1, [12, 13], [6, 7])


def _told(finding: Finding) -> str:
    return " ".join(finding.evidence)


@pytest.mark.parametrize("change", [_other_token, _other_request, _other_prefix, None])
def test_that_ranks_differ_does_not_tell_which_is_right(
    change: Callable[[list[Event]], None] | None,
) -> None:
    events = _run() if change else _run("P2", (3, 4))
    if change is not None:
        change(events)
    (finding,) = _report(events).divergences
    assert finding.confidence == ("possible" if finding.cause_event is None else "probable")
    assert ("nothing that was recorded before it" in _told(finding)) == (
        finding.cause_event is None
    )
    assert "which of the two ranks is right, their traces do not show" in finding.evidence
    assert finding.culprit.req is None


@pytest.mark.parametrize(
    ("axis", "change", "weak"),
    [
        ("tp", _other_prefix, False),
        ("pp", _other_prefix, False),
        ("pp", _other_token, True),
        ("cp", _other_prefix, True),
        ("cp", _other_token, True),
    ],
)
def test_ranks_that_may_differ_are_doubted(
    axis: str, change: Callable[[list[Event]], None], weak: bool
) -> None:
    heads = [rank_head(0), rank_head(0)]
    for k, head in enumerate(heads):
        head["rank"] = head["rank"] | {"tp": 0, axis: k, f"{axis}_size": 2}
    events = _run()
    change(events)
    traces = [diagnose(head, each) for head, each in zip(heads, (_run(), events), strict=True)]
    ((_pair, finding),) = diverging_pairs([trace.rank for trace in traces])
    told = "stages of one pipeline" in _told(finding) or f"the axis {axis}" in _told(finding)
    assert told is weak
    assert finding.confidence == ("possible" if weak or finding.cause_event is None else "probable")


def test_replicas_are_not_compared() -> None:
    events = _run()
    _other_prefix(events)
    head = rank_head(0)
    head["rank"] = head["rank"] | {"dp": 1, "dp_size": 2}
    first = rank_head(0)
    first["rank"] = first["rank"] | {"dp_size": 2}
    traces = [diagnose(first, _run()), diagnose(head, events)]
    assert Report.of(traces).divergences == ()


def test_lost_events_leave_a_difference_possible() -> None:
    events = _run()
    _other_prefix(events)
    kept = [e for e in events if e["i"] != 6]
    traces = [diagnose(rank_head(0), _run()), diagnose(rank_head(1), kept)]
    (finding,) = Report.of(traces).divergences
    assert finding.confidence == "possible"
    assert "may lie in a gap" in _told(finding)


def _wrong_token(events: list[Event]) -> None:
    events[-1]["input_ids"] = [99]


def _short_prefix(events: list[Event]) -> None:
    """D goes on a position too early, with the token of the next one: lengths differ, too."""
    events[-2]["slots"] = [1, 6]
    events[-1] |= {"seq_lens": [2], "extend_prefix_lens": [1], "positions": [1]}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("change", [_wrong_token, _short_prefix])
def test_a_fault_of_one_rank_is_told_once(
    change: Callable[[list[Event]], None], faulty: int, ranks: int
) -> None:
    """The ranks that did not do so are its witnesses, and no finding of their own."""
    traces = []
    for rank in range(ranks):
        events = _run()
        if rank == faulty:
            change(events)
        head = rank_head(rank)
        head["rank"] = head["rank"] | {"tp_size": ranks}
        traces.append(diagnose(head, events))
    report = Report.of(traces)
    assert report.divergences == ()
    (finding,) = report.findings
    assert (finding.cls, finding.rank, finding.id) == ("wrong_token_fed", faulty, "F1")
    witnesses = ", ".join(str(k) for k in range(ranks) if k != faulty)
    if faulty == 0 or ranks == 2:
        assert f" {witnesses} did otherwise: step 3, request D" in _told(finding)
    assert report.verdict == "corrupt"


def test_what_both_ranks_did_wrong_is_not_what_they_differ_by() -> None:
    """Both fed B a wrong token; that rank 1 hit less for D is another fault."""
    both = [_run(), _run()]
    for events in both:
        next(e for e in events if e.get("reqs") == ["B"])["input_ids"] = [11, 99]
    _other_prefix(both[1])
    report = Report.of([diagnose(rank_head(k), events) for k, events in enumerate(both)])
    (finding,) = report.divergences
    assert (finding.subtype, finding.victim, finding.confidence) == ("prefix_len", "D", "possible")
    assert "rank 1 has a finding of its own by then: wrong_token_fed" in _told(finding)
    assert not any("consistent in itself" in r.because for r in finding.ruled_out)
    assert len(report.findings) == 3


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
