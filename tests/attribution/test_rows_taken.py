"""A row that another request gets while the one before still runs, with no release of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _events(launched: bool, between: list[Event], taken: list[int]) -> list[Event]:
    """C runs in A's row 1, with ``taken`` as its slots, before A's next step is done."""
    mine = decode("A", 201, 6, row=1, position=3, step=9)
    queue: list[Event] = [{"kind": "launch", "step": 9, "req": "A"}] if launched else []
    ids = [31, 32][: len(taken)]
    return numbered(
        [
            *life("A", [101, 102, 103], [1, 2, 3], row=1, step=1),
            *life("B", [21, 22], [4, 5], row=2, step=2),
            *mine[:-1],
            *queue,
            *between,
            *life("C", ids, taken, row=1, step=4),
            mine[-1],
        ]
    )


BETWEEN: dict[str, list[Event]] = {
    "nothing": [],
    "another": life("D", [41], [9], row=3, step=3),
    "other_release": [{"kind": "row_release", "row": 3, "req": "D"}],
}


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("taken", [[7], [7, 8]])
@pytest.mark.parametrize("family", [None, "alloc", "request", "history"])
def test_the_new_tenant_is_the_culprit(
    launched: bool, between: str, taken: list[int], family: str | None
) -> None:
    kinds = {"alloc": {"alloc"}, "request": {"row_release"}, "history": {"history"}}
    head = HEAD | {"records": [*HEAD["records"], "launch"]}
    head["records"] = [name for name in head["records"] if name != family]
    events = _events(launched, BETWEEN[between], taken)
    events = numbered(e for e in events if e["kind"] not in kinds.get(family or "", ()))
    diagnosis = diagnose(head, events)
    found = {(f.cls, f.subtype, f.victim, f.culprit.req) for f in diagnosis.findings}
    assert found == {("stale_mapping", "row_recycled_in_flight", "A", "C")}
    (finding,) = diagnosis.findings
    assert finding.cause_event == index_of(events, "map", slots=taken)
    assert (finding.confidence == "certain") == (family != "alloc")
    assert finding.slots <= set(taken)
