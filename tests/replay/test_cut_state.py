"""Single pieces of state that a cut carries, its refusals, its size and its command."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.cut import events as cut_events
from kvcanary_cli.cut import rows as cut_rows
from kvcanary_cli.cut.make import cut_trace
from kvcanary_cli.errors import InputError, NothingCheckedError, UsageError
from kvcanary_cli.trace import segment as segments
from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import decode_step, extend
from tests.replay.cut_helpers import (
    assert_same_verdict,
    cut_to,
    events_of,
    found,
    run,
    write_jsonl,
)
from tests.replay.helpers import header, numbered

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def _start(req: str = "A", row: int = 1, first: int = 1) -> list[Event]:
    """``req`` prefills tokens 11 to 13 in three slots, and has a fourth."""
    slots = [first, first + 1, first + 2, first + 3]
    return [
        {"kind": "history", "req": req, "start": 0, "ids": [11, 12, 13, 14, 15]},
        {"kind": "alloc", "owner": req, "slots": slots},
        {"kind": "map", "row": row, "start": 0, "slots": slots},
        extend(first, req, row, 0, [11, 12, 13], slots[:3]),
    ]


def _whole(folder: Path, events: list[Event], **changes: Any) -> Path:
    return write_jsonl(folder / "whole.jsonl", header(**changes), numbered(events))


WITH_PRINTS = [*header()["records"], "kv_hash"]


def _print(phase: str, step: int, slots: list[int], prints: list[int], **more: Any) -> Event:
    return {
        "kind": "kv_hash",
        "phase": phase,
        "step": step,
        "slots": slots,
        "hash": prints,
    } | more


@pytest.mark.parametrize("host_slots", [[100, 101, 102], [101, 100, 102]])
def test_content_of_the_host_tier(host_slots: list[int], tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            {"kind": "copy", "src": [1, 2, 3], "dst": host_slots, "dst_pool": "host"},
            {"kind": "map", "row": 2, "start": 0, "slots": [20, 21, 22, 23]},
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 14]},
            decode_step(5, "A", 1, 14, 3, 4),
            {"kind": "copy", "src": [100, 101, 102], "dst": [20, 21, 22], "src_pool": "host"},
            decode_step(6, "B", 2, 14, 3, 23),
        ],
    )
    assert bool(found(whole)) == (host_slots != [100, 101, 102])
    assert_same_verdict(whole, tmp_path, (5, 6))


@pytest.mark.parametrize("first", [2, 5])
def test_a_chain_with_an_unknown_beginning_through_the_host_tier(
    first: int, tmp_path: Path
) -> None:
    """It is no other chain than that of a row which has been seen from its head on."""
    whole = _whole(
        tmp_path,
        [
            {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13, 14]},
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3, 4]},
            decode_step(1, "A", 1, 14, 3, 4),
            {"kind": "copy", "src": [4], "dst": [100], "dst_pool": "host"},
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 14, 15, 16, 17]},
            {"kind": "map", "row": 2, "start": 0, "slots": [5, 6, 7, 8, 9, 10, 30]},
            extend(2, "B", 2, 0, [11, 12, 13, 14, 15], [5, 6, 7, 8, 9]),
            decode_step(5, "B", 2, 16, 5, 10),
            {"kind": "copy", "src": [100], "dst": [20], "src_pool": "host"},
            {"kind": "map", "row": 2, "start": 3, "slots": [20]},
            decode_step(6, "B", 2, 17, 6, 30),
        ],
        starts_mid_run=True,
    )
    assert not found(whole)
    assert_same_verdict(whole, tmp_path, (first, None))
    assert run(cut_to(whole, tmp_path, (first, None))[0]).coverage.chain_unlinked == 2


def test_bytes_that_changed_in_the_host_tier(tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            _print("after", 1, [1, 2, 3], [70, 71, 72]),
            {"kind": "copy", "src": [1, 2, 3], "dst": [100, 101, 102], "dst_pool": "host"},
            _print("before", 5, [101], [99], pool="host"),
            {"kind": "map", "row": 2, "start": 0, "slots": [20, 21, 22, 23]},
            decode_step(5, "A", 1, 14, 3, 4),
            {"kind": "copy", "src": [100, 101, 102], "dst": [20, 21, 22], "src_pool": "host"},
            decode_step(6, "B", 2, 14, 3, 23),
        ],
        records=WITH_PRINTS,
    )
    [violation] = found(whole)
    assert (violation.slot, violation.fail_reasons) == (21, ("verify_real_kv_hash",))
    assert_same_verdict(whole, tmp_path, (6, None))


def test_bytes_that_changed_before_the_cut_and_are_read_in_it(tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            _print("after", 1, [1, 2, 3], [70, 71, 72]),
            *_start("B", 2, 5),
            _print("before", 5, [2], [99]),
            decode_step(6, "A", 1, 14, 3, 4),
        ],
        records=WITH_PRINTS,
    )
    assert [v.slot for v in found(whole)] == [2]
    assert_same_verdict(whole, tmp_path, (6, 6))


def test_a_publish_in_the_cut_finds_its_row_from_before(tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            {"kind": "finish", "req": "A"},
            {"kind": "row_release", "row": 1, "req": "A"},
            *_start("B", 2, 5),
            {"kind": "publish", "entry": "e", "req": "A", "slots": [2, 3]},
            _print("sweep", 5, [2, 3], [0, 0]),
        ],
        records=WITH_PRINTS,
    )
    assert not found(whole)
    assert_same_verdict(whole, tmp_path, (5, None))
    assert run(whole).coverage.sweep_entries == 2


@pytest.mark.parametrize("evicted", [[], [3]])
def test_an_entry_that_begins_within_a_prefix(evicted: list[int], tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            {"kind": "own", "from": "A", "owner": "tree", "slots": [2, 3]},
            {"kind": "publish", "entry": "e", "req": "A", "slots": [2, 3]},
            {"kind": "free", "owner": "tree", "slots": evicted},
            *_start("B", 2, 5),
            _print("sweep", 5, [2, 3], [0, 0]),
        ],
        records=WITH_PRINTS,
    )
    assert not found(whole)
    assert run(whole).coverage.sweep_entries == 2 - len(evicted)
    assert_same_verdict(whole, tmp_path, (5, None))


def test_a_worker_that_lags_behind_is_in_the_cut(tmp_path: Path) -> None:
    late = decode_step(5, "A", 1, 99, 3, 4) | {"worker": "draft"}
    whole = _whole(
        tmp_path,
        [
            *_start(),
            extend(1, "A", 1, 0, [12, 13, 14], [1, 2, 3]) | {"worker": "draft"},
            decode_step(5, "A", 1, 14, 3, 4),
            decode_step(6, "A", 1, 15, 4, 5),
            late,
            decode_step(7, "A", 1, 15, 4, 6),
            decode_step(7, "A", 1, 15, 4, 6) | {"worker": "draft"},
        ],
    )
    target, _ = cut_to(whole, tmp_path, (5, 5))
    kept = [(e["step"], e.get("worker")) for e in events_of(target) if e["kind"] == "forward"]
    assert kept == [(5, None), (6, None), (5, "draft"), (7, None)]
    assert_same_verdict(whole, tmp_path, (5, 5))


def test_nobody_waits_for_a_worker_of_which_nothing_is_checked(tmp_path: Path) -> None:
    prebuilt = decode_step(5, "A", 1, 14, 3, 4) | {"draft_step": 1, "forward_mode": "PREBUILT"}
    whole = _whole(
        tmp_path,
        [
            *_start(),
            decode_step(5, "A", 1, 14, 3, 4),
            prebuilt,
            decode_step(6, "A", 1, 15, 4, 5),
            # A replay of step 5 has stopped by now.
            decode_step(5, "A", 1, 99, 4, 5) | {"draft_step": 0},
        ],
    )
    target, _ = cut_to(whole, tmp_path, (5, 5))
    assert sum(e["kind"] == "forward" for e in events_of(target)) == 2
    assert_same_verdict(whole, tmp_path, (5, 5))


def test_ownership_comes_with_the_state_in_an_order_that_tells(tmp_path: Path) -> None:
    whole = _whole(
        tmp_path,
        [
            *_start(),
            {"kind": "free", "owner": "A", "slots": [1]},
            {"kind": "alloc", "owner": "B", "slots": [1]},
            {"kind": "free", "owner": "A", "slots": [2]},
            {"kind": "launch", "step": 2, "req": "A", "slots": [4]},
            {"kind": "launch", "step": 1, "req": "A"},
            {"kind": "transfer_begin", "id": "open", "req": "A", "slots": [4]},
            {"kind": "transfer_begin", "id": "done", "req": "A", "slots": [4]},
            {"kind": "transfer_end", "id": "done"},
            {"kind": "future_put", "ring": 0, "req": "A", "token": 1},
            {"kind": "future_put", "ring": 0, "req": "A", "token": 2},
            decode_step(2, "A", 1, 14, 3, 4),
        ],
    )
    target, cut = cut_to(whole, tmp_path, (2, 2))
    state = events_of(target)[: cut.state_events]
    told = [(e["kind"], e.get("owner"), e.get("slots")) for e in state if "slots" in e]
    assert told == [
        ("map", None, [1, 2, 3, 4]),
        ("canary_rows", None, [1]),
        ("alloc", "A", [2, 3, 4]),
        ("alloc", "B", [1]),
        ("canary_rows", None, [2, 3]),
        ("free", "A", [2]),
        ("launch", None, [4]),
        ("transfer_begin", None, [4]),
    ]
    assert [e["id"] for e in state if e["kind"] == "transfer_begin"] == ["open"]
    assert [e["token"] for e in state if e["kind"] == "future_put"] == [2]
    assert [e["step"] for e in state if e["kind"] == "launch"] == [2]


def test_header_and_numbers(tmp_path: Path) -> None:
    whole = _whole(tmp_path, [*_start(), decode_step(2, "A", 1, 14, 3, 4)], x_kept=[1])
    target, cut = cut_to(whole, tmp_path, (2, None))
    raw = open_trace(target).header.raw
    digest = open_trace(whole).sha256()
    assert raw["cut"] == {"steps": [2, None], "reqs": None, "of_sha256": digest}
    assert raw["x_kept"] == [1]
    assert raw["records"] == [*header()["records"], "canary_rows"]
    index = [event["i"] for event in events_of(target)]
    assert index == list(range(4 - cut.state_events, 5))
    assert cut.state_events == 4
    assert (cut.steps, cut.events) == (1, 1)
    assert cut.file_bytes == target.stat().st_size


def test_cut_from_the_beginning_holds_no_state(tmp_path: Path) -> None:
    whole = _whole(tmp_path, [*_start(), decode_step(2, "A", 1, 14, 3, 4)])
    target, cut = cut_to(whole, tmp_path, (None, 1))
    assert cut.state_events == 0
    assert events_of(target) == events_of(whole)[:-1]


def test_lists_are_split_and_mean_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_events, "MAX_VALUES", 4)
    monkeypatch.setattr(cut_rows, "_SLOTS", 2)
    events = [
        *_start(),
        {"kind": "map", "row": 1, "start": 0, "slots": [2, 1, 3, 4, 5, 6, 7, 8, 9]},
        {"kind": "alloc", "owner": "A", "slots": [5, 6, 7, 8, 9]},
        decode_step(2, "A", 1, 14, 3, 4),
    ]
    whole = _whole(tmp_path, events)
    assert found(whole)
    assert_same_verdict(whole, tmp_path, (2, 2))
    target, cut = cut_to(whole, tmp_path, (2, 2))
    state = events_of(target)[: cut.state_events]
    assert max(len(e.get("slots", e.get("ids", ()))) for e in state) == 4
    assert sum(e["kind"] == "canary_rows" for e in state) == 2


def test_only_a_few_segments_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_SEGMENT_EVENTS", 10)
    steps = [decode_step(step, "A", 1, 14, 3, 4) for step in range(2, 400)]
    whole = _whole(tmp_path, [*_start(), *steps])
    gc.collect()
    held = []

    def count(_reader: object) -> None:
        held.append(sum(type(o) is segments.Segment for o in gc.get_objects()))

    cut_trace(whole, tmp_path / "cut.jsonl", steps=(150, 300), progress=count)
    assert len(held) > 20
    assert max(held) - min(held) <= 3


# Refusals.


def test_no_step_in_range_writes_nothing(tmp_path: Path) -> None:
    whole = _whole(tmp_path, _start())
    with pytest.raises(NothingCheckedError, match="no forward in steps 7:9") as error:
        cut_to(whole, tmp_path, (7, 9))
    assert error.value.hint == "the trace has steps 1 to 1, as far as it was read"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.jsonl"]


def test_unknown_request_is_named_with_its_neighbours(tmp_path: Path) -> None:
    whole = _whole(tmp_path, [*_start("req-17"), *_start("other", 2, 5)])
    with pytest.raises(NothingCheckedError, match="no request 'req-71'") as error:
        cut_to(whole, tmp_path, (1, 5), ["req-71"])
    assert error.value.hint == "did you mean 'req-17'?"
    with pytest.raises(NothingCheckedError, match="'req-17' has no forward in steps 5:5"):
        cut_to(whole, tmp_path, (5, 5), ["req-17"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.jsonl"]


def test_wrong_usage(tmp_path: Path) -> None:
    whole = _whole(tmp_path, _start())
    with pytest.raises(UsageError, match="steps 9:7 end before they begin"):
        cut_to(whole, tmp_path, (9, 7))
    with pytest.raises(UsageError, match="twice, which stdin cannot"):
        cut_trace("-", tmp_path / "cut.jsonl", steps=(1, 1), reqs=["A"])
    (tmp_path / "there.jsonl").write_text("keep me")
    with pytest.raises(UsageError, match="exists already"):
        cut_trace(whole, tmp_path / "there.jsonl", steps=(1, 1))
    assert (tmp_path / "there.jsonl").read_text() == "keep me"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"written_at": [1]}, "written_at"),
        ({"lineage": [0, -1, 0]}, "lineage"),
        ({"unlinked": [4000]}, "unlinked"),
        ({"unhashed": [-1]}, "unhashed"),
        ({"unknown": [64]}, "unknown"),
    ],
)
def test_state_that_does_not_fit_is_refused(change: Event, field: str, tmp_path: Path) -> None:
    rows = {name: [0, 0, 0] for name in ("token", "position", "prev_hash", "real_kv_hash")}
    event = {"kind": "canary_rows", "worker": "target", "pool": "full", "half": "k", **rows}
    whole = _whole(tmp_path, [event | {"slots": [1, 2, 3]} | change, *_start("A", 1, 5)])
    with pytest.raises(InputError, match=f"event i=0: 'canary_rows' field '{field}'"):
        run(whole)


@pytest.mark.parametrize("cut", [[], {"steps": [1]}, {"steps": [1, "2"]}])
def test_malformed_cut_header_is_refused(cut: Any, tmp_path: Path) -> None:
    whole = _whole(tmp_path, _start(), cut=cut)
    with pytest.raises(InputError, match=r"'cut\.steps' must be two steps or nulls"):
        run(whole)


# The command.


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = _whole(tmp_path, [*_start(), decode_step(2, "A", 1, 14, 3, 4)])
    target = tmp_path / "cut.jsonl"
    arguments = ["trace", "cut", str(whole), "-o", str(target), "--steps", "2"]
    assert main(arguments) == 0
    told = f"{target}: 1 step, 1 event behind 4 events of state, {target.stat().st_size / 1024:.1f}"
    assert capsys.readouterr().out == f"{told} KiB\n"
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--req", "A"]) == 0
    output = capsys.readouterr()
    assert "kept 1 request: A\n" in output.out
    assert "neither capacity checks nor sweeps" in output.err
    assert main([*arguments, "--overwrite", "--req", "B"]) == 5
    assert main(["trace", "cut", str(whole), "-o", str(target), "--steps", "5:4"]) == 2
    assert main(["trace", "cut", str(whole), "-o", str(target), "--steps", ":"]) == 2


def test_command_to_stdout(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    whole = _whole(tmp_path, [*_start(), decode_step(2, "A", 1, 14, 3, 4)])
    assert main(["trace", "cut", str(whole), "-o", "-", "--steps", "2:"]) == 0
    out = capsysbinary.readouterr().out
    (tmp_path / "piped.jsonl").write_bytes(out)
    target, _ = cut_to(whole, tmp_path, (2, None))
    assert events_of(tmp_path / "piped.jsonl") == events_of(target)
