"""Batches of real engines: the planted bugs are named, clean runs give nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.helpers import CAPTURES, diagnose_path, events_of

if TYPE_CHECKING:
    from pathlib import Path

BUGS = {
    "double_free": ("double_alloc", {"free_by_non_owner"}),
    "kv_bytes": ("payload_mutation", {"kv_bytes"}),
    "shift_position": ("position_misalign", {"constant_offset"}),
    "swap_rows": ("stale_mapping", {"cells_rewritten"}),
    "wrong_token": ("wrong_token_fed", {"wrong_input_id"}),
}
CLEAN = sorted(p for p in CAPTURES.glob("*.jsonl.zst") if not p.name.startswith("bug_"))


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_labelled_bug(bug: str) -> None:
    path = CAPTURES / f"bug_{bug}.jsonl.zst"
    truth = events_of(path)[0]["ground_truth"]
    findings = diagnose_path(path).findings

    assert len(findings) == 1
    finding = findings[0]
    cls, subtypes = BUGS[bug]
    assert finding.cls == cls
    assert finding.subtype in subtypes
    assert finding.slots == set(truth.get("slots", [truth.get("slot")]))
    if bug == "kv_bytes":
        # Several requests of the batch read the shared slot; the batch's first row stands first.
        assert truth["rid"] in finding.blast_radius
    else:
        assert finding.victim == truth["rid"]
    # What is wrong before a forward is read by it, but a slot given out twice only when rewritten.
    late = {"double_free": 1}.get(bug, 0)
    assert finding.first_bad_step == truth["step"] + late


def test_the_double_free_names_the_free() -> None:
    path = CAPTURES / "bug_double_free.jsonl.zst"
    header, events = events_of(path)
    truth = header["ground_truth"]
    finding = diagnose_path(path).findings[0]
    assert finding.cause_event is not None
    cause = next(e for e in events if e["i"] == finding.cause_event)
    assert cause["kind"] == "free"
    assert truth["slot"] in cause["slots"]
    written = next(e for e in events if e["i"] == finding.corrupting_event)
    assert written["kind"] == "forward"
    assert truth["slot"] in written["out_cache_loc"]
    assert finding.culprit.req in written["reqs"]


@pytest.mark.parametrize("path", CLEAN, ids=lambda p: p.name.split(".")[0])
def test_a_clean_run_gives_nothing(path: Path) -> None:
    diagnosis = diagnose_path(path)
    assert diagnosis.ownership == ()
    assert diagnosis.findings == ()
    assert diagnosis.verdict == "clean"
