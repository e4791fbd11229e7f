"""An engine whose memory names what its pool does not have: the trace ends there, readable."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.classes import class_pages
from kvcanary_cli.cli.main import main
from kvcanary_cli.record.checked_writer import refused_event
from kvcanary_cli.record.ledger import UNKNOWN, Ledger
from kvcanary_cli.trace.notes import ENGINE_STATE
from kvcanary_cli.trace.problems import OutOfRange
from tests.attribution.events import HEAD, life, numbered
from tests.record.helpers import ROW_LEN, ROWS, SLOTS, Toy, events, parts, replay, steps
from tests.replay.cut_helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEFORE = 3


def _cell(toy: Toy, slot: int) -> list[dict[str, Any]]:
    toy.table[1, 1] = slot
    return toy.shadow.show([1], [BEFORE])


def _alloc(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.alloc("r0", np.array([9, slot]))


def _free(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.free(None, np.array([slot]), "end")


def _own(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.own("r0", np.array([1, slot]))


def _forward(**fields: Any) -> Callable[[Toy, int], list[dict[str, Any]]]:
    def make(toy: Toy, value: int) -> list[dict[str, Any]]:
        event = {"kind": "forward", "step": toy.steps, "forward_mode": "DECODE", "reqs": ["r0"]}
        event |= {"req_pool_indices": [1], "seq_lens": [BEFORE + 1], "input_ids": [7]}
        event |= {"positions": [BEFORE], "out_cache_loc": [4]}
        return [event | {name: [value] for name in fields}]

    return make


@pytest.mark.parametrize(
    ("tell", "value", "kind", "field", "victim"),
    [
        (_cell, SLOTS + 1, "map", "slots", None),
        (_cell, -7, "map", "slots", None),
        (_alloc, 1 << 40, "alloc", "slots", "r0"),
        (_free, -3, "free", "slots", None),
        (_free, SLOTS + 1, "free", "slots", None),
        (_own, SLOTS + 5, "own", "slots", "r0"),
        (_forward(positions=1), ROW_LEN, "forward", "positions", "r0"),
        (_forward(out_cache_loc=1), SLOTS + 1, "forward", "out_cache_loc", "r0"),
        (_forward(req_pool_indices=1), ROWS, "forward", "req_pool_indices", "r0"),
        (_forward(seq_lens=1), -1, "forward", "seq_lens", "r0"),
    ],
)
def test_the_trace_ends_right_before_it_and_says_what_it_was(
    tell: Callable[[Toy, int], list[dict[str, Any]]],
    value: int,
    kind: str,
    field: str,
    victim: str | None,
    tmp_path: Path,
) -> None:
    said = f"'{kind}' field '{field}'"
    toy = Toy(tmp_path)
    for _ in range(BEFORE):
        toy.step()
    toy.session.emit_all(tell(toy, value))
    toy.session.commit(step=True)
    toy.session.emit({"kind": "finish", "req": "r0"})
    toy.session.commit()
    toy.session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    assert steps(trace) == list(range(BEFORE))
    assert [event["i"] for event in found] == list(range(len(found)))
    assert found[-1]["kind"] == "recording_ended"
    assert "the engine's state does not fit its pool" in found[-1]["reason"]
    assert said in found[-1]["reason"]
    assert str(value) in found[-1]["reason"]
    notes = replay(trace).replay.coverage.notes
    assert any(said in note for note in notes)
    assert not any("lost" in note for note in notes)
    (finding,) = (diagnosis := replay(trace)).findings
    assert (finding.subtype, finding.confidence) == ("outside_pool", "probable")
    assert finding.cls == ("position_misalign" if field == "positions" else "stale_mapping")
    assert (finding.victim, finding.cause_event) == (victim, found[-1]["i"])
    assert finding.first_bad_step == (BEFORE if kind == "forward" else None)
    told = finding.evidence[0]
    assert f"'{kind}' named {value} in its field '{field}', expected a" in told
    assert f"step {BEFORE if kind == 'forward' else BEFORE - 1}" in told
    assert diagnosis.verdict == "corrupt"
    assert class_pages()[finding.cls].subtype(finding.subtype) is not None


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ({"reason": "OSError: no space"}, None),
        ({"reason": "--max-bytes 5 is reached"}, None),
        ({"reason": f"{ENGINE_STATE}: 'map' field 'slots'[0] is 99"}, "stale_mapping"),
        (
            {"reason": "x", "refused": {"event": "lut", "field": "swa", "value": 9}},
            "bad_translation",
        ),
        (
            {"reason": "x", "refused": {"event": "match", "field": "slots", "value": -2}},
            "prefix_index",
        ),
        ({"reason": "x", "refused": {"event": "copy"}}, "transfer_mismatch"),
        (
            {"reason": "x", "refused": {"event": 5, "field": [], "value": "9", "req": {}}},
            "stale_mapping",
        ),
        ({"reason": "x", "refused": {}}, "stale_mapping"),
        ({"reason": "x", "refused": [1]}, None),
    ],
)
@pytest.mark.parametrize("width", ["40", "120"])
def test_a_replay_is_green_only_where_the_engine_was_sound(
    last: dict[str, Any],
    found: str | None,
    width: str,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    """Whatever else the last word says, and in every form of the output."""
    monkeypatch.setenv("COLUMNS", width)
    events = numbered([*life("A", [1, 2], [1, 2], 1, 1), {"kind": "recording_ended"} | last])
    path = write_jsonl(tmp_path / "t.jsonl", HEAD, events)
    for form in ("text", "json", "jsonl", "sarif", "junit"):
        assert main(["replay", str(path), "--format", form]) == (0 if found is None else 1)
        out = capsys.readouterr().out
        assert ("outside_pool" in out) == (found is not None)
    assert main(["replay", str(path), "--steps", "5:"]) != 1
    if found is not None:
        capsys.readouterr()
        assert main(["replay", str(path), "--format", "json"]) == 1
        result = json.loads(capsys.readouterr().out)
        (finding,) = result["findings"]
        assert found not in result["coverage"]["blind_to"]
        assert (finding["class"], finding["cause_event"]) == (found, len(events) - 1)


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    padding=st.integers(0, 2),
    decode=st.booleans(),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_the_row_of_a_token_at_fault_is_found(
    lengths: list[int], padding: int, decode: bool, data: st.DataObject
) -> None:
    if decode:
        lengths = [1] * len(lengths)
    owners = [f"r{b}" for b, n in enumerate(lengths) for _ in range(n)] + [None] * padding
    at = data.draw(st.integers(0, len(owners) - 1))
    event: dict[str, Any] = {"kind": "forward", "i": 7, "step": 3, "positions": [0] * len(owners)}
    event["reqs"] = [f"r{b}" for b in range(len(lengths))] + [None] * (padding if decode else 0)
    if not decode:
        event["extend_seq_lens"] = lengths
    said = refused_event(event, OutOfRange("positions", at, 99, "a position"))
    assert said.get("req") == owners[at]
    assert (said["event"], said["step"], said["value"]) == ("forward", 3, 99)


@given(
    st.lists(
        st.tuples(st.sampled_from("afopw"), st.lists(st.integers(-5, 20), min_size=1)), max_size=12
    )
)
@settings(max_examples=50, deadline=None)
def test_the_ledger_takes_any_number_for_a_slot(calls: list[tuple[str, list[int]]]) -> None:
    ledger, model = Ledger(12), dict[int, str]()
    for call, numbers in calls:
        slots = np.array(numbers, dtype=np.int64)
        inside = {slot for slot in numbers if 0 <= slot < 12}
        match call:
            case "a":
                ledger.alloc("r", slots)
                model |= dict.fromkeys(inside, "r")
            case "f":
                told = ledger.free(None, slots, "end")
                freed = [slot for event in told for slot in event.get("slots", ())]
                assert sorted(freed) == sorted(numbers)
                model |= dict.fromkeys(inside, "free")
            case "o":
                ledger.own("r", slots)
                model |= dict.fromkeys(inside, "tree")
            case "p":
                assert set(numbers) <= set(ledger.with_pages(slots, 4).tolist())
            case "w":
                ledger.entry_of(numbers[0])
    unknown = ledger.owners(np.arange(-3, 15)) == UNKNOWN
    for slot, is_unknown in zip(range(-3, 15), unknown.tolist(), strict=True):
        assert is_unknown == (slot not in model)
