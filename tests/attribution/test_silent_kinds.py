"""Kinds of events that a header promises and the trace does not hold: neither green nor certain."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE
from kvcanary_cli.replay.coverage import CLASS_NEEDS, WITHOUT
from kvcanary_cli.trace.schema import KINDS
from tests.attribution.events import numbered
from tests.attribution.helpers import CAPTURES, SCENARIOS, diagnose, events_of

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
CLEAN = ("clean_mixed_chunk", "canary_clean_all", "swa_canary_clean", "vllm_clean", "ngram_clean")
#: Family whose one kind, or all of whose kinds, is left out, to a class that it alone shows.
SHOWN = {
    "map": "stale_mapping",
    "history": "wrong_token_fed",
    "kv_hash": "payload_mutation",
    "lut": "bad_translation",
}
ENGINE_EVENTS = 700


def _clean(name: str) -> tuple[Event, list[Event]]:
    """The beginning of a captured run in which nothing is wrong."""
    head, events = events_of(CAPTURES / f"{name}.jsonl.zst")
    return head, events[:ENGINE_EVENTS]


def _without(events: list[Event], *kinds: str) -> list[Event]:
    return numbered([event for event in events if event["kind"] not in kinds])


@pytest.mark.parametrize("family", SHOWN)
@pytest.mark.parametrize("name", CLEAN)
def test_a_promised_family_that_never_shows_is_told_and_blinds(name: str, family: str) -> None:
    head, events = _clean(name)
    if family not in head["records"]:
        assert all(event["kind"] != family for event in events)
        return
    coverage = diagnose(head, events).replay.coverage
    assert coverage.silent == ()
    assert SHOWN[family] not in coverage.blind_to
    told = diagnose(head, _without(events, family))
    coverage = told.replay.coverage
    assert told.findings == ()
    assert coverage.silent == (family,)
    assert SHOWN[family] in coverage.blind_to
    assert any(family in note and WITHOUT[family] in note for note in coverage.notes)
    assert told.verdict == ("not_checked" if not coverage.entries_verified else "clean")


@pytest.mark.parametrize("kinds", [*combinations(("alloc", "free", "own"), 1), ("free", "own")])
@pytest.mark.parametrize("name", CLEAN)
def test_what_rests_on_a_kind_that_never_shows_is_possible_only(
    name: str, kinds: tuple[str, ...]
) -> None:
    head, events = events_of(CAPTURES / f"{name}.jsonl.zst")
    told = diagnose(head, _without(events, *kinds))
    for finding in told.findings:
        assert finding.confidence == POSSIBLE
        assert finding.unseen


def test_without_any_owner_event_ownership_counts_as_not_checked() -> None:
    head, events = _clean("clean_mixed_chunk")
    result = diagnose(head, _without(events, "alloc", "free", "own")).replay
    assert result.coverage.silent == ("alloc",)
    assert not result.ownership_checked


FAMILIES = ("alloc", "map", "history", "prefix", "transfer", "launch", "spec", "request", "lut")


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.jsonl")), ids=lambda p: p.stem)
def test_a_class_whose_families_are_absent_is_never_certain(path: Path) -> None:
    head, events = events_of(path)
    for number in (1, 2):
        for families in combinations(FAMILIES, number):
            records = frozenset(head["records"]) - set(families)
            kept = numbered([e for e in events if KINDS[e["kind"]].family not in families])
            if not kept:
                continue
            for finding in diagnose(head | {"records": sorted(records)}, kept).findings:
                ways = CLASS_NEEDS.get(finding.cls, ())
                if ways and not any(way <= records for way in ways):
                    assert finding.confidence != CERTAIN, (families, finding)
