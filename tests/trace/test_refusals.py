"""Everything that a reader must refuse, and that the message says where, what and what next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.errors import EXIT_INPUT
from kvcanary_cli.trace import memory as memory_module
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.schema import MAX_LINE_BYTES
from tests.trace.helpers import (
    DECODE,
    jsonl_text,
    read_events,
    small_trace,
    write_jsonl,
    write_trace,
)

if TYPE_CHECKING:
    from pathlib import Path

Case = tuple[dict[str, Any], str]
_COPY = {"kind": "copy", "src": [1, 2], "dst": [3, 4]}
_FORK = {"kind": "fork", "parent": "A", "child": "B", "shared": [1], "copy_on_write": [[1, 2]]}
_HASH = {"kind": "kv_hash", "phase": "before", "step": 3, "slots": [1, 2], "hash": [5, 6]}
_VERIFY = {
    **DECODE,
    "step": 3,
    "forward_mode": "TARGET_VERIFY",
    "draft_token_num": 1,
    "tree": {"parent": [-1, -1]},
}
_DRAFT = {
    **DECODE,
    "worker": "draft",
    "forward_mode": "DRAFT_EXTEND_V2",
    "extend_prefix_lens": [3, 0],
    "extend_seq_lens": [1, 1],
}
_ROWS = {
    **{"kind": "canary_rows", "worker": "target", "pool": "full", "half": "k", "slots": [1]},
    **{"token": [1], "position": [0], "prev_hash": [0], "real_kv_hash": [0]},
}

#: Changes to line 5 of the small trace (the DECODE forward), each with what must be said.
FORWARD_CASES: list[Case] = [
    ({"forward_mode": "DECOED"}, "field 'forward_mode' is 'DECOED', expected DECODE"),
    ({"worker": "drafty"}, "field 'worker' is 'drafty', expected target, draft"),
    ({"step": 1}, "field 'step' goes from 1 to 1 (worker target), expected it to grow"),
    ({"step": 0}, "field 'step' goes from 1 to 0"),
    ({"i": 2}, "'i' goes from 2 to 2, expected it to grow"),
    ({"i": -1}, "'i' goes from 2 to -1"),
    ({"req_pool_indices": [1]}, "'reqs' and 'req_pool_indices' have 2 and 1 items"),
    ({"seq_lens": [4, 1, 1]}, "'reqs' and 'seq_lens' have 2 and 3 items"),
    ({"namespaces": ["a"]}, "'reqs' and 'namespaces' have 2 and 1 items"),
    ({"input_ids": [1]}, "'positions' and 'input_ids' have 2 and 1 items"),
    ({"out_cache_loc": [1]}, "'positions' and 'out_cache_loc' have 2 and 1 items"),
    (
        {"input_ids": [1], "positions": [3], "out_cache_loc": [6]},
        "in mode DECODE with 2 rows must have 2 tokens, found 1 in 'positions'",
    ),
    ({"extend_seq_lens": [1, 1]}, "in mode DECODE must not have 'extend_seq_lens'"),
    ({"forward_mode": "EXTEND"}, "in mode EXTEND lacks the field 'extend_prefix_lens'"),
    ({"forward_mode": "TARGET_VERIFY"}, "mode TARGET_VERIFY lacks the field 'draft_token_num'"),
    ({"draft_token_num": 0}, "'draft_token_num' is 0, expected at least 1"),
    (
        {"forward_mode": "TARGET_VERIFY", "draft_token_num": 3},
        "in mode TARGET_VERIFY with 2 rows must have 6 tokens, found 2",
    ),
    ({"req_pool_indices": [5, 0]}, "'req_pool_indices'[0] is 5, expected a row (pool.rows) from 0"),
    ({"req_pool_indices": [-1, 0]}, "'req_pool_indices'[0] is -1"),
    ({"req_pool_indices": [0, 0]}, "'req_pool_indices'[0] is 0, expected a row of a request"),
    ({"req_pool_indices": [1, 2]}, "'req_pool_indices'[1] is 2, expected row 0 for a padding row"),
    ({"seq_lens": [17, 1]}, "'seq_lens'[0] is 17, expected a length from 0 to 16"),
    ({"seq_lens": [4, -1]}, "'seq_lens'[1] is -1"),
    (
        {"positions": [16, 0]},
        "'positions'[0] is 16, expected a position (pool.row_len) from 0 to 15",
    ),
    ({"positions": [-1, 0]}, "'positions'[0] is -1"),
    ({"positions": [3, -1]}, "'positions'[1] is -1"),
    ({"out_cache_loc": [16, 0]}, "'out_cache_loc'[0] is 16, expected a slot, or -1 for none, from"),
    ({"out_cache_loc": [6, -2]}, "'out_cache_loc'[1] is -2"),
    ({"raw_bs": 3}, "'raw_bs' is 3, expected 0 to 2"),
    ({"draft_step": -1}, "'draft_step' is -1"),
    (
        {"landed": {"pool": "swa", "slots": [8, 1]}},
        "'landed' slots: item 0 is 8, expected a slot of",
    ),
    ({"landed": {"pool": "swa", "slots": [1]}}, "'landed' has 1 slots, expected 2"),
    ({"landed": [1, 2]}, "'landed' must be"),
    ({"landed": {"pool": "swa", "slots": [-2, 1]}}, "'landed' slots: item 0 is -2, expected"),
    ({"landed": {"pool": "full", "slots": [16, 1]}}, "'landed' slots: item 0 is 16, expected"),
    ({"landed": {"pool": "host", "slots": [1, 2]}}, "pool 'host', expected full or swa"),
    ({"landed": {"pool": "zzz", "slots": [1, 99]}}, "pool 'zzz', expected full or swa"),
    ({"landed": {"pool": "draft", "slots": [1, 2]}}, "pool 'draft', expected full or swa"),
    (
        {"worker": "draft", "landed": {"pool": "swa", "slots": [1, 2]}},
        "pool 'swa', expected draft or full: a forward of worker draft writes nowhere else",
    ),
    (
        {"worker": "draft", "landed": {"pool": "draft", "slots": [16, 1]}},
        "'landed' slots: item 0 is 16, expected a slot or -1, from -1 to 15",
    ),
    ({"worker": "other", "landed": {"pool": "full", "slots": [1, 2]}}, "'worker' is 'other'"),
    ({"row_as_read": {"5": [1]}}, "'row_as_read' has the key 5, expected a row"),
    ({"row_as_read": {"one": [1]}}, "'row_as_read' has the key 'one'"),
    ({"row_as_read": {"1": [16]}}, "'row_as_read' row 1: item 0 is 16, expected a slot"),
    ({"row_as_read": {"1": [0] * 17}}, "'row_as_read' row 1: has 17 slots, expected at most 16"),
    ({"tree": {"parent": [-1]}}, "'tree' parent has 1 items, expected 2"),
    ({"tree": {"parent": [-1, 0]}}, "'tree' parent[1] is 0, expected -1 or an earlier node"),
    ({"tree": {"parent": [-1, 1.0]}}, "'tree' parent: item 1 is 1.0, expected an integer"),
    ({"tree": [-1, -1]}, "'tree' must be"),
    ({"positions": [3, 0.5]}, "'positions'[1] must be a 64-bit integer, found 0.5"),
    ({"input_ids": [14.0, 0]}, "'input_ids'[0] must be a 64-bit integer, found 14.0"),
    ({"input_ids": [True, 0]}, "'input_ids'[0] must be a 64-bit integer, found true"),
    (
        {"input_ids": [1 << 63, 0]},
        "'input_ids'[0] must be a 64-bit integer, found 9223372036854775808",
    ),
    ({"input_ids": "14, 0"}, "'input_ids' must be a list of integers, found"),
    ({"step": "2"}, "'step' must be an integer, found"),
    ({"reqs": ["A", 7]}, "'reqs' must be a list of strings or nulls"),
    ({"worker": None}, "'worker' must be a string, found null; leave the field out instead"),
    ({"i": 3.0}, "'i' must be a 64-bit integer, found 3.0"),
    ({"kind": 7}, "'kind' must be a string, found 7"),
]

#: Events put in place of line 5.
EVENT_CASES: list[Case] = [
    (
        {"kind": "alloc", "owner": "A", "slots": [16]},
        "'slots'[0] is 16, expected a slot from 0 to 15",
    ),
    ({"kind": "free", "owner": "A", "slots": [1, -1]}, "'slots'[1] is -1"),
    ({"kind": "own", "from": "A", "owner": "tree", "slots": [99]}, "'slots'[0] is 99"),
    ({"kind": "map", "row": 5, "start": 0, "slots": []}, "'row' is 5, expected a row"),
    ({"kind": "map", "row": 1, "start": 16, "slots": []}, "'start' is 16"),
    (
        {"kind": "map", "row": 1, "start": 14, "slots": [1, 2, 3]},
        "writes cells 14 to 16, expected them below 16",
    ),
    ({"kind": "history", "req": "A", "start": -1, "ids": [1]}, "'start' is -1"),
    ({"kind": "row_release", "row": 9, "req": "A"}, "'row' is 9"),
    ({"kind": "match", "req": "A", "entry": "E", "slots": [16]}, "'slots'[0] is 16"),
    ({"kind": "publish", "entry": "E", "slots": [16]}, "'slots'[0] is 16"),
    ({"kind": "lut", "full": [16], "swa": [1]}, "'full'[0] is 16"),
    (
        {"kind": "lut", "full": [1], "swa": [8]},
        "'swa'[0] is 8, expected a slot of the sliding-window",
    ),
    ({"kind": "lut", "full": [1, 2], "swa": [1]}, "'full' and 'swa' have 2 and 1 items"),
    (_HASH | {"hash": [5]}, "'slots' and 'hash' have 2 and 1 items"),
    (_HASH | {"phase": "during"}, "'phase' is 'during', expected before, after, sweep"),
    (_HASH | {"pool": "swa", "slots": [1, 8]}, "'slots'[1] is 8, expected a slot of the sliding"),
    (_HASH | {"hash": [5, 1e300]}, "'hash'[1] must be a 64-bit integer, found 1e+300"),
    (_COPY | {"dst": [3]}, "'src' has 2 items, expected 1 ('dst')"),
    (_COPY | {"dst": [3, 16]}, "'dst'[1] is 16"),
    (_COPY | {"src": [1, 16]}, "'src' item 1 is 16"),
    (_COPY | {"src": "1, 2"}, "'src' must be a list of integers"),
    (_COPY | {"src": {"req": "A", "pos": [0, 16]}}, "'src' item 1 is 16, expected a position"),
    (_COPY | {"src": {"pos": [0, 1]}}, "'src' must be a list of slots or"),
    (_COPY | {"via_row": 5}, "'via_row' is 5"),
    (_COPY | {"canary": 1}, "'canary' must be true or false, found 1"),
    ({"kind": "deferred_write", "req": "A", "pos": [16]}, "'pos'[0] is 16"),
    ({"kind": "launch", "step": 3, "req": "A", "row": 5}, "'row' is 5"),
    (
        {"kind": "accept", "req": "A", "nodes": [0], "tokens": [1, 2, 3], "committed_len": 1},
        "has 1 nodes and 3 tokens",
    ),
    (_FORK | {"copy_on_write": [[1]]}, "'copy_on_write'[0] has 1 slots, expected [src, dst]"),
    (_FORK | {"copy_on_write": [[1, 16]]}, "'copy_on_write'[0] item 1 is 16"),
    (_FORK | {"copy_on_write": {"1": 2}}, "'copy_on_write' must be a list of"),
    (_FORK | {"shared": [16]}, "'shared'[0] is 16"),
    (_VERIFY | {"tree": {"parent": [-1, -2]}}, "'tree' parent: item 1 is -2"),
    (_DRAFT | {"seq_lens": [0, 0]}, "batch row 0 in mode DRAFT_EXTEND_V2 has seq_lens 0 below"),
    (
        _DRAFT | {"extend_prefix_lens": [16, 0]},
        "batch row 0 extends 16 + 1 tokens, expected at most 16",
    ),
    (_DRAFT | {"extend_seq_lens": [1 << 40, 1]}, "'extend_seq_lens'[0] is 1099511627776"),
    (_DRAFT | {"extend_seq_lens": [-1, 3]}, "'extend_seq_lens'[0] is -1"),
    (_ROWS | {"token": []}, "'slots' and 'token' have 1 and 0 items"),
    (_ROWS | {"slots": [16]}, "'slots'[0] is 16"),
    ({"kind": "alloc", "owner": "A"}, "'alloc' lacks the field 'slots' (a list of integers)"),
]

#: Changes to the header; None takes the field away.
HEADER_CASES: list[Case] = [
    ({"kind": "event"}, "the header is missing"),
    ({"format": "other"}, "header field 'format' must be 'kvcanary-trace', found \"other\""),
    ({"version": 2}, "trace version 2 is not known; this kvcanary reads: 1"),
    ({"version": True}, "trace version true is not known"),
    ({"chain": "sha256"}, "header field 'chain' must be 'splitmix64-mix3', found \"sha256\""),
    ({"tokens": "secret"}, "header field 'tokens' must be 'raw' or 'salted' or 'absent'"),
    ({"records": "forward"}, "header field 'records' must be a list of strings"),
    ({"not_recorded": "drafts"}, "header field 'not_recorded' must be a list of strings"),
    ({"records": None}, "header field 'records' must be a list of strings"),
    ({"engine": None}, "header field 'engine' must be an object, found"),
    ({"engine": {}}, "header field 'engine.name' must be a string, found nothing"),
    ({"pool": None}, "header field 'pool' must be an object"),
    ({"pool": {"rows": 5, "row_len": 16}}, "'pool.slots' must be an integer from 1"),
    ({"pool": {"slots": 0, "rows": 5, "row_len": 16}}, "'pool.slots' must be an integer from 1"),
    ({"pool": {"slots": 9, "rows": -5, "row_len": 16}}, "'pool.rows' must be an integer from 1"),
    ({"pool": {"slots": 9, "rows": 5, "row_len": 1.5}}, "'pool.row_len' must be an integer from 1"),
    (
        {"pool": {"slots": 9, "rows": 5, "row_len": 16, "max_slot": 8}},
        "'pool.max_slot' must be an integer from 9",
    ),
    (
        {"pool": {"slots": 9, "rows": 5, "row_len": 16, "reserved": [10]}},
        "'pool.reserved' must be a list of slots from 0 to 9",
    ),
    *(
        ({"pool": {"slots": 9, "rows": 5, "row_len": 16, name: 1 << 29}}, f"'pool.{name}' is 5368")
        for name in ("slots", "max_slot", "swa_slots", "swa_max_slot")
    ),
    (
        {"pool": {"slots": 9, "rows": (1 << 31) - 1, "row_len": (1 << 31) - 1}},
        "'pool.rows' and 'pool.row_len' make 4611686014132420609 cells: a table of "
        "18446744056529682436 bytes, expected at most 17179869184 cells",
    ),
    ({"rank": {"tp": 2, "tp_size": 2}}, "'rank.tp' must be smaller than rank.tp_size (2), found 2"),
    ({"serving_args": []}, "header field 'serving_args' must be an object"),
    ({"starts_mid_run": 1}, "header field 'starts_mid_run' must be true or false"),
]


def _refusal(path: str | Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_events(path)
    error = caught.value
    assert error.exit_code == EXIT_INPUT
    assert str(path) in error.message
    assert error.hint
    return error


@pytest.mark.parametrize(("change", "said"), FORWARD_CASES, ids=[c[1] for c in FORWARD_CASES])
def test_a_forward_that_does_not_fit(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    header, events = small_trace()
    events[3] |= change
    error = _refusal(write_jsonl(tmp_path / "a.jsonl", header, events))
    assert said in error.message
    assert "a.jsonl:5:" in error.message


@pytest.mark.parametrize(("event", "said"), EVENT_CASES, ids=[c[1] for c in EVENT_CASES])
def test_an_event_that_does_not_fit(tmp_path: Path, event: dict[str, Any], said: str) -> None:
    header, events = small_trace()
    events[3] = event | {"i": 3}
    error = _refusal(write_jsonl(tmp_path / "a.jsonl", header, events))
    assert said in error.message
    assert "a.jsonl:5:" in error.message


def test_a_pool_that_is_larger_than_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, events = small_trace()
    header["pool"] |= {"slots": 1 << 16, "rows": 1 << 9, "row_len": 1 << 12}
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    table = (1 << 9) * (1 << 12) * 4
    monkeypatch.setattr(memory_module, "BYTES_PER_SLOT", 16)
    cases = ((1 << 16, "'pool.slots' 65536 takes"), (table - 1, "'pool.rows' 512 and"))
    for memory, told in cases:
        monkeypatch.setattr(memory_module, "physical_memory", lambda memory=memory: memory)
        for arguments in (
            ["replay"],
            ["trace", "cut", "-o", str(tmp_path / "b.jsonl"), "--steps", "2:"],
        ):
            assert main([*arguments, str(path)]) == EXIT_INPUT
            assert told in capsys.readouterr().err
    monkeypatch.setattr(memory_module, "physical_memory", lambda: None)
    assert main(["replay", str(path)]) in (0, 1)


def test_landing_in_a_pool_that_the_header_lacks(tmp_path: Path) -> None:
    header, events = small_trace()
    header["pool"] |= {"swa_slots": 0, "swa_window": 0}
    events[3]["landed"] = {"pool": "swa", "slots": [-1, -1]}
    with pytest.raises(TraceError, match=r"'swa', which the header does not have"):
        read_events(write_jsonl(tmp_path / "a.jsonl", header, events))


@pytest.mark.parametrize(
    ("worker", "pool", "last"),
    [("target", "full", 15), ("target", "swa", 7), ("draft", "draft", 15), ("draft", "full", 15)],
)
def test_every_pool_that_a_forward_may_land_in(
    tmp_path: Path, worker: str, pool: str, last: int
) -> None:
    header, events = small_trace()
    events[3] |= {"worker": worker, "landed": {"pool": pool, "slots": [last, -1]}}
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert read_events(path) == events
    assert main(["replay", str(path)]) in (0, 1)


@pytest.mark.parametrize("suffix", [".pt", ".kvtrace"])
def test_the_binary_forms_are_held_to_the_same(tmp_path: Path, suffix: str) -> None:
    count = 0
    for change, said in FORWARD_CASES + EVENT_CASES:
        if "must be" in said or "lacks the field 'slots'" in said:
            continue  # not even the writer takes those types
        header, events = small_trace()
        is_event = (change, said) in EVENT_CASES
        events[3] = (change if is_event else events[3] | change) | {"i": change.get("i", 3)}
        error = _refusal(write_trace(tmp_path / f"a{suffix}", header, events))
        assert said in error.message
        assert "event 3 (i=" in error.message
        count += 1
    assert count > 60


@pytest.mark.parametrize(("change", "said"), HEADER_CASES, ids=[c[1] for c in HEADER_CASES])
def test_a_header_that_does_not_fit(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    header, events = small_trace()
    header = {k: v for k, v in (header | change).items() if v is not None}
    error = _refusal(write_jsonl(tmp_path / "a.jsonl", header, events))
    assert said in error.message
    assert "a.jsonl:1:" in error.message


_GOOD = jsonl_text(*small_trace()).encode()
_LINES = _GOOD.splitlines(keepends=True)
TEXT_CASES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("blank", b"\n \n", "the file is empty"),
    ("no header", b"".join(_LINES[1:]), ":1: the header is missing"),
    ("second header", _GOOD + _LINES[0], ":6: a second header"),
    ("no object", _GOOD + b"[1]\n", ":6: expected an event (a JSON object)"),
    ("no JSON", _GOOD + b"{1}\n", ":6: column 2 is not valid JSON"),
    ("two objects", _GOOD + b"{} {}\n", ":6: column 4 is not valid JSON (Extra data)"),
    ("cut off", _GOOD[:-20], ":5: the last line is cut off after"),
    ("cut in a character", _GOOD + b'{"kind": "\xc3', ":6: the line is not UTF-8"),
    ("Latin-1", _GOOD + b'{"kind": "\xe9"}\n', ":6: the line is not UTF-8 (byte 10 is 0xe9)"),
    ("NaN", _GOOD + b'{"kind": "x", "i": 9, "v": NaN}\n', ":6: NaN is not JSON"),
    ("Infinity", _GOOD + b'{"kind": "x", "i": 9, "v": -Infinity}\n', ":6: -Infinity is not JSON"),
    ("huge float", _GOOD + b'{"kind": "x", "i": 9, "v": 1e999}\n', ":6: the number 1e999 is too"),
    (
        "huge integer",
        _GOOD + b'{"i": ' + b"9" * 5000 + b"}\n",
        ":6: an integer has too many digits",
    ),
    ("duplicate key", _GOOD + b'{"i": 9, "i": 9}\n', ':6: the key "i" is given twice'),
    (
        "duplicate key inside",
        _GOOD + b'{"kind": "x", "i": 9, "v": [{"a": {"b": 1, "b": 2}}]}\n',
        ':6: the key "b" is given twice',
    ),
    ("deep", _GOOD + b"[" * 200_000 + b"\n", ":6: the JSON is nested too deeply"),
    ("duplicate header key", b'{"kind": "header", "kind": "header"}\n', ':1: the key "kind"'),
    ("UTF-16", "{}".encode("utf-16"), "the text is UTF-16, expected UTF-8"),
    ("gzip", b"\x1f\x8b\x08\x00", "gzip is not read"),
    ("binary", bytes(range(0x90, 0xFF)), ":1: the line is not UTF-8"),
]


@pytest.mark.parametrize(
    ("content", "said"), [c[1:] for c in TEXT_CASES], ids=[c[0] for c in TEXT_CASES]
)
def test_text_that_is_no_trace(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert said in _refusal(path).message


def test_the_first_bad_event_is_the_one_that_is_named(tmp_path: Path) -> None:
    header, events = small_trace()
    events[1]["slots"] = [99]
    events[2]["positions"] = [0, 1, 2, 0, 99]
    events[3]["reqs"] = ["A"]
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    path.write_text(path.read_text() + "{broken\n")
    assert "a.jsonl:3: 'map' field 'slots'[0] is 99" in _refusal(path).message
    del events[1]
    assert (
        "a.jsonl:3: 'forward' field 'positions'[4] is 99"
        in _refusal(write_jsonl(path, header, events)).message
    )


def test_order_is_checked_across_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcanary_cli.trace.segment.MAX_SEGMENT_EVENTS", 1)
    header, events = small_trace()
    events[3]["i"] = 2
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert "a.jsonl:5: 'i' goes from 2 to 2" in _refusal(path).message
    events[3] |= {"i": 3, "step": 1}
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert "a.jsonl:5: 'forward' field 'step' goes from 1 to 1" in _refusal(path).message


def test_a_line_over_64_mib_is_refused_without_reading_it(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(_GOOD + b'{"kind": "')
        file.truncate(4 * MAX_LINE_BYTES)
    tracemalloc.start()
    try:
        error = _refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "a.jsonl:6: the line is longer than 64 MiB" in error.message
    assert peak < 1.5 * MAX_LINE_BYTES


def test_a_long_line_below_the_limit_is_read(tmp_path: Path) -> None:
    header, events = small_trace()
    events[0]["x_pad"] = " " * (3 << 20)
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert read_events(path) == events


def test_what_is_tolerated(tmp_path: Path) -> None:
    header, events = small_trace()
    text = jsonl_text(header, events)
    for variant in (
        text.rstrip("\n"),
        text.replace("\n", "\r\n"),
        "\ufeff" + text,
        text.replace("\n", "\n\n \n"),
        "\n" + text,
    ):
        path = tmp_path / "a.jsonl"
        path.write_bytes(variant.encode())
        assert read_events(path) == events


def test_blank_lines_do_not_shift_line_numbers(tmp_path: Path) -> None:
    header, events = small_trace()
    events[3]["positions"] = [99, 0]
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl_text(header, events).replace("\n", "\n\n"))
    assert "a.jsonl:9:" in _refusal(path).message


def test_lost_events_are_counted_and_not_refused(tmp_path: Path) -> None:
    from kvcanary_cli.trace.reader import open_trace

    header, events = small_trace()
    events[2]["i"], events[3]["i"] = 10, 1 << 62
    reader = open_trace(write_jsonl(tmp_path / "a.jsonl", header, events))
    for _ in range(2):  # a second pass must not count twice
        for _ in reader.segments():
            pass
        assert [(g.after_i, g.before_i) for g in reader.notes.gaps] == [(1, 10), (10, 1 << 62)]
        assert reader.notes.lost_events == 8 + (1 << 62) - 11
    assert "after i=1, " in reader.notes.messages()[0]


def test_missing_tokens_need_a_header_that_says_so(tmp_path: Path) -> None:
    header, events = small_trace()
    for event in events[2:]:
        del event["input_ids"]
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert "a.jsonl:4: 'forward' lacks the field 'input_ids'" in _refusal(path).message
    for suffix in (".jsonl", ".pt"):
        path = write_trace(tmp_path / f"b{suffix}", header | {"tokens": "absent"}, events)
        assert read_events(path) == events


def test_64_bit_numbers_are_exact(tmp_path: Path) -> None:
    header, events = small_trace()
    events[3]["input_ids"] = [(1 << 63) - 1, -(1 << 63)]
    path = write_jsonl(tmp_path / "a.jsonl", header, events)
    assert (
        json.dumps(read_events(path)[3]["input_ids"])
        == "[9223372036854775807, -9223372036854775808]"
    )


def test_events_of_an_undeclared_family_are_noted(tmp_path: Path) -> None:
    from kvcanary_cli.trace.reader import open_trace

    header, events = small_trace()
    header["records"] = ["forward", "map", "dreams"]
    reader = open_trace(write_jsonl(tmp_path / "a.jsonl", header, events))
    assert sum(len(s) for s in reader.segments()) == 4
    assert reader.notes.messages() == [
        "unknown family 'dreams' in the header's records: ignored",
        "1 events of family 'alloc', which the header's records does not list",
    ]


def test_kinds_without_end_are_refused(tmp_path: Path) -> None:
    header, _ = small_trace()
    for count in (1000, 1001, 2500):
        events = [{"kind": f"x{k}", "i": k} for k in range(count)]
        path = write_jsonl(tmp_path / "a.jsonl", header, events)
        if count == 1000:
            assert read_events(path) == events
        else:
            assert "more than 1000 unknown kinds" in _refusal(path).message


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in _refusal(tmp_path / "none.jsonl").message
    (tmp_path / "folder").mkdir()
    assert "no manifest.json" in _refusal(tmp_path / "folder").message
