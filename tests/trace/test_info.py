"""``trace info``: counts, sizes and pool use, against hand-made and naive expectations."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from kvcanary_cli.report.trace_json import info_object
from kvcanary_cli.report.trace_text import bytes_text, info_lines, sparkline
from kvcanary_cli.trace.info import collect_info
from kvcanary_cli.trace.reader import open_trace
from tests.trace.helpers import SCENARIOS, small_trace, write_jsonl, write_trace
from tests.trace.strategies import Event, traces

if TYPE_CHECKING:
    from pathlib import Path


def test_a_scenario_by_hand() -> None:
    info = collect_info(open_trace(SCENARIOS / "S13_pad_or_dummy_write.jsonl"))
    want = {"kv_hash": 8, "alloc": 7, "map": 7, "forward": 5, "history": 3, "finish": 1, "free": 1}
    assert list(info.events.items()) == list(want.items())
    assert sum(info.events.values()) == 32
    assert (info.first_step, info.last_step, info.steps) == (1, 5, 5)
    assert info.forwards == {("target", "DECODE"): 3, ("target", "EXTEND"): 2}
    assert info.tokens == 11
    assert (info.requests, info.finished, info.retracted, info.aborted) == (3, 1, 0, 0)
    # Owned: A 1 2, B 3 4; then 5, 6; B's 3 4 6 come back; C takes 6 7; A 8; C 9.
    assert info.pool_use is not None
    assert info.pool_use.series == (4, 6, 5, 6, 7)
    assert (info.pool_use.minimum, info.pool_use.median, info.pool_use.maximum) == (4, 6, 7)
    assert list(info.families) == sorted(
        info.families, key=lambda f: (-info.families[f].size_bytes, f)
    )
    assert info.families["kv_hash"].events == info.events["kv_hash"]


def _naive_pool(events: list[Event]) -> list[int]:
    owned: set[int] = set()
    series = []
    for event in events:
        match event["kind"]:
            case "alloc" | "own":
                owned |= set(event["slots"])
            case "free":
                owned -= set(event["slots"])
            case "forward":
                series.append(len(owned))
    return series


@given(trace=traces(max_events=25))
@settings(max_examples=40, deadline=None)
def test_random_traces_against_naive_counts(
    tmp_path_factory: pytest.TempPathFactory, trace: tuple[dict[str, Any], list[Event]]
) -> None:
    header, events = trace
    path = write_jsonl(tmp_path_factory.mktemp("t") / "a.jsonl", header, events)
    info = collect_info(open_trace(path))
    forwards = [e for e in events if e["kind"] == "forward"]
    assert info.events == Counter(e["kind"] for e in events)
    assert info.tokens == sum(len(e["out_cache_loc"]) for e in forwards)
    assert info.forwards == Counter(
        (e.get("worker", "target"), e["forward_mode"]) for e in forwards
    )
    times = [e["t"] for e in events if "t" in e]
    assert (info.first_t, info.last_t) == (min(times, default=None), max(times, default=None))
    steps = [e["step"] for e in forwards]
    assert (info.first_step, info.last_step) == (min(steps, default=None), max(steps, default=None))
    naive = _naive_pool(events)
    if naive and any(e["kind"] == "alloc" for e in events):
        assert info.pool_use is not None
        assert list(info.pool_use.series) == naive
        assert info.pool_use.median == sorted(naive)[(len(naive) - 1) // 2]
    else:
        assert info.pool_use is None
    json.loads(json.dumps(info_object(info)))
    assert all(line == "" or line.isprintable() for line in info_lines(info))


def test_long_series_keep_their_peaks(tmp_path: Path) -> None:
    header, events = small_trace()
    forward = events[3] | {"reqs": [], "req_pool_indices": [], "seq_lens": []}
    forward |= {"input_ids": [], "positions": [], "out_cache_loc": []}
    lines: list[dict[str, Any]] = []
    for step in range(1000):
        if step == 700:
            lines.append({"kind": "alloc", "owner": "B", "slots": list(range(4, 14))})
        if step == 701:
            lines.append({"kind": "free", "owner": "B", "slots": list(range(4, 14))})
        lines.append(forward | {"step": step})
    lines = [events[0], *({**e, "i": k + 1} for k, e in enumerate(lines))]
    info = collect_info(open_trace(write_trace(tmp_path / "a.pt", header, lines)))
    use = info.pool_use
    assert use is not None
    assert (use.minimum, use.median, use.maximum) == (3, 3, 13)
    assert 60 <= len(use.series) <= 120
    assert sorted(use.series)[-2:] == [3, 13]
    assert use.series.index(13) * 1000 // len(use.series) == pytest.approx(700, abs=20)
    line = sparkline(use.series, 15)
    assert len(line) <= 60
    assert max(line) == "▇"


def test_odd_things_are_told(tmp_path: Path) -> None:
    header, events = small_trace()
    events[1]["x\x1b[31m"] = 1
    events.append({"kind": "x_\u202e", "i": 9})
    info = collect_info(open_trace(write_jsonl(tmp_path / "a.jsonl", header, events)))
    out = info_object(info)
    assert out["lost_events"] == 5
    assert out["gaps"] == [{"after_i": 3, "before_i": 9}]
    assert out["unknown_kinds"] == {"x_\u202e": 1}
    assert out["unknown_fields"] == {"map.x\x1b[31m": 1}
    assert out["notes"] == [
        "5 events were lost while recording (5 after i=3)",
        "unknown event kind 'x_\\u202e' (1 events): kept, not interpreted",
        "unknown field 'map.x\\x1b[31m' (1 events): kept, not interpreted",
    ]


def test_an_empty_trace_has_an_info(tmp_path: Path) -> None:
    header, _ = small_trace()
    for suffix in (".jsonl", ".pt", ".kvtrace"):
        info = collect_info(open_trace(write_trace(tmp_path / f"a{suffix}", header, [])))
        assert info.events == {}
        assert info.pool_use is None
        assert info_object(info)["events"] == 0
        assert list(info_lines(info))


def test_sizes_are_short() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]


def test_a_recording_that_ended_early_says_where_and_why(tmp_path: Path) -> None:
    header, events = small_trace()
    last = events[-1]["i"]
    ended = {"kind": "recording_ended", "i": last + 1, "reason": "OSError: [/x] no space"}
    trigger = {"kind": "triggered", "i": last + 1, "by": "signal", "text": "t"}
    told = write_trace(tmp_path / "a.pt", header, [*events, ended])
    reader = open_trace(told)
    out = info_object(collect_info(reader))
    assert out["recording_ended"] == {"event": last + 1, "reason": "OSError: [/x] no space"}
    # The recorder's own events need no entry in the header's records.
    assert len(out["notes"]) == 1
    assert f"the recording ended early, at event i={last + 1}: OSError" in out["notes"][0]
    quiet = info_object(
        collect_info(open_trace(write_trace(tmp_path / "b.pt", header, [*events, trigger])))
    )
    assert quiet["recording_ended"] is None
    assert quiet["notes"] == []
