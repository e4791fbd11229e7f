"""The converter on captures small enough to write down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.reader import open_trace
from tests.captures.audit import Audit
from tests.tools.capture_rows import HistoryShadow, LutShadow, TableShadow, changed_runs
from tests.tools.convert_capture import convert, main

if TYPE_CHECKING:
    from collections.abc import Callable

Capture = dict[str, Any]

PREFILL = "alloc_token_slots<alloc_for_extend<prepare_for_extend"
DECODE = "alloc_token_slots<alloc_for_decode_default"
INSERT = "_apply_cache_action<_apply_cache_actions<insert<checkpoint_into_tree"
EVICT = "apply_component_action<_apply_cache_action<_drain_device_frees<_free_values"


def _step(
    number: int, mode: str, rows: list[tuple[str, int, int, list[int], list[int]]]
) -> dict[str, Any]:
    """A forward; a row is (request, table row, prefix, new tokens, cells)."""
    extend = mode == "EXTEND"
    return {
        "step": number,
        "forward_mode_name": mode,
        "batch_size": len(rows),
        "rids": [req for req, *_ in rows],
        "req_pool_indices": [row for _, row, *_ in rows],
        "seq_lens": [prefix + len(ids) for _, _, prefix, ids, _ in rows],
        "positions": [prefix + k for _, _, prefix, ids, _ in rows for k in range(len(ids))],
        "input_ids": [token for *_, ids, _ in rows for token in ids],
        "out_cache_loc": [s for _, _, prefix, _, cells in rows for s in cells[prefix:]],
        "extend_prefix_lens": [prefix for _, _, prefix, *_ in rows] if extend else None,
        "extend_seq_lens": [len(ids) for *_, ids, _ in rows] if extend else None,
        "draft_token_num": None,
        "req_to_token_rows": [cells for *_, cells in rows],
    }


def _event(seq: float, step: int, kind: str, slots: list[int], caller: str, **more: Any) -> Capture:
    return {"seq": seq, "step": step, "kind": kind, "slots": slots, "caller": caller, **more}


def _sglang() -> Capture:
    """A and B bring the same prompt at once; B's copy is freed when it is inserted."""
    return {
        "schema": "sglang-forward-capture/1",
        "engine": "sglang",
        "engine_version": "0.5.23",
        "name": "tiny",
        "meta": json.dumps(
            {
                "model": "tiny",
                "page_size": 1,
                "max_total_num_tokens": 9,
                "req_to_token_shape": [3, 8],
                "chunked_prefill_size": 32,
                "max_running_requests": 2,
                "max_prefill_tokens": 64,
                "overlap": False,
                "mixed_chunk": False,
                "spec": "",
                "seed": 1,
            }
        ),
        "ground_truth": json.dumps({"bug": "none"}),
        "steps": [
            _step(
                0,
                "EXTEND",
                [("A", 2, 0, [7, 8], [1, 2]), ("B", 1, 0, [7, 8, 9], [3, 4, 5])],
            ),
            _step(1, "DECODE", [("A", 2, 2, [6], [1, 2, 6]), ("B", 1, 3, [5], [1, 2, 5, 7])]),
            _step(2, "EXTEND", [("C", 2, 2, [4], [1, 2, 6])]),
        ],
        "events": [
            _event(0, 0, "row_alloc", [1, 2], "alloc_req_slots"),
            _event(1, 0, "alloc", [1, 2, 3, 4, 5], PREFILL),
            _event(2, 1, "free_deferred", [3, 4], INSERT),
            _event(3, 1, "free", [3, 4], INSERT),
            _event(4, 1, "alloc", [6, 7], DECODE),
            _event(5, 2, "row_free", [2], "release_kv_cache", rid="A"),
            _event(6, 2, "row_free", [1], "release_kv_cache", rid="B"),
            _event(7, 2, "free", [6], EVICT),
            _event(8, 2, "alloc", [6], PREFILL),
            _event(9, 3, "row_free", [2], "release_kv_cache", rid="C"),
        ],
        "retractions": [],
        "requests": {
            "A": {"prompt": [7, 8], "output": [6, 3]},
            "B": {"prompt": [7, 8, 9], "output": [5, 2]},
            "C": {"prompt": [7, 8, 4], "output": [1]},
        },
    }


def _lines(events: list[dict[str, Any]]) -> list[str]:
    """Events but forwards, in short."""
    out = []
    for event in events:
        fields = {k: v for k, v in event.items() if k not in ("kind", "i")}
        if event["kind"] == "forward":
            fields = {"step": event["step"]}
        out.append(f"{event['kind']} " + " ".join(f"{k}={v}" for k, v in fields.items()))
    return out


def test_sglang_capture_becomes_these_events() -> None:
    header, events = convert(_sglang())
    assert header["records"] == ["forward", "map", "alloc", "request", "history"]
    assert header["pool"]["slots"] == 9
    assert _lines(events) == [
        "alloc owner=A slots=[1, 2]",
        "alloc owner=B slots=[3, 4, 5]",
        "history req=A start=0 ids=[7, 8]",
        "history req=B start=0 ids=[7, 8, 9]",
        "map row=2 start=0 slots=[1, 2]",
        "map row=1 start=0 slots=[3, 4, 5]",
        "forward step=0",
        "own from=A owner=tree slots=[1, 2]",
        "own from=B owner=tree slots=[5]",
        "free owner=B slots=[3, 4]",
        "alloc owner=A slots=[6]",
        "alloc owner=B slots=[7]",
        "history req=A start=2 ids=[6]",
        "history req=B start=3 ids=[5]",
        "map row=2 start=2 slots=[6]",
        "map row=1 start=0 slots=[1, 2]",
        "map row=1 start=3 slots=[7]",
        "forward step=1",
        "own from=A owner=tree slots=[6]",
        "history req=A start=3 ids=[3]",
        "finish req=A",
        "row_release row=2 req=A",
        "own from=B owner=tree slots=[7]",
        "history req=B start=4 ids=[2]",
        "finish req=B",
        "row_release row=1 req=B",
        "free owner=tree slots=[6] reason=evict",
        "alloc owner=C slots=[6]",
        "history req=C start=0 ids=[7, 8, 4]",
        "forward step=2",
        "own from=C owner=tree slots=[6]",
        "history req=C start=3 ids=[1]",
        "finish req=C",
        "row_release row=2 req=C",
    ]
    assert Audit(events, owners=True).findings == []


def test_conversion_is_deterministic() -> None:
    assert convert(_sglang()) == convert(_sglang())


def test_forward_carries_the_fields_of_its_mode() -> None:
    forwards = [e for e in convert(_sglang())[1] if e["kind"] == "forward"]
    assert forwards[0]["extend_prefix_lens"] == [0, 0]
    assert forwards[0]["extend_seq_lens"] == [2, 3]
    assert "extend_seq_lens" not in forwards[1]
    assert forwards[1]["reqs"] == ["A", "B"]
    assert forwards[1]["out_cache_loc"] == [6, 7]


def test_hashes_and_sweeps_stand_around_their_forward() -> None:
    capture = _sglang()
    hashes = {"slots": [1, 2], "hash": [-5, 1 << 62]}
    capture["steps"][1]["kv_hash_before"] = hashes
    capture["steps"][1]["kv_hash_after"] = {"slots": [6], "hash": [4]}
    capture["steps"][1]["kv_hash_after_swa"] = {"slots": [2], "hash": [3]}
    capture["canary"] = {
        "config": json.dumps({"mode": "log", "real_kv_hash_mode": 2, "sweep_interval": 1}),
        "sweeps": [
            {
                "after_step": 1,
                "slot_indices": [2, 1, 5],
                "positions": [1, 0, 2],
                "prev_slot_indices": [1, -1, 2],
                "kv_hash": [8, 9, 10],
            }
        ],
    }
    header, events = convert(capture)
    lines = _lines(events)
    at = lines.index("forward step=1")
    assert lines[at - 1] == f"kv_hash phase=before step=1 slots=[1, 2] hash=[-5, {1 << 62}]"
    assert lines[at + 1 : at + 6] == [
        "kv_hash phase=after step=1 slots=[6] hash=[4]",
        "kv_hash phase=after step=1 slots=[2] hash=[3] pool=swa",
        "publish entry=path-0000 slots=[1, 2, 5]",
        "kv_hash phase=sweep step=1 slots=[2, 1, 5] hash=[8, 9, 10]",
        "own from=A owner=tree slots=[6]",
    ]
    assert header["canary"]["sweep_interval"] == 1
    assert header["serving_args"]["kv_canary_real_data"] == "all"
    assert header["records"][-2:] == ["prefix", "kv_hash"]


def test_planted_free_is_given_back_by_the_request_of_the_ground_truth() -> None:
    capture = _sglang()
    capture["ground_truth"] = json.dumps({"bug": "double_free", "rid": "B", "slot": 5})
    capture["events"].insert(5, _event(4.5, 1, "free", [5], "bug<forward"))
    header, events = convert(capture)
    assert header["ground_truth"]["slot"] == 5
    assert "free owner=B slots=[5]" in _lines(events)
    assert {f.slot for f in Audit(events, owners=True).findings} == {5}


def test_retracted_request_leaves_without_finishing() -> None:
    capture = _sglang()
    capture["retractions"] = [{"step": 2, "rids": ["B"]}]
    lines = _lines(convert(capture)[1])
    assert "retract req=B" in lines
    assert "finish req=B" not in lines
    assert "history req=B start=4 ids=[2]" not in lines


def test_capture_with_pages_says_that_it_has_no_allocator_events() -> None:
    capture = _sglang()
    meta = json.loads(capture["meta"]) | {"page_size": 2, "max_total_num_tokens": 8}
    capture["meta"] = json.dumps(meta)
    header, events = convert(capture)
    assert "alloc" not in header["records"]
    assert not {"alloc", "free", "own"} & {event["kind"] for event in events}
    assert header["pool"]["reserved"] == [0, 1]
    assert header["pool"]["max_slot"] == 9


def test_lookup_table_changes_stand_before_their_forward() -> None:
    capture = _sglang()
    for step, lut in zip(
        capture["steps"],
        [[0, 1, 2, 3, 4, 5, 0, 0, 0, 0, -1], [0, 1, 2, 0, 0, 5, 6, 7, 0, 0, -1], [0] * 11],
        strict=True,
    ):
        step["full_to_swa_lut"] = lut
    lines = [line for line in _lines(convert(capture)[1]) if line.startswith(("lut", "forward"))]
    assert lines == [
        "lut full=[1, 2, 3, 4, 5] swa=[1, 2, 3, 4, 5]",
        "forward step=0",
        "lut full=[3, 4, 6, 7] swa=[0, 0, 6, 7]",
        "forward step=1",
        "lut full=[1, 2, 5, 6, 7] swa=[0, 0, 0, 0, 0]",
        "forward step=2",
    ]


def test_slots_allocated_ahead_belong_to_the_request_that_gives_them_back() -> None:
    capture = _sglang()
    for event in capture["events"]:
        if event["seq"] == 4:
            event["slots"] = [6, 7, 8]
    capture["events"] += [
        _event(4.1, 2, "free_deferred", [8], "free_segments<free_kv_row"),
        _event(6.1, 2, "free", [8], "process_batch_result_decode"),
    ]
    events = convert(capture)[1]
    lines = _lines(events)
    assert "alloc owner=A slots=[6, 8]" in lines
    assert "free owner=A slots=[8]" in lines
    assert Audit(events, owners=True).findings == []


def _vllm_step(
    number: int,
    rows: list[tuple[str, int, list[int], list[int]]],
    finished: list[str] | None = None,
) -> dict[str, Any]:
    """A step of blocks of 2; a row is (request, computed tokens, new tokens, blocks)."""
    width = max(len(blocks) for *_, blocks in rows)
    spans = [(range(done, done + len(ids)), blocks) for _, done, ids, blocks in rows]
    return {
        "step": number,
        "req_ids": [f"{req}-01234567" for req, *_ in rows],
        "num_computed_tokens": [done for _, done, *_ in rows],
        "num_scheduled_tokens": [len(ids) for *_, ids, _ in rows],
        "input_ids": [token for *_, ids, _ in rows for token in ids],
        "positions": [position for span, _ in spans for position in span],
        "slot_mapping": [b[p // 2] * 2 + p % 2 for span, b in spans for p in span],
        "block_table": [[*blocks, *[0] * (width - len(blocks))] for *_, blocks in rows],
        "num_blocks_per_row": [len(blocks) for *_, blocks in rows],
        "spec_decode_tokens": {},
        "finished_req_ids": [f"{req}-01234567" for req in finished or []],
    }


def _vllm() -> Capture:
    def event(seq: int, step: int, kind: str, blocks: list[int], counts: Any = None) -> Capture:
        return {"seq": seq, "step": step, "kind": kind, "block_ids": blocks} | (
            {"ref_cnt_before": counts} if counts else {}
        )

    return {
        "schema": "vllm-step-capture/1",
        "engine": "vllm",
        "engine_version": "0.32.0",
        "name": "tiny",
        "meta": json.dumps(
            {
                "model": "tiny",
                "block_size": 2,
                "num_blocks": 5,
                "max_num_seqs": 2,
                "max_num_batched_tokens": 8,
                "prefix_caching": True,
                "chunked_prefill": True,
                "seed": 1,
            }
        ),
        "steps": [
            _vllm_step(0, [("a-0", 0, [7, 8, 9], [1, 2])]),
            _vllm_step(1, [("a-0", 3, [6], [1, 2]), ("b-0", 2, [5], [1, 3])]),
            _vllm_step(2, [("b-0", 3, [4], [1, 3])], finished=["a-0"]),
            _vllm_step(3, [("c-0", 0, [3], [2])], finished=["b-0"]),
        ],
        "events": [
            event(0, 0, "alloc", [1, 2]),
            event(1, 1, "touch", [1], [1]),
            event(2, 1, "alloc", [3]),
            event(3, 2, "free_ref", [2, 1], [1, 2]),
            event(4, 3, "free_ref", [3, 1], [1, 1]),
            event(5, 3, "evict_cached", [2]),
            event(6, 3, "alloc", [2]),
            event(7, 4, "free_ref", [2], [1]),
        ],
        "requests": {
            "a-0": {"prompt": [7, 8, 9], "output": [6, 1]},
            "b-0": {"prompt": [7, 8, 5], "output": [4, 2]},
            "c-0": {"prompt": [3], "output": [1]},
        },
    }


def test_vllm_capture_becomes_these_events() -> None:
    header, events = convert(_vllm())
    assert header["pool"] == {
        "slots": 8,
        "max_slot": 9,
        "reserved": [0, 1],
        "page_size": 2,
        "rows": 3,
        "row_len": 10,
        "swa_slots": 0,
        "swa_window": 0,
    }
    assert _lines(events) == [
        "alloc owner=a-0 slots=[2, 3, 4, 5]",
        "history req=a-0 start=0 ids=[7, 8, 9]",
        "map row=1 start=0 slots=[2, 3, 4, 5]",
        "forward step=0",
        "own from=a-0 owner=tree slots=[2, 3]",
        "alloc owner=b-0 slots=[6, 7]",
        "history req=a-0 start=3 ids=[6]",
        "history req=b-0 start=0 ids=[7, 8, 5]",
        "map row=2 start=0 slots=[2, 3, 6, 7]",
        "forward step=1",
        # Block 2 is evicted later, so it was cached.
        "own from=a-0 owner=tree slots=[4, 5]",
        "history req=a-0 start=4 ids=[1]",
        "finish req=a-0",
        "row_release row=1 req=a-0",
        "history req=b-0 start=3 ids=[4]",
        "forward step=2",
        # Block 3 does not come again, and was full.
        "own from=b-0 owner=tree slots=[6, 7]",
        "history req=b-0 start=4 ids=[2]",
        "finish req=b-0",
        "row_release row=2 req=b-0",
        "free owner=tree slots=[4, 5] reason=evict",
        "alloc owner=c-0 slots=[4, 5]",
        "history req=c-0 start=0 ids=[3]",
        "map row=1 start=0 slots=[4, 5]",
        "forward step=3",
        "free owner=c-0 slots=[4, 5]",
        "history req=c-0 start=1 ids=[1]",
        "finish req=c-0",
        "row_release row=1 req=c-0",
    ]
    modes = [e["forward_mode"] for e in events if e["kind"] == "forward"]
    assert modes == ["EXTEND", "MIXED", "DECODE", "EXTEND"]
    assert Audit(events, owners=True).findings == []


def test_vllm_drafts_are_refused() -> None:
    capture = _vllm()
    capture["steps"][2]["spec_decode_tokens"] = {"b-0-01234567": [1, 2]}
    with pytest.raises(InputError, match="step 2 verifies draft tokens of b-0"):
        convert(capture)


@given(st.lists(st.integers(0, 3) | st.none(), max_size=9), st.lists(st.integers(0, 3), max_size=9))
def test_changed_runs_turn_the_old_row_into_the_new(old: list[int | None], new: list[int]) -> None:
    row = list(old)
    runs = list(changed_runs(old, new))
    for start, values in runs:
        assert values
        assert all(k >= len(old) or old[k] != v for k, v in enumerate(values, start))
        row[start : start + len(values)] = values
    assert row[: len(new)] == new
    assert row[len(new) :] == old[len(new) :]
    ends = [start + len(values) for start, values in runs]
    assert all(end < start for end, (start, _) in zip(ends, runs[1:], strict=False))


def test_shadows_tell_each_thing_once() -> None:
    table, lut, history = TableShadow(), LutShadow(3), HistoryShadow({"A": [5, 6, 7]})
    assert table.show(1, [4, 5])
    assert table.show(1, [4]) == []
    assert lut.show([0, 0, 2, 0, -1]) == [{"kind": "lut", "full": [2], "swa": [2]}]
    assert lut.show([0, 0, 2, 0, -1]) == []
    assert history.tell("A", 2) == [{"kind": "history", "req": "A", "start": 0, "ids": [5, 6]}]
    assert history.tell("A", 1) == []
    assert history.tell("A") == [{"kind": "history", "req": "A", "start": 2, "ids": [7]}]
    assert history.tell("A", 9) == []


@pytest.mark.parametrize("make", [_sglang, _vllm])
def test_command_writes_a_trace_that_reads_back(
    make: Callable[[], Capture], tmp_path: Path
) -> None:
    capture = make()
    torch.save(capture, tmp_path / "in.pt")
    assert main([str(tmp_path / "in.pt"), str(tmp_path / "out.jsonl")]) == 0
    header, events = convert(capture)
    trace = open_trace(tmp_path / "out.jsonl")
    assert [e for segment in trace.segments() for e in segment.events()] == events
    assert trace.header.raw == header


def _no_capture(path: Path) -> None:
    torch.save({"schema": "other/1"}, path)


def _torn(path: Path) -> None:
    torch.save(_sglang(), path)
    path.write_bytes(path.read_bytes()[:200])


def _a_list(path: Path) -> None:
    torch.save([1], path)


def _lacks_a_field(path: Path) -> None:
    torch.save({k: v for k, v in _sglang().items() if k != "requests"}, path)


def _unowned_free(path: Path) -> None:
    capture = _sglang()
    capture["events"].append(_event(99, 3, "free", [8], "free_segments"))
    torch.save(capture, path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no such file"),
        (_torn, "not a capture"),
        (_a_list, "expected a dictionary, found list"),
        (_no_capture, "capture of schema 'other/1', expected one of 'sglang-forward-capture/1'"),
        (_lacks_a_field, "lacks 'requests'"),
        (_unowned_free, "event 99: slot 8 is given back, but nobody is known to own it"),
    ],
)
def test_bad_input_is_one_clear_error(
    write: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "in.pt")
    assert main([str(tmp_path / "in.pt"), str(tmp_path / "out.jsonl")]) == 4
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_script_runs_by_its_path() -> None:
    script = Path(__file__).parents[1] / "tools" / "convert_capture.py"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: convert_capture.py")
