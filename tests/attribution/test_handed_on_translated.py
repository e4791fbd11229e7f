"""A full slot that is handed on is translated anew: what the SWA lane shows has the same cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.inject.inject import load_run
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.selftest.draw import draw_kind
from tests.attribution.helpers import CAPTURES, diagnose

if TYPE_CHECKING:
    from kvcanary_cli.inject.clean_run import CleanRun

Event = dict[str, Any]
SEEDS = 5


@pytest.fixture(scope="module")
def swa() -> CleanRun:
    return load_run(str(CAPTURES / "swa_canary_clean.jsonl.zst"))


@pytest.mark.parametrize("kind", ["double_free", "early_free", "free_by_non_owner", "double_alloc"])
def test_both_lanes_are_one_finding(kind: str, swa: CleanRun) -> None:
    """Without fingerprints the SWA lane fails first: the new owner's slot there is another."""
    head = swa.header | {"records": [f for f in swa.header["records"] if f != "kv_hash"]}
    lanes = set()
    for drawn in draw_kind(swa, KINDS[kind], SEEDS).faults:
        built = drawn.unpack()
        events = [*swa.events[: built.first], *built.tail]
        kept = [event for event in events if event["kind"] != "kv_hash"]
        numbers = {k: event["i"] for k, event in enumerate(kept)}
        told = diagnose(head, [event | {"i": k} for k, event in enumerate(kept)])
        (finding,) = told.findings
        assert finding.cls == KINDS[kind].cls
        assert finding.subtype in built.planted.subtypes
        assert finding.cause_event is not None
        assert numbers[finding.cause_event] in built.causes
        assert finding.culprit.req in built.planted.culprits
        assert finding.violations == len(told.replay.violations)
        if finding.pool_kind == "FULL":
            assert finding.slots <= built.planted.slots
        else:
            table = {
                f: s
                for e in events
                if e["kind"] == "lut"
                for f, s in zip(e["full"], e["swa"], strict=True)
            }
            assert finding.slots <= {table[slot] for slot in built.planted.slots}
        lanes.add(finding.pool_kind)
    assert lanes


@pytest.mark.parametrize("kind", ["stale_lut", "mislanded_write"])
def test_a_translation_that_is_wrong_by_itself_stays_one(kind: str, swa: CleanRun) -> None:
    for drawn in draw_kind(swa, KINDS[kind], SEEDS).faults:
        built = drawn.unpack()
        (finding,) = diagnose(swa.header, [*swa.events[: built.first], *built.tail]).findings
        assert (finding.cls, finding.confidence) == ("bad_translation", "certain")
