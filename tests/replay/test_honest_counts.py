"""What a replay says it checked is what it checked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replay.helpers import Event, header, numbered, replay

TOKENS = [11, 12, 13, 14, 15]


def _extend(step: int, prefix: int, slots: list[int], **more: Any) -> Event:
    end = prefix + len(slots)
    return {
        "kind": "forward",
        "step": step,
        "forward_mode": "EXTEND",
        "reqs": ["A"],
        "req_pool_indices": [1],
        "seq_lens": [end],
        "input_ids": TOKENS[prefix:end],
        "positions": list(range(prefix, end)),
        "out_cache_loc": slots,
        "extend_prefix_lens": [prefix],
        "extend_seq_lens": [len(slots)],
    } | more


def _history() -> Event:
    return {"kind": "history", "req": "A", "start": 0, "ids": TOKENS}


def _map(start: int, slots: list[int]) -> Event:
    return {"kind": "map", "row": 1, "start": start, "slots": slots}


def test_a_cell_that_names_the_padding_slot_is_not_counted_as_verified() -> None:
    events = [_history(), _map(0, [1, 2, 3, 4]), _extend(1, 0, [1, 2, 3]), _map(1, [0])]
    result = replay(header(), numbered([*events, _extend(2, 3, [4])]))
    assert result.coverage.entries_verified == 2
    assert result.coverage.token_entries == 2
    assert result.coverage.entries_skipped == 1
    assert any("padding slot 0" in reason for reason in result.coverage.skip_reasons)


@pytest.mark.parametrize(
    ("records", "events"),
    [
        (["forward"], [_extend(1, 0, [1, 2]), _extend(2, 2, [3])]),
        (
            ["forward", "map"],
            [
                {
                    "kind": "forward",
                    "step": 1,
                    "forward_mode": "IDLE",
                    "reqs": [],
                    "req_pool_indices": [],
                    "seq_lens": [],
                    "input_ids": [],
                    "positions": [],
                    "out_cache_loc": [],
                }
            ],
        ),
    ],
    ids=["no request table", "idle"],
)
def test_nothing_verified_is_no_clean_verdict(records: list[str], events: list[Event]) -> None:
    result = replay(header(records=records), numbered(events))
    assert result.coverage.entries_verified == 0
    assert result.verdict == "not_checked"


@pytest.mark.parametrize("reads", ["known", "unknown", "none"])
def test_rows_none_of_whose_reads_could_be_checked_are_no_clean_verdict(reads: str) -> None:
    """The recording began with a server that was running: what slots held then is not known."""
    known = [_history(), _map(0, [1, 2, 3, 4]), _extend(1, 0, [1, 2, 3])]
    first = known if reads == "known" else [_history(), _map(0, [1, 2, 3, 4])]
    last = _extend(2, 0, [1]) if reads == "none" else _extend(2, 3, [4])
    result = replay(header(starts_mid_run=True), numbered([*first, last]))
    verified = {"known": 3, "unknown": 0, "none": 0}[reads]
    skipped = 3 if reads == "unknown" else 0
    coverage = result.coverage
    assert (coverage.entries_verified, coverage.entries_skipped) == (verified, skipped)
    assert result.verdict == ("not_checked" if reads == "unknown" else "clean")


def _hash(phase: str, step: int, slots: list[int], half: str, value: int) -> Event:
    hashes = [value + slot for slot in slots]
    event = {"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": hashes}
    return event | {"half": half}


@pytest.mark.parametrize("checked", [False, True])
def test_fingerprints_of_the_v_half_count_only_where_they_are_compared(checked: bool) -> None:
    records = ["forward", "map", "history", "kv_hash"]
    events = [_history(), _map(0, [1, 2, 3]), _extend(1, 0, [1, 2])]
    events += [_hash("after", 1, [1, 2], "k", 5), _hash("after", 1, [1, 2], "v", 7)]
    events += [_hash("before", 2, [1, 2], "k", 5), _hash("before", 2, [1, 2], "v", 8)]
    result = replay(
        header(records=records), numbered([*events, _extend(2, 2, [3])]), v_half=checked
    )
    assert result.verdict == ("corrupt" if checked else "clean")
    assert result.coverage.kv_hashes == (8 if checked else 4)
    said = any("V half were not compared" in note for note in result.coverage.notes)
    assert said is not checked


def test_an_overflowing_group_may_be_left_unverified_in_a_mid_run_trace() -> None:
    events = [_map(0, [1, 2, 3, 4, 5]), _extend(1, 3, [4]), _extend(2, 4, [5])]
    from kvcanary_cli.replay.result import Capacities

    tight = Capacities(verify=2, write_req=9, write_entry=9, source="--capacity")
    mid_run = header(starts_mid_run=True)
    result = replay(mid_run, numbered(events), capacities=tight, strict_upstream=True)
    assert result.coverage.entries_verified == 0
    assert not len(result.violations)


def test_steps_outside_the_range_are_not_counted() -> None:
    events = [_history(), _map(0, [1, 2, 3, 4])]
    events += [_extend(step, step - 1, [step]) for step in (1, 2, 3, 4)]
    result = replay(header(), numbered(events), steps=(2, 3))
    assert (result.coverage.steps, result.trace.steps) == (2, 3)
    assert result.trace.events == 6
    assert result.coverage.entries_verified == 3


def test_a_small_ring_does_not_change_what_the_watcher_sees() -> None:
    from kvcanary_cli.attribution.diagnose import diagnose_trace
    from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.trace.reader import open_trace

    path = "tests/data/scenarios/S01_use_after_free.jsonl"
    whole, cut = (
        diagnose_trace(
            open_trace(path), ReplayOptions(backend="cpu", ring_capacity=ring), NOT_CHECKED
        )
        for ring in (None, 1)
    )
    assert len(cut.replay.violations) == 1
    assert [f.slots for f in cut.findings] == [f.slots for f in whole.findings]


def test_unknown_content_copied_between_device_pools_is_not_judged() -> None:
    pool = {"slots": 15, "rows": 4, "row_len": 16, "swa_slots": 15, "swa_window": 4}
    records = ["forward", "map", "history", "lut", "transfer"]
    events = [
        _history(),
        _map(0, [1, 2, 3, 4]),
        {"kind": "lut", "full": [1, 2, 3, 4], "swa": [1, 2, 3, 4]},
        _extend(1, 0, [1, 2, 3]),
        # Full slot 9 was never written: what lands in SWA slot 2 is not known.
        {"kind": "copy", "src": [9], "dst": [9], "src_pool": "host"},
        {"kind": "copy", "src": [9], "dst": [2], "dst_pool": "swa"},
        _extend(2, 3, [4]),
    ]
    result = replay(header(records=records, pool=pool), numbered(events))
    assert result.verdict == "clean"
    assert result.coverage.entries_skipped == 1


def test_a_proposal_is_not_held_to_the_history() -> None:
    """An inner draft step reads what the step before proposed, whatever is accepted later."""
    records = ["forward", "map", "history"]

    def draft(step: int, inner: int, token: int) -> Event:
        return {
            "kind": "forward",
            "step": step,
            "forward_mode": "DECODE",
            "reqs": ["A"],
            "req_pool_indices": [1],
            "seq_lens": [2],
            "input_ids": [token],
            "positions": [2 + inner],
            "out_cache_loc": [3 + inner],
            "worker": "draft",
            "draft_step": inner,
        }

    first = _extend(1, 0, [1, 2], worker="draft", forward_mode="DRAFT_EXTEND_V2")
    first["input_ids"] = TOKENS[1:3]
    events = [_history(), _map(0, [1, 2, 3, 4]), first, draft(2, 0, 99), draft(2, 1, 98)]
    assert replay(header(records=records), numbered(events)).verdict == "clean"
