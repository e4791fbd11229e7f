"""A window in which a cause must lie holds the cause that the whole trace names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.events import HEAD, index_of, life, numbered
from tests.attribution.helpers import CAPTURES, SCENARIOS, diagnose, diagnose_path
from tests.replay.cut_helpers import cut_to

if TYPE_CHECKING:
    from pathlib import Path

TRACES = [*sorted(SCENARIOS.glob("*.jsonl")), *sorted(CAPTURES.glob("bug_*.jsonl.zst"))]


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name.split(".")[0])
def test_the_window_of_a_cut_holds_the_cause_of_the_whole(path: Path, tmp_path: Path) -> None:
    whole = diagnose_path(path).findings
    steps = [f.first_bad_step for f in whole if f.first_bad_step is not None]
    compared = 0
    for step in sorted({at for first in steps for at in (first, first + 2)}):
        if not any(first >= step for first in steps) and path.parent == SCENARIOS:
            continue
        cut, _ = cut_to(path, tmp_path, (step, None))
        for finding in diagnose_path(cut).findings:
            causes = {
                f.cause_event
                for f in whole
                if f.cause_event is not None
                and (f.victim, f.pool_kind, f.worker)
                == (finding.victim, finding.pool_kind, finding.worker)
                and f.slots & finding.slots
            }
            compared += 1
            if causes and finding.cause_event is None and finding.cause_window is not None:
                first, last = finding.cause_window
                assert any(first <= cause <= last for cause in causes), (step, finding)
    assert compared


@pytest.mark.parametrize("first", ["reader", "writer"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_write_of_the_forward_that_meets_changed_bytes_is_no_unknown_one(
    first: str, position: int
) -> None:
    """Whatever the order in the batch: its writer is known, only the free is not."""
    families = ["forward", "map", "request", "history", "kv_hash"]
    slot = (1, 2, 3)[position]
    rows = [("A", 1, 4, 40, 3, 4), ("C", 2, 1, 31, 0, slot)]
    rows = rows if first == "reader" else rows[::-1]
    names = ("reqs", "req_pool_indices", "seq_lens", "input_ids", "positions", "out_cache_loc")
    batch = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    events = numbered(
        [
            *(e for e in life("A", [11, 12, 13], [1, 2, 3], row=1, step=1) if e["kind"] != "alloc"),
            _hashes("after", 1, [1, 2, 3], [101, 102, 103]),
            {"kind": "history", "req": "A", "start": 3, "ids": [40]},
            {"kind": "map", "row": 1, "start": 3, "slots": [4]},
            {"kind": "history", "req": "C", "start": 0, "ids": [31]},
            {"kind": "map", "row": 2, "start": 0, "slots": [slot]},
            _hashes("before", 2, [1, 2, 3], [101, 102, 103]),
            {"kind": "forward", "step": 2, "forward_mode": "DECODE", **batch},
            _hashes("after", 2, [4, slot], [104, 999]),
        ]
    )
    (finding,) = diagnose(HEAD | {"records": families}, events).findings
    wrote = index_of(events, "forward", step=2)
    assert (finding.cls, finding.subtype) == ("use_after_free", "free_not_recorded")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("A", "C", {slot})
    assert (finding.cause_window, finding.corrupting_event) == ((1, wrote), wrote)
    assert finding.confidence == "possible"


def _hashes(phase: str, step: int, slots: list[int], values: list[int]) -> dict[str, object]:
    return {"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": values}
