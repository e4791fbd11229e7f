"""A forward whose ``seq_lens`` is not prefix plus extend."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.result import PROBABLE
from kvcanary_cli.replay.options import Verify
from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.attribution.helpers import diagnose
from tests.replay.documents import document

Event = dict[str, Any]
MODES = ("EXTEND", "MIXED", "SPLIT_PREFILL")


def _two_chunks() -> list[Event]:
    """A's prompt in two chunks, B's in one, and a decode of A."""
    ids, slots = [101, 102, 103, 104, 105], [1, 2, 3, 4, 5]
    return numbered(
        [
            {"kind": "history", "req": "A", "start": 0, "ids": ids},
            {"kind": "alloc", "owner": "A", "slots": slots},
            {"kind": "map", "row": 1, "start": 0, "slots": slots},
            extend(1, "A", 1, 0, ids[:3], slots[:3]),
            *life("B", [201, 202], [7, 8], row=2, step=2),
            extend(3, "A", 1, 3, ids[3:], slots[3:]),
            *decode("A", 106, 9, 1, 5, step=4),
        ]
    )


def _changed(events: list[Event], step: int, **fields: object) -> list[Event]:
    return [e | fields if e.get("step") == step else e for e in events]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("off", [1, -1, 4])
def test_an_extend_that_disagrees_with_its_lengths_is_told(mode: str, off: int) -> None:
    events = _changed(_two_chunks(), 3, forward_mode=mode, seq_lens=[5 + off])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("position_misalign", "lengths_disagree")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("A", "A", {4, 5})
    (cause,) = [e["i"] for e in events if e.get("step") == 3]
    assert (finding.first_bad_step, finding.cause_event) == (3, cause)
    assert finding.confidence == PROBABLE
    assert f"is {5 + off}; its prefix and what it writes end at 5" in finding.evidence[0]
    reads = "reads up to position" if off > 0 else "leaves the last 1 positions out"
    assert reads in finding.evidence[1]


def test_every_step_that_is_off_alike_is_one_finding() -> None:
    events = _changed(_changed(_two_chunks(), 1, seq_lens=[5]), 3, seq_lens=[7])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.first_bad_step, finding.slots) == (1, {1, 2, 3})


def test_positions_that_are_off_are_told_alone() -> None:
    events = _changed(_two_chunks(), 3, positions=[4, 5], seq_lens=[6])
    assert {f.subtype for f in diagnose(HEAD, events).findings} == {"constant_offset"}


def test_padding_rows_have_no_length() -> None:
    padded = {
        "reqs": ["A", None],
        "req_pool_indices": [1, 0],
        "seq_lens": [5, 9],
        "extend_prefix_lens": [3, 0],
        "extend_seq_lens": [2, 1],
        "input_ids": [104, 105, 0],
        "positions": [3, 4, 0],
        "out_cache_loc": [4, 5, 0],
    }
    assert not diagnose(HEAD, _changed(_two_chunks(), 3, **padded)).findings


@pytest.mark.parametrize("mode", [*MODES, "DLLM_EXTEND"])
def test_lengths_that_agree_are_none(mode: str) -> None:
    assert not diagnose(HEAD, _changed(_two_chunks(), 3, forward_mode=mode)).findings


@given(st.sampled_from([1, 2, 3]), st.integers(-2, 9), st.sampled_from([None, 1, 4]))
@settings(max_examples=20, deadline=None)
def test_compiled_events_leave_it_to_the_general_path(
    step: int, off: int, segment_events: int | None
) -> None:
    length = {1: 3, 2: 2, 3: 5}[step] + off
    events = _changed(_two_chunks(), step, seq_lens=[length])
    general = document(
        HEAD, events, verify=Verify.FULL, compiled=False, segment_events=segment_events
    )
    assert len(general["findings"]) == (off != 0)
    assert document(HEAD, events, compiled=True, segment_events=segment_events) == general
