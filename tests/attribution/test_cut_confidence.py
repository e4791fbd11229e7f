"""A cut begins with a state: what rests on that is not certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import SCENARIOS, diagnose, diagnose_path
from tests.replay.cut_helpers import cut_to

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "path", sorted(SCENARIOS.glob("*.jsonl")), ids=lambda p: p.stem.split("_")[0]
)
def test_another_cause_than_in_the_whole_trace_is_not_certain(path: Path, tmp_path: Path) -> None:
    whole = diagnose_path(path)
    for step in sorted({f.first_bad_step for f in whole.findings if f.first_bad_step is not None}):
        cut, _ = cut_to(path, tmp_path, (step, step))
        told = {(f.cls, f.subtype, f.cause_event) for f in whole.findings}
        for finding in diagnose_path(cut).findings:
            same = (finding.cls, finding.subtype, finding.cause_event) in told
            assert same or finding.confidence != "certain"


def test_what_happens_behind_the_cut_is_certain() -> None:
    events = numbered(
        [
            *life("Z", [1], [9], row=4, step=1),
            *life("A", [101, 102, 103], [1, 2, 3], row=1, step=2),
            {"kind": "free", "owner": "A", "slots": [2]},
            *life("C", [31], [2], row=2, step=3),
            *decode("A", 201, 4, row=1, position=3, step=4),
        ]
    )
    for head in (HEAD, HEAD | {"cut": {"steps": [1, 4], "reqs": None, "of_sha256": "0" * 64}}):
        (finding,) = diagnose(head, events).findings
        assert (finding.cause_event, finding.confidence) == (index_of(events, "free"), "certain")
