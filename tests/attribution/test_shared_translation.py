"""Two live full slots that one window slot stands for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _lut(events: list[Event], full: list[int], swa: list[int]) -> list[Event]:
    """The table is set right behind the alloc."""
    at = next(k for k, e in enumerate(events) if e["kind"] == "alloc") + 1
    return [*events[:at], {"kind": "lut", "full": full, "swa": swa}, *events[at:]]


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_the_event_that_set_the_table_is_the_cause(shared: int) -> None:
    events = numbered(
        [
            *_lut(life("A", [11, 12, 13], [1, 2, 3], row=1, step=1), [1, 2, 3], [1, 2, 3]),
            *_lut(life("B", [21, 22], [4, 5], row=2, step=2), [4, 5], [shared, 4]),
            *_lut(decode("A", 14, 6, row=1, position=3, step=3), [6], [6]),
        ]
    )
    pool = {"slots": 64, "rows": 9, "row_len": 64, "swa_slots": 20, "swa_window": 8}
    head = HEAD | {"pool": pool, "records": [*HEAD["records"], "lut"]}  # type: ignore[misc]
    (finding,) = diagnose(head, events).findings
    assert (finding.cls, finding.subtype) == ("bad_translation", "shared_swa_slot")
    assert finding.cause_event == [e["i"] for e in events if e["kind"] == "lut"][1]
    assert finding.corrupting_event == [e["i"] for e in events if e["kind"] == "forward"][1]
    assert (finding.victim, finding.culprit.req, finding.slots) == ("A", "B", {shared})
    assert finding.confidence == "certain"


def test_a_window_slot_beyond_the_full_pool_is_judged() -> None:
    """The window pool may be larger: its slots are no slots of the full pool."""
    events = numbered(
        [
            *_lut(life("A", [11, 12, 13], [1, 2, 3], row=1, step=1), [1, 2, 3], [11, 12, 13]),
            *_lut(life("B", [21, 22], [4, 5], row=2, step=2), [4, 5], [13, 14]),
            *_lut(decode("A", 14, 6, row=1, position=3, step=3), [6], [16]),
        ]
    )
    pool = {"slots": 8, "rows": 9, "row_len": 64, "swa_slots": 20, "swa_window": 8}
    head = HEAD | {"pool": pool, "records": [*HEAD["records"], "lut"]}  # type: ignore[misc]
    (finding,) = diagnose(head, events).findings
    assert (finding.cls, finding.slots) == ("bad_translation", {13})


@pytest.mark.parametrize("changed", [None, 0, 17], ids=["not since", "dropped", "given anew"])
def test_what_the_table_said_later_did_not_mislead_a_write(changed: int | None) -> None:
    """B's write landed in A's window slot; the entry of B's full slot may be changed behind it."""
    wrong = life("B", [21, 22], [4, 5], row=2, step=2)
    wrong[-1]["landed"] = {"pool": "swa", "slots": [2, 15]}
    later = [] if changed is None else [{"kind": "lut", "full": [4], "swa": [changed]}]
    events = numbered(
        [
            *_lut(life("A", [11, 12, 13], [1, 2, 3], row=1, step=1), [1, 2, 3], [1, 2, 3]),
            *_lut(wrong, [4, 5], [14, 15]),
            *later,
            *_lut(decode("A", 14, 6, row=1, position=3, step=3), [6], [6]),
        ]
    )
    pool = {"slots": 64, "rows": 9, "row_len": 64, "swa_slots": 20, "swa_window": 8}
    head = HEAD | {"pool": pool, "records": [*HEAD["records"], "lut"]}  # type: ignore[misc]
    (finding,) = diagnose(head, events).findings
    said, wrote = [e["i"] for e in events if e["kind"] in ("lut", "forward")][2:4]
    assert (finding.cls, finding.subtype) == ("bad_translation", "stale_translation_cache")
    assert finding.cause_event == (said if changed is None else wrote)
    assert (finding.corrupting_event, finding.culprit.req) == (wrote, "B")
